"""Output tokens a second with a JSON Schema on every request against the same without one.

32 requests at once, each with a schema of its own. They are the same in every round, so that they
are remembered from the first, which does not count; --fresh gives each request one that was never
compiled before, and compiling counts. Free answers and bound ones take turns, and which comes first
does too. All answers have the same number of tokens: a schema asks for more than fit, and free ones
go on beyond their end. No round's prompts begin like another's, so nothing is found in a cache.

    python benchmarks/structured/throughput.py --json docs/performance/records/structured.json

On a GPU, a folder with config.json and tokenizer.json is enough, since weights may be made up:

    python benchmarks/structured/throughput.py --model FOLDER --load-format dummy --requests 256
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

from octavo import LLM, SamplingParams, StructuredOutputs
from octavo.envelope import envelope

GOAL = 0.9
WORDS = [
    *("river", "stone", "cloud", "paper", "green", "silver"),
    *("morning", "letter", "winter", "garden", "answer", "window"),
]


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--model", help="a path or a known name; default: the embedded model")
    made.add_argument("--requests", type=int, default=32, help="at once")
    made.add_argument("--prompt", type=int, default=40, help="words")
    made.add_argument("--output", type=int, default=128, help="tokens")
    made.add_argument("--longest", type=int, help="tokens of a text; default: the model's context")
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--backend", default="auto")
    made.add_argument("--load-format", default="auto", help="dummy: with made-up weights")
    made.add_argument("--fresh", action="store_true", help="schemas that were never compiled")
    made.add_argument("--json", type=Path)
    options = made.parse_args()

    rows: list[dict[str, float]] = []
    with LLM(
        options.model,
        load_format=options.load_format,
        backend=options.backend,
        max_num_seqs=options.requests,
        max_model_len=options.longest,
    ) as llm:
        llm.built.finish_start()
        for number in range(-1, options.rounds):  # the first one warms up
            for temperature in (0.0, 1.0):
                row = compare(llm, options, number, temperature)
                if number >= 0:
                    rows.append(row)
                    say("  ".join(f"{name} {value:.3f}" for name, value in row.items()))
    shares = {
        f"temperature {at:g}": statistics.median(r["share"] for r in rows if r["temperature"] == at)
        for at in (0.0, 1.0)
    }
    met = all(share >= GOAL for share in shares.values())
    for name, share in shares.items():
        say(f"{name}: {share:.3f} of the free throughput, at least {GOAL}")
    if options.json is not None:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        document = envelope("octavo.structured.throughput/1", None, **settings)
        document |= {"load": os.getloadavg(), "rows": rows, "shares": shares, "met": met}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if met else 1


def compare(llm: LLM, options: argparse.Namespace, number: int, temperature: float):
    """Answer a round's prompts both ways; returns the rates."""
    draw = random.Random(number * 2 + temperature)
    prompts = [prompt_of(draw, options.prompt) for _ in range(options.requests)]
    common = {"temperature": temperature, "max_tokens": options.output, "seed": number + 1}
    free = [SamplingParams(**common, ignore_eos=True) for _ in prompts]
    schemas = draw if options.fresh else random.Random(1)
    bound = [
        SamplingParams(**common, structured_outputs=StructuredOutputs(json=schema_of(schemas)))
        for _ in prompts
    ]
    rates: dict[str, float] = {}
    for name, params in sorted({"free": free, "bound": bound}.items(), reverse=number % 2 == 0):
        llm.reset_prefix_cache()
        rates[name] = rate(llm, prompts, params, options.output)
    return {
        "round": number,
        "temperature": temperature,
        "free_tokens_per_s": rates["free"],
        "bound_tokens_per_s": rates["bound"],
        "share": rates["bound"] / rates["free"],
    }


def rate(llm: LLM, prompts: list[str], params: list[SamplingParams], output: int) -> float:
    before_s = time.perf_counter()
    results = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - before_s
    lengths = {len(one.token_ids) for result in results for one in result.outputs}
    assert lengths == {output}, f"answers of {sorted(lengths)} tokens instead of {output}"
    return len(results) * output / seconds


def prompt_of(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words)) + "\nAs JSON:\n"


def schema_of(draw: random.Random) -> dict[str, object]:
    """Return a schema whose answers are too long, with names that no other has."""
    names = [f"{draw.choice(WORDS)}_{draw.randrange(10_000)}" for _ in range(6)]
    kinds: list[dict[str, object]] = [
        {"type": "string", "maxLength": 30},
        {"type": "integer", "minimum": 0, "maximum": 100_000},
        {"type": "number"},
        {"enum": draw.sample(WORDS, 4)},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 5},
    ]
    item = {
        "type": "object",
        "properties": dict(zip(names, kinds, strict=True)),
        "required": names,
        "additionalProperties": False,
    }
    return {"type": "array", "items": item, "minItems": 500}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
