"""Print a record of `octavo bench peers --json` as a Markdown table: table.py RECORD.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def table(record: dict) -> str:
    """Lay out medians with their ranges, one work a line."""
    engines = list(dict.fromkeys(s["engine"] for row in record["rows"] for s in row["speeds"]))
    lines = [
        "| work | " + " | ".join(engines) + " | octavo ÷ best other | goal | met |",
        "|---|" + "--:|" * (len(engines) + 3),
    ]
    for row in record["rows"]:
        speeds = {speed["engine"]: cell(speed) for speed in row["speeds"]}
        shown = [speeds.get(engine, "") for engine in engines]
        lines.append("| " + " | ".join([row["match"], *shown, *ratio(row)]) + " |")
    return "\n".join([*lines, "", caption(record)])


def cell(speed: dict) -> str:
    low, median, high = (speed[key] for key in ("slowest", "tokens_per_s", "fastest"))
    return f"{median:,.0f} ({low:,.0f} to {high:,.0f})"


def ratio(row: dict) -> list[str]:
    if row["ratio"] is None:
        return ["", f"{row['goal']:.1f}", ""]
    low, high = row["ratio_range"]
    shown = f"**{row['ratio']:.2f}** ({low:.2f} to {high:.2f}, {row['best_peer']})"
    return [shown, f"{row['goal']:.1f}", "yes" if row["met"] else "no"]


def caption(record: dict) -> str:
    """Say where and with what the record was made."""
    machine, config = record["machine"], record["config"]
    speeds = [
        value / 1e9
        for row in record["rows"]
        for speed in row["speeds"]
        for run in speed["rounds"]
        for value in run["read_bytes_per_s"]
    ]
    return (
        f"{', '.join(dict.fromkeys(record['versions'].values()))}; {config['model']}; "
        f"{config['threads']} threads; {config['rounds']} rounds; {machine['cores']} cores of "
        f"{machine['cpu']}; memory read at {min(speeds):.0f} to {max(speeds):.0f} GB/s; "
        f"commit {(record['commit'] or 'unknown')[:10]}."
    )


if __name__ == "__main__":
    sys.stdout.write(table(json.loads(Path(sys.argv[1]).read_text())) + "\n")
