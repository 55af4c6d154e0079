"""Eight chat requests that share a system prompt, answered together; then what memory was used for.

Run it with `make demo`, or with any model: `python examples/demo.py --model PATH`.
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

from octavo import LLM, SamplingParams
from octavo.results import MemoryReport

SYSTEM = (
    "You are the help desk of a public library. Visitors ask you about books, opening hours, "
    "loans, fines, rooms, printing, and much else besides. Be friendly and be brief: one or two "
    "plain sentences, no lists, no headings. If a question has a short answer, give the short "
    "answer first and one useful fact after it. If you do not know, say so, and say who would. "
    "Never invent opening hours, prices or names of staff. The library lends books for four "
    "weeks, films for one week, and does not lend newspapers. Reading rooms are free of charge."
)

QUESTIONS = (
    "How long may I keep a book?",
    "May I borrow yesterday's newspaper?",
    "What is the capital of France?",
    "Who wrote Moby Dick?",
    "Is the reading room free?",
    "Name a good first book about the stars.",
    "How long may I keep a film?",
    "What is an octavo?",
)


def main() -> None:
    """Answer the questions and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a path or a known name; default: the embedded model")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()

    llm = LLM(options.model)
    tokenizer = llm.get_tokenizer()
    prompts = []
    for question in QUESTIONS:
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat)
        ids = tokenizer.encode(text, add_special_tokens=False)
        prompts.append({"prompt_token_ids": ids})

    start = time.monotonic()
    results = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=options.max_tokens))
    seconds = time.monotonic() - start

    console = Console()
    for question, result in zip(QUESTIONS, results, strict=True):
        console.print(f"[bold]{question}[/bold]")
        console.print(f"  {result.outputs[0].text.strip()}\n", markup=False, highlight=False)
    tokens = sum(len(result.outputs[0].token_ids) for result in results)
    console.print(report(llm.memory_report(), tokens, seconds))


def report(memory: MemoryReport, tokens: int, seconds: float) -> Table:
    """Lay the memory report out for people."""
    table = Table(title="KV memory", title_justify="left", show_header=False)
    used, logical = memory.blocks_used_peak, memory.logical_blocks_peak
    share, waste = memory.token_share_of_allocated or 0.0, memory.waste_share or 0.0
    hits, queries = memory.prefix_hit_tokens, memory.prefix_query_tokens
    rows = (
        ("blocks of the pool", f"{memory.blocks_total} of {memory.block_size} tokens"),
        ("blocks in use, at most", f"{used} (without sharing it would be {logical})"),
        ("blocks held by several requests", f"{memory.blocks_shared_peak}"),
        ("allocated memory holding tokens", f"{share:.1%}"),
        ("waste", f"{waste:.1%}"),
        ("prompt tokens found in memory", f"{hits} of {queries} ({hits / queries:.0%})"),
        ("copies, preemptions", f"{memory.copies}, {memory.preemptions}"),
        ("answered", f"{tokens} tokens in {seconds:.1f} s"),
    )
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    main()
