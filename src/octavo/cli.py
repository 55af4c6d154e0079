"""The commands: `octavo generate`, `octavo pull`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo import __version__
from octavo.cli_chat import chat
from octavo.cli_curve import bench
from octavo.cli_doctor import doctor
from octavo.cli_options import (
    Attention,
    BlockSize,
    Deterministic,
    DType,
    EngineSeed,
    Eviction,
    Json,
    MaxLength,
    MaxSeqs,
    Model,
    Offline,
    PoolBytes,
    PromptFile,
    Prompts,
    Raw,
    Reservation,
    StepTokens,
)
from octavo.cli_output import OutputError, ReaderGone, say, say_json
from octavo.cli_plan import plan
from octavo.cli_sampling import with_sampling
from octavo.contract.sampling import SamplingParams
from octavo.errors import Corrupted, OctavoError, OutOfBlocks, RequestError

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.prompts import Prompt
    from octavo.results import RequestOutput

BAD_INPUT = 2
INTERRUPTED = 130

app = typer.Typer(
    name="octavo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench, name="bench")
app.command()(plan)
app.command()(chat)
app.command()(doctor)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit status 2 for bad input, 130 after Ctrl-C, 1 for our own faults."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run a command and return its exit status; errors are one line on stderr."""
    try:
        status = app(arguments, prog_name="octavo", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", INTERRUPTED)
    except (Corrupted, OutOfBlocks) as error:
        return _say(f"octavo: bug: {error}", 1)
    except OctavoError as error:
        return _say(f"octavo: error: {error}", BAD_INPUT)
    except ReaderGone:
        return 0
    except OutputError as error:
        return _say(f"octavo: error: {error}", 1)
    except Exception as error:
        show = getattr(error, "format_message", None)  # what the option parser raises
        if show is None:
            raise
        return _say(f"octavo: error: {show()}", BAD_INPUT)
    if status == INTERRUPTED:  # the option parser catches Ctrl-C inside a command
        return _say("interrupted", INTERRUPTED)
    return status if isinstance(status, int) else 0


def _say(message: str, status: int) -> int:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.write(message.encode("utf-8", "backslashreplace").decode() + "\n")
    return status


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def octavo(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Serve language models on a paged KV cache whose every memory policy can be swapped."""


@app.command()
def pull(
    alias: Annotated[
        str | None,
        typer.Argument(help="A known model or a Hugging Face id; none: list the known ones."),
    ] = None,
) -> None:
    """Fetch a known model into the user's cache folder and check its sum."""
    from octavo.build import CATALOG, pull_model

    if alias is None:
        for entry in CATALOG.values():
            size = f"{entry.num_bytes / 1e6:.0f} MB"
            say(f"{entry.alias}  {entry.title}, {size}, {entry.licence}\n  {entry.terms}")
    else:
        say(str(pull_model(alias, lambda message: typer.echo(message, err=True))))


@app.command()
@with_sampling
def generate(
    *,
    prompts: Prompts = None,
    file: PromptFile = None,
    model: Model = None,
    raw: Raw = False,
    params: SamplingParams,
    dtype: DType = "auto",
    block_size: BlockSize = 16,
    kv_cache_memory_bytes: PoolBytes = None,
    max_num_seqs: MaxSeqs = 128,
    max_num_batched_tokens: StepTokens = 2048,
    max_model_len: MaxLength = None,
    reservation: Reservation = "on_demand",
    eviction_policy: Eviction = "lru",
    attention_backend: Attention = "reference",
    engine_seed: EngineSeed = 0,
    deterministic: Deterministic = False,
    offline: Offline = False,
    json: Json = False,
) -> int:
    """Answer prompts, all together."""
    from octavo import LLM

    texts = _read_prompts(prompts, file)
    llm = LLM(
        model,
        dtype=dtype,
        seed=engine_seed,
        block_size=block_size,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        reservation=reservation,
        eviction_policy=eviction_policy,
        attention_backend=attention_backend,
        deterministic=deterministic,
        offline=offline,
    )
    results = llm.generate([_prompt(llm, text, raw=raw) for text in texts], params)
    if json:
        _print_json(llm, texts, params, results, raw=raw)
    else:
        _print_text(texts, results)
    failed = any(answer.finish_reason == "error" for r in results for answer in r.outputs)
    return 1 if failed else 0


def _read_prompts(prompts: list[str] | None, file: Path | None) -> list[str]:
    if bool(prompts) == (file is not None):
        raise RequestError("give prompts as arguments or with --file, one of the two")
    if file is None:
        return list(prompts or ())
    try:
        data = _stdin_bytes() if str(file) == "-" else file.read_bytes()
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{file} is not UTF-8 at byte {error.start}: save it as UTF-8"
        ) from error
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}") from error
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if not lines:
        raise RequestError(f"{file} holds no prompt: write one a line")
    return lines


def _stdin_bytes() -> bytes:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise RequestError("stdin is closed: give prompts as arguments or in a file")
    return sys.stdin.buffer.read()


def _prompt(llm: LLM, text: str, *, raw: bool) -> Prompt:
    if not text.strip():
        raise RequestError("the prompt is empty: write what the model should answer")
    return text if raw else llm.chat_prompt([{"role": "user", "content": text}])


def _print_text(texts: list[str], results: list[RequestOutput]) -> None:
    several = len(results) > 1 or any(len(result.outputs) > 1 for result in results)
    for text, result in zip(texts, results, strict=True):
        for answer in result.outputs:
            if several:
                say(f"── {text} [{answer.index}]")
            say(answer.text)
            if answer.finish_reason == "error":
                typer.echo(f"octavo: error: {answer.stop_reason}", err=True)


def _print_json(
    llm: LLM, texts: list[str], params: object, results: list[RequestOutput], *, raw: bool
) -> None:
    import msgspec

    from octavo.envelope import envelope

    built = llm.built
    document = envelope(
        "octavo.generate/1", llm.config, sampling=msgspec.to_builtins(params), raw=raw
    )
    document |= {
        "model": built.model_path.name,
        "dtype": built.layout.dtype,
        "backend": llm.config.attention_backend,
        "results": [
            _result_keys(text, result) for text, result in zip(texts, results, strict=True)
        ],
        "memory": msgspec.to_builtins(llm.memory_report()),
    }
    say_json(document)


def _result_keys(text: str, result: RequestOutput) -> dict[str, object]:
    keys = (
        "request_id",
        "prompt_token_ids",
        "num_cached_tokens",
        "effective_max_tokens",
        "ttft_s",
        "e2e_s",
    )
    outputs = [
        {
            "index": answer.index,
            "text": answer.text,
            "token_ids": answer.token_ids,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "cumulative_logprob": answer.cumulative_logprob,
            "logprobs": answer.logprobs,
        }
        for answer in result.outputs
    ]
    document = {"prompt": text, "outputs": outputs} | {key: getattr(result, key) for key in keys}
    if result.prompt_logprobs is not None:
        document["prompt_logprobs"] = result.prompt_logprobs
    return document
