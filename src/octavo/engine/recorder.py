"""Records requests into a file, beside the engine's steps: hashes and lengths, never text."""

from __future__ import annotations

import fcntl
import os
import queue
import secrets
import stat
import threading
import time
from array import array
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec

from octavo.contract.recording import HASH_BYTES, RecordedLine, RecordingHeader, pack_hashes
from octavo.contract.request import FinishReason, Request, Update
from octavo.errors import ConfigError

_MOST_WAITING = 4096
"""Requests that may wait to be written; more are left out rather than kept in memory."""
_LAST_WORDS_S = 10.0
"""How long `close` waits for what is not written yet."""
_BEGINS = b'{"schema":"octavo.recording/'
_LOOKED_AT = 4096
"""Bytes of a file that is there already."""


class _Answering:
    """A request whose end has not come."""

    __slots__ = ("began_s", "cached", "finish", "left", "request", "texts")

    def __init__(self, request: Request, began_s: float) -> None:
        self.request = request
        self.began_s = began_s
        self.texts = [array("i") for _ in range(request.sampling.choices)]
        """Answer of each choice."""
        self.left = request.sampling.choices
        """Choices that have not ended."""
        self.cached = 0
        self.finish: str = FinishReason.ABORT.value


class Recorder:
    """Writes one line for each request that ends, in a thread of its own.

    Hashes are keyed by a secret that this object alone knows and that is never written, so that
    nobody can find a text by trying. Whatever goes wrong with the file, no step and no request
    hears of it: there is one warning, and recording ends. A process that is forked records nothing.
    One file is for one recorder at a time, in whichever process.
    """

    def __init__(self, path: Path, block_size: int, warn: Callable[[str], None]) -> None:
        """Begin a recording at the end of a file.

        Raises ConfigError if it cannot be written, if another recorder writes to it, or if it holds
        something else.

        warn: told once, from another thread, if recording ends early or leaves something out.
        """
        self._path = path
        self._block_size = block_size
        self._warn = warn
        self._secret = secrets.token_bytes(32)
        self._process = os.getpid()
        self._start_s = time.monotonic()
        self._answering: dict[str, _Answering] = {}
        self._ended: queue.SimpleQueue[_Answering | None] = queue.SimpleQueue()
        self._warned = self._broken = False
        header = RecordingHeader(block_size=block_size, started_s=time.time())
        try:
            self._file = _open(path, msgspec.json.encode(header) + b"\n")
        except ConfigError:  # a ValueError too
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"record: cannot write to {str(path)!r}: {reason}; name another file"
            ) from None
        self._thread = threading.Thread(target=self._loop, name="octavo-recorder", daemon=True)
        self._thread.start()

    # ── what the engine tells ─────────────────────────────────────────────────────────────

    def begin(self, request: Request) -> None:
        """A request has been queued."""
        if self._records():
            began_s = time.monotonic() - self._start_s
            self._answering[request.id] = _Answering(request, began_s)

    def take_in(self, update: Update, finish: FinishReason | None) -> None:
        """A choice has new tokens, and with `finish` has ended."""
        one = self._answering.get(update.request_id)
        if one is None:
            return
        one.texts[update.index].extend(update.tokens)
        if not update.index:
            one.cached = update.cached_tokens
        if finish is not None:
            one.left -= 1
            if not update.index:
                one.finish = finish.value
            if not one.left:
                self._end(update.request_id)

    def abort(self, request_id: str) -> None:
        """A request has been ended before its time. Unknown: no effect."""
        if request_id in self._answering:
            self._end(request_id)

    def close(self) -> None:
        """Write what has ended; what has not is left out."""
        if os.getpid() == self._process and self._thread.is_alive():
            self._ended.put(None)
            self._thread.join(_LAST_WORDS_S)

    def _records(self) -> bool:
        return not self._broken and os.getpid() == self._process

    def _end(self, request_id: str) -> None:
        one = self._answering.pop(request_id)
        if not self._records():
            return
        if self._ended.qsize() >= _MOST_WAITING:
            self._complain(f"{self._path} takes longer to write than requests to answer: some are")
            return
        self._ended.put(one)

    # ── in the recorder's thread ──────────────────────────────────────────────────────────

    def _loop(self) -> None:
        with self._file, _unlocked_after(self._file):
            while (one := self._ended.get()) is not None:
                if self._broken:
                    continue
                try:
                    _write(self._file, msgspec.json.encode(self._line(one)) + b"\n")
                except OSError as error:
                    self._broken = True
                    reason = error.strerror or error
                    self._complain(f"{self._path} cannot be written ({reason}): all others are")

    def _line(self, one: _Answering) -> RecordedLine:
        request = one.request
        prompt = array("i", request.prompt)
        shared = len(prompt) // self._block_size * self._block_size
        root = self._hash(request.namespace.root())
        common = self._hashes(root, prompt[:shared])
        last = common[-1] if common else root
        # The last token of an answer is not written to memory.
        own = [self._hashes(last, prompt[shared:] + text[:-1]) for text in one.texts]
        lengths = [len(text) for text in one.texts]
        return RecordedLine(
            time_s=round(one.began_s, 6),
            prompt=len(request.prompt),
            output=lengths[0],
            blocks=pack_hashes(common + own[0]),
            tenant=self._hash(request.namespace.salt.encode()).hex(),
            cached=one.cached,
            outputs=tuple(lengths) if len(lengths) > 1 else (),
            others=tuple(map(pack_hashes, own[1:])),
            finish=one.finish,
        )

    def _hashes(self, key: bytes, text: array[int]) -> list[bytes]:
        """Return the hashes of a text's full blocks; key: of what stands before it."""
        size = self._block_size
        hashes: list[bytes] = []
        for start in range(0, len(text) - size + 1, size):
            key = self._hash(key + text[start : start + size].tobytes())
            hashes.append(key)
        return hashes

    def _hash(self, data: bytes) -> bytes:
        return blake2b(data, digest_size=HASH_BYTES, key=self._secret).digest()

    def _complain(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"octavo: {what} not recorded. Answers are not affected")


def _open(path: Path, first: bytes) -> BinaryIO:
    """Open a file for whole lines, behind what is there already, and write the first."""
    file = path.open("ab", buffering=0)
    try:
        _lock(file, path)
        there = os.fstat(file.fileno())
        if there.st_size and stat.S_ISREG(there.st_mode):
            _check_recording(path)
        # What is there may end in a line that was cut off.
        _write(file, b"\n" + first if there.st_size else first)
    except BaseException:
        file.close()
        raise
    return file


def _check_recording(path: Path) -> None:
    """Raise ConfigError for a file that holds something else, to which nothing must be added."""
    with path.open("rb") as file:
        begins = file.read(_LOOKED_AT).lstrip()
    # Of a header that was cut off, as much as there is.
    if not (begins.startswith(_BEGINS) or _BEGINS.startswith(begins)):
        raise ConfigError(
            f"record: {str(path)!r} holds something else than a recording: name another file"
        )


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep other recorders out; the lock ends with the process at the latest."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"record: another engine is recording into {str(path)!r}: close that one, or name "
            "another file"
        ) from None
    except OSError:
        return  # a file system without locks


@contextmanager
def _unlocked_after(file: BinaryIO) -> Generator[None, None, None]:
    """Let other recorders in at the end, also where a forked process has the file open still."""
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _write(file: BinaryIO, data: bytes) -> None:
    """Write all of it; a full disk takes a part, and refuses the rest."""
    while data:
        data = data[file.write(data) :]
