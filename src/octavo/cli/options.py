"""Options that several commands share; each is the type of a command's parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from octavo.cli.flags import Argument, Option

Prompts = Annotated[list[str] | None, Argument(help="One or more prompts.")]
PromptFile = Annotated[
    Path | None, Option(help="Read prompts from a UTF-8 file, one a line; - is stdin.")
]
Model = Annotated[
    str | None,
    Option(help="A path, a known name or a hub id; default: the embedded one."),
]
LoadFormat = Annotated[str, Option(help="auto, or dummy: made-up weights, for measuring.")]
Shape = Annotated[
    str | None,
    Option(help="With dummy weights, in place of a model: llama-3.1-8b and others."),
]
Raw = Annotated[bool, Option("--raw", help="Continue the text: no chat template.")]
Json = Annotated[bool, Option("--json", help="Print one JSON document.")]

Choices = Annotated[int, Option("--n", help="Answers per prompt.")]
MaxTokens = Annotated[int, Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float, Option(help="0 is greedy.")]
TopK = Annotated[int, Option(help="Keep the k most likely tokens; 0: all.")]
TopP = Annotated[float, Option(help="Keep this much probability.")]
Seed = Annotated[int | None, Option(help="Of the random numbers of each prompt.")]
Stop = Annotated[list[str] | None, Option(help="End at this text; repeatable.")]
StopToken = Annotated[list[int] | None, Option(help="End at this token; repeatable.")]
IgnoreEos = Annotated[bool, Option("--ignore-eos", help="Go on after the end token.")]

DType = Annotated[str, Option(help="Of the weights: auto, float32, bfloat16 or float16.")]
DEVICE_HELP = "cpu, cuda, cuda:1, …; auto: cuda if there is one."
Device = Annotated[str, Option(help=DEVICE_HELP)]
KVDType = Annotated[
    str, Option(help="How KV is stored: auto (as the backend computes), int8, …, or KEYS/VALUES.")
]
BlockSize = Annotated[int, Option(help="Tokens per KV block.")]
PoolBytes = Annotated[int | None, Option(help="Size of the KV pool.")]
Utilization = Annotated[
    float | None, Option(help="Share of a GPU's memory that may be used; without it, 0.9.")
]
MaxSeqs = Annotated[int, Option(help="Sequences that run at once.")]
StepTokens = Annotated[int, Option(help="Tokens computed in one step.")]
MaxLength = Annotated[int | None, Option(help="Longest text, in tokens.")]
Reservation = Annotated[str, Option(help="on_demand, or a baseline: max, pow2, oracle, static.")]
Scheduling = Annotated[str, Option(help="Who runs first: fcfs, priority, or a plug-in's.")]
Eviction = Annotated[
    str,
    Option(
        metavar="NAME|{NAME, …}",
        help="Which cached block goes first: lru, lfu, fifo, s3fifo, arc, bonus, gittins, cost, "
        "hotprefix or a plug-in's; with parameters: '{name: lfu, remember: 4}'.",
    ),
]
PartialBlocks = Annotated[
    bool, Option(help="Copy what a prompt shares with the beginning of a cached block.")
]
BACKEND_HELP = (
    "auto, cpu (native kernels, no torch), triton or flashinfer (NVIDIA GPUs), reference (torch), "
    "or a plug-in's."
)
Backend = Annotated[str, Option(help=BACKEND_HELP)]
Arithmetic = Annotated[
    str | None, Option(help="Of the backend cpu: int8 (default), bf16 or float32.")
]
Threads = Annotated[int | None, Option(help="Of the backend cpu.")]
EnforceEager = Annotated[
    bool, Option("--enforce-eager", help="On a GPU: no captured graphs. Slower; less memory.")
]
EngineSeed = Annotated[int, Option(help="Gives seeds to prompts without one.")]
Deterministic = Annotated[
    bool,
    Option("--deterministic", help="The same bits in any company; cpu: always so."),
]
Offline = Annotated[bool, Option("--offline", help="Never fetch a model.")]
