"""What `octavo replay` reads: a file, its format, and a tokenizer where it has text."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli import bench as options
from octavo.cli.output import note, print_json
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.replay.trace import Trace
    from octavo.replay.transcripts import Encode, Transcript


class Source:
    """A file of requests, and how to read it. Raises ConfigError for what it cannot be."""

    def __init__(self, path: Path, format: str | None, tokenizer: str | None) -> None:
        from octavo.replay.files import open_trace
        from octavo.replay.formats import TRANSCRIPT, find_format

        self._file = open_trace(path)
        self._format = find_format(self._file, format)
        self._text = self._format.name == TRANSCRIPT
        self._tokenizer = tokenizer
        if tokenizer is not None and not self._text:
            raise ConfigError(
                f"--tokenizer is for transcripts, but {self._file} is of format "
                f"{self._format.name}: leave it out"
            )

    def read(self, block_size: int | None) -> Trace:
        """Read it as blocks; None: as in the file, or as its kind has them as a rule."""
        trace = self._format.read(self._file, block_size, self._encode)
        if not self._format.shares:
            note(
                f"octavo: {self._file.name} has lengths alone: no prompt is known to begin like "
                "another, so nothing can hit"
            )
        return trace

    def transcript(self) -> Transcript:
        """Read it as tokens."""
        from octavo.replay.transcripts import read_transcript

        if not self._text:
            raise ConfigError(
                f"--mode blocks needs the text of prompts, but {self._file} is of format "
                f"{self._format.name}: give a transcript"
            )
        return read_transcript(self._file, self._encode())

    def keys(self) -> dict[str, object]:
        """Return what a JSON document says of it."""
        named: dict[str, object] = {"format": self._format.name}
        return named | ({"tokenizer": self._tokenizer} if self._text else {})

    def _encode(self) -> Encode:
        from octavo.build import open_tokenizer, resolve_model
        from octavo.models.checkpoint import open_checkpoint

        path = resolve_model(self._tokenizer, offline=False, report=note)
        tokenizer = open_tokenizer(open_checkpoint(path))
        return lambda text: tokenizer.encode(text, add_special_tokens=False)


def print_blocks(source: Source, sizes: list[int], *, json: bool) -> None:
    """Print what an endless cache loses by block size."""
    from octavo.progress import work_bar
    from octavo.replay.endings import block_size_rows
    from octavo.replay.show import block_size_table

    transcript = source.transcript()
    count = len(transcript.requests)
    with work_bar("requests", count * (1 + len(sizes))) as advance:
        rows = block_size_rows(transcript, sizes, advance=advance)
    if json:
        settings = source.keys() | {"mode": "blocks", "block_size": sizes}
        settings["python"] = platform.python_version()
        facts = {"name": transcript.name, "requests": count}
        print_json("octavo.replay.blocks/1", settings, {"trace": facts, "rows": rows})
    else:
        options.print_tables(block_size_table(rows, transcript.name, count))
