"""`octavo chat`: talk to a model in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from octavo.cli.flags import Option
from octavo.cli.options import (
    Device,
    KVDType,
    MaxLength,
    MaxTokens,
    Model,
    Offline,
    Scheduling,
    Seed,
    Temperature,
    TopP,
)
from octavo.cli.output import note, say, write_bytes
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo import SamplingParams
    from octavo.llm import LLM

HELP = "/reset forgets the conversation, /exit or Ctrl-D ends; Ctrl-C stops an answer."


def chat(
    model: Model = None,
    system: Annotated[str | None, Option(help="What the model is told first.")] = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    seed: Seed = None,
    kv_cache_dtype: KVDType = "auto",
    device: Device = "auto",
    max_model_len: MaxLength = None,
    scheduling_policy: Scheduling = "fcfs",
    offline: Offline = False,
) -> None:
    """Talk to a model. Each turn finds the conversation so far in memory."""
    from octavo import LLM, SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    llm = LLM(
        model,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        max_model_len=max_model_len,
        scheduling_policy=scheduling_policy,
        offline=offline,
    )
    note(HELP)
    _talk(llm, params, system)


def _talk(llm: LLM, params: SamplingParams, system: str | None) -> None:
    start = [{"role": "system", "content": system}] if system else []
    history = list(start)
    while (line := _read_line()) is not None:
        match line:
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/reset":
                history = list(start)
            case "/help":
                note(HELP)
            case _ if line.startswith("/"):
                note(f"{line.split()[0]} is no command. {HELP}")
            case _:
                history = _turn(llm, params, history, line)


def _turn(
    llm: LLM, params: SamplingParams, history: list[dict[str, str]], line: str
) -> list[dict[str, str]]:
    """Answer a line; returns the history with this turn, or without it if it cannot be answered."""
    asked = [*history, {"role": "user", "content": line}]
    try:
        answer = _answer(llm, params, asked)
    except RequestError as error:
        note(f"octavo: error: {error} (/reset forgets the conversation)")
        return history
    return [*asked, {"role": "assistant", "content": answer}]


def _read_line() -> str | None:
    """Return what the user typed, or None at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def _answer(llm: LLM, params: SamplingParams, history: list[dict[str, str]]) -> str:
    """Print an answer as it comes; Ctrl-C stops it, what has been said stays in the history."""
    pieces: list[str] = []
    stream = llm.stream(llm.chat_prompt(history), params)
    try:
        for delta in stream:
            pieces.append(delta.text)
            write_bytes(delta.text.encode("utf-8"))
    except KeyboardInterrupt:
        stream.close()
    say("")
    return "".join(pieces)
