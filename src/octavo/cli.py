"""The commands: `octavo generate`, `octavo pull`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo import __version__
from octavo.errors import Corrupted, OctavoError, OutOfBlocks, RequestError

if TYPE_CHECKING:
    from octavo.llm import LLM, Prompt, RequestOutput

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
    except BrokenPipeError:
        return 0  # the reader has seen enough
    except Exception as error:
        show = getattr(error, "format_message", None)  # what the option parser raises
        if show is None:
            raise
        return _say(f"octavo: error: {show()}", BAD_INPUT)
    if status == INTERRUPTED:  # the option parser catches Ctrl-C inside a command
        return _say("interrupted", INTERRUPTED)
    return status if isinstance(status, int) else 0


def _say(message: str, status: int) -> int:
    sys.stderr.write(message + "\n")
    return status


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def octavo(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Serve language models on a paged KV cache whose every memory policy can be swapped."""


Prompts = Annotated[list[str] | None, typer.Argument(help="One or more prompts.")]
PromptFile = Annotated[
    Path | None, typer.Option(help="Read prompts from a UTF-8 file, one a line; - is stdin.")
]
Model = Annotated[
    str | None, typer.Option(help="A path or a known name; default: the embedded model.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text: no chat template.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

Choices = Annotated[int, typer.Option("--n", help="Answers per prompt.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0: all.")]
TopP = Annotated[float, typer.Option(help="Keep this much probability.")]
Seed = Annotated[int | None, typer.Option(help="Of the random numbers of each prompt.")]
Stop = Annotated[list[str] | None, typer.Option(help="End at this text; repeatable.")]
StopToken = Annotated[list[int] | None, typer.Option(help="End at this token; repeatable.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.")]

DType = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
BlockSize = Annotated[int, typer.Option(help="Tokens per KV block.")]
PoolBytes = Annotated[int | None, typer.Option(help="Size of the KV pool.")]
MaxSeqs = Annotated[int, typer.Option(help="Sequences that run at once.")]
StepTokens = Annotated[int, typer.Option(help="Tokens computed in one step.")]
MaxLength = Annotated[int | None, typer.Option(help="Longest text, in tokens.")]
Reservation = Annotated[
    str, typer.Option(help="on_demand, or a baseline: max, pow2, oracle, static.")
]
EngineSeed = Annotated[int, typer.Option(help="Gives seeds to prompts without one.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="The same bits in any company; slower.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Never fetch a model.")]


@app.command()
def pull(
    alias: Annotated[str | None, typer.Argument(help="A known model; none: list them.")] = None,
) -> None:
    """Fetch a known model into the user's cache folder and check its sum."""
    from octavo.build import CATALOG, pull_model

    if alias is None:
        for entry in CATALOG.values():
            size = f"{entry.num_bytes / 1e6:.0f} MB"
            typer.echo(f"{entry.alias}  {entry.title}, {size}, {entry.licence}")
    else:
        typer.echo(pull_model(alias, lambda message: typer.echo(message, err=True)))


@app.command()
def generate(
    prompts: Prompts = None,
    file: PromptFile = None,
    model: Model = None,
    raw: Raw = False,
    n: Choices = 1,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    stop_token_id: StopToken = None,
    ignore_eos: IgnoreEos = False,
    dtype: DType = "auto",
    block_size: BlockSize = 16,
    kv_cache_memory_bytes: PoolBytes = None,
    max_num_seqs: MaxSeqs = 128,
    max_num_batched_tokens: StepTokens = 2048,
    max_model_len: MaxLength = None,
    reservation: Reservation = "on_demand",
    engine_seed: EngineSeed = 0,
    deterministic: Deterministic = False,
    offline: Offline = False,
    json: Json = False,
) -> int:
    """Answer prompts, all together."""
    from octavo import LLM, SamplingParams

    texts = _read_prompts(prompts, file)
    params = SamplingParams(
        n=n,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_id or ()),
        ignore_eos=ignore_eos,
    )
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
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        lines = [line for line in data.decode("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{file} is not UTF-8 at byte {error.start}: save it as UTF-8"
        ) from error
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}") from error
    if not lines:
        raise RequestError(f"{file} holds no prompt: write one a line")
    return lines


def _prompt(llm: LLM, text: str, *, raw: bool) -> Prompt:
    if not text.strip():
        raise RequestError("the prompt is empty: write what the model should answer")
    if raw:
        return text
    tokenizer = llm.get_tokenizer()
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    return {"prompt_token_ids": tokenizer.encode(rendered, add_special_tokens=False)}


def _print_text(texts: list[str], results: list[RequestOutput]) -> None:
    several = len(results) > 1 or any(len(result.outputs) > 1 for result in results)
    for text, result in zip(texts, results, strict=True):
        for answer in result.outputs:
            if several:
                typer.echo(f"── {text} [{answer.index}]")
            typer.echo(answer.text)
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
        "backend": "reference",
        "results": [
            _result_keys(text, result) for text, result in zip(texts, results, strict=True)
        ],
        "memory": msgspec.to_builtins(llm.memory_report()),
    }
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


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
            "logprobs": None,
        }
        for answer in result.outputs
    ]
    return {"prompt": text, "outputs": outputs} | {key: getattr(result, key) for key in keys}
