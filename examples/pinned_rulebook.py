"""Questions over one pinned rulebook while other traffic fills the memory: it is computed once.

python examples/pinned_rulebook.py [--requests 40] [--unpinned]
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console

from octavo import LLM, Retention, SamplingParams

ROUND = 4
"""Questions between two waves of other traffic."""


def main() -> None:
    """Ask, and print how much of the rulebook each question found in memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--unpinned", action="store_true", help="the same without the pin")
    options = parser.parse_args()
    llm = LLM(pin_limit=0.5, kv_cache_memory_bytes=32 << 20, max_model_len=1024)
    rules = "".join(f"Rule {i}: a player may move {i} fields.\n" for i in range(1, 31))
    length = len(llm.get_tokenizer().encode(rules))
    pin = None if options.unpinned else Retention(end=length, pin="rules", ttl_s=600)
    short = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    found, waited = list[int](), 0.0
    for first in range(0, options.requests, ROUND):
        others = [f"Story {first + i}. " + f"{first + i} times told. " * 100 for i in range(6)]
        llm.generate(others, short, use_tqdm=False)
        numbers = range(first, min(first + ROUND, options.requests))
        questions = [f"{rules}Question {number}: may I?" for number in numbers]
        began = time.perf_counter()
        results = llm.generate(questions, short, use_tqdm=False, retention=pin)
        waited += time.perf_counter() - began
        found += [result.num_cached_tokens or 0 for result in results]
    usage, show = llm.built.engine.usage(), Console().print
    show(f"rulebook: {length} tokens, {length // 16 * 16} of them in whole blocks of 16")
    show(f"found in memory, by question: {found}")
    show(f"seconds for {len(found)} answers: {waited:.1f}")
    show(f"blocks: {dict(usage.tenant_blocks)}, of them pinned: {usage.blocks_pinned}")


if __name__ == "__main__":
    main()
