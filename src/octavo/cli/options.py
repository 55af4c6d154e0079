"""Options that several commands share; each is the type of a command's parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Prompts = Annotated[list[str] | None, typer.Argument(help="One or more prompts.")]
PromptFile = Annotated[
    Path | None, typer.Option(help="Read prompts from a UTF-8 file, one a line; - is stdin.")
]
Model = Annotated[
    str | None,
    typer.Option(help="A path, a known name or a hub id; default: the embedded one."),
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

DType = Annotated[str, typer.Option(help="Of the weights: auto, float32, bfloat16 or float16.")]
DEVICE_HELP = "cpu, cuda, cuda:1, …; auto: cuda if there is one."
Device = Annotated[str, typer.Option(help=DEVICE_HELP)]
KVDType = Annotated[
    str, typer.Option(help="How KV is stored: auto (as --dtype), int8, …, or two as KEYS/VALUES.")
]
BlockSize = Annotated[int, typer.Option(help="Tokens per KV block.")]
PoolBytes = Annotated[int | None, typer.Option(help="Size of the KV pool.")]
MaxSeqs = Annotated[int, typer.Option(help="Sequences that run at once.")]
StepTokens = Annotated[int, typer.Option(help="Tokens computed in one step.")]
MaxLength = Annotated[int | None, typer.Option(help="Longest text, in tokens.")]
Reservation = Annotated[
    str, typer.Option(help="on_demand, or a baseline: max, pow2, oracle, static.")
]
Scheduling = Annotated[str, typer.Option(help="Who runs first: fcfs, priority, or a plug-in's.")]
Eviction = Annotated[str, typer.Option(help="Which cached block goes first: lru, or a plug-in's.")]
Backend = Annotated[
    str, typer.Option(help="reference, cpu (native kernels, no torch), or a plug-in's.")
]
Arithmetic = Annotated[
    str | None, typer.Option(help="Of the backend cpu: int8 (default), bf16 or float32.")
]
Threads = Annotated[int | None, typer.Option(help="Of the backend cpu.")]
EngineSeed = Annotated[int, typer.Option(help="Gives seeds to prompts without one.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="The same bits in any company; slower.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Never fetch a model.")]
