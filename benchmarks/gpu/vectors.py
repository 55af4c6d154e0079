"""Prompt tokens a second that are embedded, beside those that are read for one token of an answer.

2,000 texts of 100 to 300 tokens by default, no two alike, in a model's shape with made-up weights;
the prefix cache is emptied before every run, and the first run of each does not count. Texts of the
mean and of the last token take an engine each, since a model has one of them.

    python benchmarks/gpu/vectors.py --json docs/performance/records/gpu-vectors.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from octavo import LLM, SamplingParams
from octavo.bench.engine_facts import engine_facts
from octavo.envelope import envelope

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1)


def main() -> None:
    """Measure, and print a line for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--shortest", type=int, default=100, help="tokens")
    parser.add_argument("--longest", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    rows: list[dict[str, object]] = []
    facts = None
    for how in ("mean", "last"):
        with LLM(
            shape=options.shape,
            load_format="dummy",
            pooling=how,
            backend=options.backend,
            device=options.device,
            max_num_seqs=256,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=2048,
        ) as llm:
            llm.built.finish_start()
            facts = engine_facts(llm.built.backend, llm.built.device)
            prompts = draw(options, llm.built.spec.vocab_size)
            rows.append(measure(f"{how} vectors", llm, prompts, llm.embed, options.rounds))
            if how == "mean":
                rows.append(measure("one token each", llm, prompts, answer(llm), options.rounds))
    if options.json is not None:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        document = envelope("octavo.gpu.vectors/1", None, **settings)
        document |= {"engine": msgspec.to_builtins(facts), "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def draw(options: argparse.Namespace, vocab_size: int) -> list[dict[str, list[int]]]:
    """Draw prompts as token ids, always the same."""
    source = random.Random(0)
    lengths = [source.randint(options.shortest, options.longest) for _ in range(options.texts)]
    return [
        {"prompt_token_ids": [source.randrange(vocab_size) for _ in range(length)]}
        for length in lengths
    ]


def answer(llm: LLM) -> Callable[[list[dict[str, list[int]]]], object]:
    return lambda prompts: llm.generate(prompts, ONE_TOKEN, use_tqdm=False)


def measure(
    name: str,
    llm: LLM,
    prompts: list[dict[str, list[int]]],
    run: Callable[[list[dict[str, list[int]]]], object],
    rounds: int,
) -> dict[str, object]:
    """Run a kind of work once uncounted, then `rounds` times."""
    tokens = sum(len(one["prompt_token_ids"]) for one in prompts)
    seconds: list[float] = []
    for _ in range(rounds + 1):
        llm.reset_prefix_cache()
        begin = time.perf_counter()
        run(prompts)
        seconds.append(time.perf_counter() - begin)
    counted = seconds[1:]
    rate = tokens / statistics.median(counted)
    sys.stdout.write(
        f"{name:<16} {len(prompts):,} texts, {tokens:,} tokens: {rate:,.0f} tokens/s "
        f"({tokens / max(counted):,.0f} to {tokens / min(counted):,.0f})\n"
    )
    sys.stdout.flush()
    return {"work": name, "tokens": tokens, "seconds": counted, "tokens_per_s": rate}


if __name__ == "__main__":
    main()
