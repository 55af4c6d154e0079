"""The command `octavo generate`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.options import (
    Arithmetic,
    Backend,
    BlockSize,
    Deterministic,
    Device,
    DType,
    EnforceEager,
    EngineSeed,
    Eviction,
    Json,
    KVDType,
    LoadFormat,
    MaxLength,
    MaxSeqs,
    Model,
    Offline,
    PartialBlocks,
    PinLimit,
    PoolBytes,
    PromptFile,
    Prompts,
    Raw,
    Reservation,
    Scheduling,
    StepTokens,
    Tenants,
    Threads,
    Utilization,
)
from octavo.cli.output import note, print_json, say
from octavo.cli.sampling import with_sampling
from octavo.cli.wishes import Wishes, with_wishes
from octavo.contract.sampling import SamplingParams
from octavo.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.prompts import Prompt
    from octavo.results import RequestOutput


@with_sampling
@with_wishes
def generate(
    *,
    prompts: Prompts = None,
    file: PromptFile = None,
    model: Model = None,
    load_format: LoadFormat = "auto",
    raw: Raw = False,
    params: SamplingParams,
    wishes: Wishes,
    dtype: DType = "auto",
    kv_cache_dtype: KVDType = "auto",
    device: Device = "auto",
    block_size: BlockSize = 16,
    kv_cache_memory_bytes: PoolBytes = None,
    gpu_memory_utilization: Utilization = None,
    max_num_seqs: MaxSeqs = 128,
    max_num_batched_tokens: StepTokens = 2048,
    max_model_len: MaxLength = None,
    reservation: Reservation = "on_demand",
    scheduling_policy: Scheduling = "fcfs",
    eviction_policy: Eviction = "lru",
    partial_blocks: PartialBlocks = True,
    tenants: Tenants = None,
    pin_limit: PinLimit = 0.0,
    backend: Backend = "auto",
    cpu_arithmetic: Arithmetic = None,
    threads: Threads = None,
    enforce_eager: EnforceEager = False,
    engine_seed: EngineSeed = 0,
    deterministic: Deterministic = False,
    offline: Offline = False,
    json: Json = False,
) -> int:
    """Answer prompts, all together."""
    from octavo import LLM

    texts = _read_prompts(prompts, file)
    if not json:
        _check_shown(params)
    llm = LLM(
        model,
        load_format=load_format,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        seed=engine_seed,
        block_size=block_size,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        reservation=reservation,
        scheduling_policy=scheduling_policy,
        eviction_policy=eviction_policy,
        partial_blocks=partial_blocks,
        tenants=tenants,
        pin_limit=pin_limit,
        backend=backend,
        cpu_arithmetic=cpu_arithmetic,
        threads=threads,
        enforce_eager=enforce_eager,
        deterministic=deterministic,
        offline=offline,
    )
    return _answer(llm, texts, params, wishes, raw=raw, json=json)


def _answer(
    llm: LLM,
    texts: list[str],
    params: SamplingParams,
    wishes: Wishes,
    *,
    raw: bool,
    json: bool,
) -> int:
    raw = raw or _lacks_template(llm)
    results = llm.generate(
        [_prompt(llm, text, raw=raw) for text in texts],
        params,
        tenant=wishes.tenant,
        retention=wishes.retention,
        cache_hint=wishes.cache_hint,
    )
    if json:
        settings = {"sampling": params, "raw": raw, **asdict(wishes)}
        _print_json(llm, texts, settings, results)
    else:
        _print_text(texts, results)
    failed = any(answer.finish_reason == "error" for r in results for answer in r.outputs)
    return 1 if failed else 0


def _lacks_template(llm: LLM) -> bool:
    """Say so, if a model can only continue texts."""
    if llm.get_tokenizer().has_chat_template:
        return False
    note("note: a model without a chat template: it continues the texts")
    return True


def _check_shown(params: SamplingParams) -> None:
    """Raise ConfigError for an option whose outcome only --json shows."""
    asked = {
        "--logprobs": params.logprobs is not None,
        "--prompt-logprobs": params.prompt_logprobs is not None,
        "--no-detokenize": not params.detokenize,
    }
    for flag in (flag for flag, given in asked.items() if given):
        raise ConfigError(f"what {flag} asks for is only shown with --json: add that, or leave it")


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
                note(f"octavo: error: {answer.stop_reason}")


def _print_json(
    llm: LLM, texts: list[str], settings: dict[str, object], results: list[RequestOutput]
) -> None:
    import msgspec

    built = llm.built
    payload: dict[str, object] = {
        "model": built.model_path.name,
        "dtype": built.layout.dtype,
        "backend": built.backend,
        "results": [
            _result_keys(text, result) for text, result in zip(texts, results, strict=True)
        ],
        "memory": msgspec.to_builtins(llm.memory_report()),
    }
    print_json("octavo.generate/1", msgspec.to_builtins(settings), payload, config=llm.config)


def _result_keys(text: str, result: RequestOutput) -> dict[str, object]:
    keys = (
        "request_id",
        "prompt_token_ids",
        "num_cached_tokens",
        "miss",
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
