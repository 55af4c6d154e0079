"""The goals and rows of records as Markdown, for docs/performance/serving.md.

python benchmarks/serving/table.py docs/performance/records/serving-*.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    lines = ["| goal | bound | found | |", "|---|--:|--:|---|"]
    for document in documents:
        for goal in document["goals"]:
            verdict = "met" if goal["met"] else "**missed**"
            bound, found = goal["bound"], goal["found"]
            lines.append(f"| {goal['name']} | {bound:g} | {found:.4g} | {verdict} |")
    for document in documents:
        names = list(document["rows"][0])
        about = (
            f"{document['schema']}, {document['machine']['cpu']}, load {document['load'][0]:.1f}"
        )
        lines += ["", about, "", row(names), row(["--:"] * len(names))]
        lines += [row([cell(one[name]) for name in names]) for one in document["rows"]]
    sys.stdout.write("\n".join(lines) + "\n")


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
