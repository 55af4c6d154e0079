"""The page of all flags of `octavo serve`: python -m octavo.cli.serve_page > FILE."""

from __future__ import annotations

import sys

from octavo.cli.serve_flags import Effect, Flag, Kind, write
from octavo.cli.serve_table import GROUPS
from octavo.cli.synonyms import SYNONYMS

_HEAD = """\
# Flags of `octavo serve`

Names are vLLM's where it has the same setting; several of SGLang's are understood. In a name,
dashes and underscores are the same. A switch `--name` is turned off by `--no-name`. Whole numbers
may be written 8k (8000), 8K (8192), 2GiB.

`--config file.yaml` gives flags as `name: value` lines, without the two dashes; a flag on the
line goes before. For those that are not given, variables of the environment count:
`OCTAVO_API_KEY` (or `VLLM_API_KEY`), `OCTAVO_ADMIN_API_KEY`, `VLLM_MAX_N_SEQUENCES`,
`VLLM_BATCH_INVARIANT` (as `--deterministic`).

A flag that asks for what there is not is refused, with the reason; one that means nothing here is
taken with a warning, so that scripts keep running. This page is written by `python -m
octavo.cli.serve_page`.
"""


def flags_page() -> str:
    """Return the page, in Markdown."""
    pieces = [_HEAD]
    for title, rows in GROUPS.items():
        pieces.append(f"## {title[0].upper()}{title[1:]}\n")
        pieces.append("| flag | value | default | |\n|---|---|---|---|")
        pieces += [_row(flag) for flag in rows]
        pieces.append("")
    return "\n".join(pieces)


def _row(flag: Flag) -> str:
    names = ", ".join(f"`{name}`" for name in (flag.spelled, *flag.letters))
    works = flag.effect is Effect.WORKS
    default = "" if flag.default is None or not works else f"`{write(flag.default)}`"
    if flag.kind is Kind.WORD:
        default = ""
    notes = {one.flag.name: one.note for one in SYNONYMS if one.note}
    said = flag.help if works else flag.said
    if flag.name in notes:
        said = f"{said.removesuffix('.')}: {notes[flag.name]}."
    cells = (names, flag.kind.value or "switch", default, said)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(flags_page())
