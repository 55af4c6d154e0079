"""Another engine as one side of a comparison: a process that hands over its logits."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from octavo.errors import ConfigError
from octavo.evaluate.arithmetic import Logits

_LEAVE_S = 5.0


class PeerScorer:
    """Speaks the protocol of `benchmarks/peers/logits_worker.py` with a process.

    Raises ConfigError if it cannot be started, if it ends, or if its vocabulary is of another
    size.
    """

    def __init__(
        self, python: Path, worker: Path, settings: dict[str, object], *, vocab_size: int
    ) -> None:
        """Start the worker with an environment's interpreter and load its engine.

        settings: sent first; see the worker.
        """
        self._vocab_size = vocab_size
        self._row = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        try:
            self._process = subprocess.Popen(
                [str(python), str(worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            self._errors.close()
            raise ConfigError(f"{python} cannot be started: {error.strerror}") from None
        self.name = "the other engine"
        try:
            answer = self._ask(settings)
            self.name = str(answer["engine"])
            if answer["vocab_size"] != vocab_size:
                raise ConfigError(
                    f"{self.name} scores {answer['vocab_size']} tokens, octavo {vocab_size}: they "
                    "cannot be compared"
                )
        except BaseException:
            self.close()
            raise

    def compute(self, tokens: tuple[int, ...]) -> None:
        """Take in a text; the process begins to send its logits."""
        answer = self._ask({"tokens": list(tokens)})
        assert answer["rows"] == len(tokens) - 1, f"{answer} for {len(tokens)} tokens"
        self._row = 0

    def logits(self, first: int, count: int) -> Logits:
        """Receive the next rows: [count, vocab_size]."""
        assert first == self._row, f"row {first} is asked for, the next one is {self._row}"
        self._row += count
        shape = (count, self._vocab_size)
        data = self._read(count * self._vocab_size * 4)
        return np.frombuffer(data, dtype=np.float32).reshape(shape)

    def close(self) -> None:
        """End the process; a second call has no effect."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        with contextlib.suppress(OSError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _ask(self, command: dict[str, object]) -> dict[str, object]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it has ended: reading says so
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise self._lost()
        answer: dict[str, object] = json.loads(line)
        if "error" in answer:
            raise ConfigError(f"{self.name}: {answer['error']}")
        return answer

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise self._lost()
        return data

    def _lost(self) -> ConfigError:
        try:
            status = f"with status {self._process.wait(_LEAVE_S)}"
        except subprocess.TimeoutExpired:
            status = "its output"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1].strip()}" if lines else ""
        return ConfigError(f"{self.name} ended {status}{last}")
