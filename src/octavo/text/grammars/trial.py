"""Tries forms in a process of its own: python -m octavo.text.grammars.trial BACKEND.

No library bounds all that it does: some small schemas take it hours or all memory, and deep ones
end the process. Here that is the end of this process alone, and the form is refused.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import IO

import msgspec
import numpy as np

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.text.grammars.backend import GrammarMaker, TokenMatcher, Vocabulary
from octavo.text.grammars.table import GRAMMAR_BACKENDS, READS_SPELLING

WORK_S = 1.0
"""Seconds of a processor that a form may take."""
_WAIT_S = 30.0
"""Seconds on the wall, where others leave it less than a processor."""
_START_S = 60.0
"""For the interpreter and the vocabulary."""
GROWTH_BYTES = 128 << 20
"""Memory that a form may take."""
_ADDRESS_BYTES = 2 << 30
"""Address space beside what there is once the library is loaded: what asks for more at once, before
it is counted, ends."""
_STACK_BYTES = 512 << 20
_STEPS = 16
"""Tokens of an answer that is tried: what a library puts off until it computes a mask counts."""
_IS_MAC = sys.platform == "darwin"
_LENGTH = struct.Struct("<I")


class _Words(msgspec.Struct):
    """A vocabulary."""

    definition: str
    size: int
    ends: tuple[int, ...]
    spelled: tuple[bytes, ...] = ()
    """Its tokens, for libraries that read them; others find them in the definition."""

    @classmethod
    def of(cls, vocabulary: Vocabulary, backend: str) -> _Words:
        tokens = range(vocabulary.size if backend in READS_SPELLING else 0)
        spelled = tuple(vocabulary.spell(token) for token in tokens)
        return cls(vocabulary.definition, vocabulary.size, vocabulary.ends, spelled)

    def vocabulary(self) -> Vocabulary:
        spelled = dict(enumerate(self.spelled))
        return Vocabulary(
            self.definition, self.size, self.ends, lambda token: spelled.get(token, b"")
        )


class Trial:
    """Tries forms with one library over one vocabulary; for use from one thread at a time.

    The process is started when a form comes, and once more after one that ended it.
    """

    def __init__(self, backend: str, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._words = _Words.of(vocabulary, backend)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, form: StructuredOutputs) -> None:
        """Raise RequestError for a form that cannot be compiled, or not with so much work."""
        process = self._process
        if process is None or process.poll() is not None:  # ended by somebody else, as Ctrl-C
            self.close()
            process = self._start()
        if process is None:
            raise RequestError(
                "structured_outputs: the process that tries forms does not start: leave it out"
            )
        answer = self._ask(process, msgspec.msgpack.encode(form), _WAIT_S)
        if answer is None:
            self.close()
            raise RequestError(
                f"structured_outputs: {form.form}: it takes more than {WORK_S:g} s of work, or too "
                "much memory or depth, to compile: make it simpler"
            )
        if answer:
            raise RequestError(answer.decode())

    def close(self) -> None:
        """End the process. Once more: no effect."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes] | None:
        # -P: what happens to lie in the current folder is not imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "octavo.text.grammars.trial", self._backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._ask(self._process, msgspec.msgpack.encode(self._words), _START_S) is None:
            self.close()
        return self._process

    @staticmethod
    def _ask(process: subprocess.Popen[bytes], question: bytes, patience_s: float) -> bytes | None:
        """Return the answer to a question; None: there is none."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, question)
        except OSError:
            return None
        if not select.select([process.stdout], [], [], patience_s)[0]:
            return None
        return _read(process.stdout)


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """Return what has been written; None: the stream has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None


def main(backend: str) -> None:
    """Answer one form after another: nothing if it can be compiled, else why not."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints
    words = _read(questions)
    if words is None:
        return
    vocabulary = msgspec.msgpack.decode(words, type=_Words).vocabulary()
    maker, error = None, b""
    try:
        maker = GRAMMAR_BACKENDS[backend](vocabulary)
    except RequestError as refusal:
        error = str(refusal).encode()
    _limit_addresses()
    _write(answers, b"")
    while (question := _read(questions)) is not None:
        form = msgspec.msgpack.decode(question, type=StructuredOutputs)
        # Ends the process, wherever it is.
        signal.setitimer(signal.ITIMER_PROF, WORK_S)
        before = _most_memory()
        answer = error if maker is None else _try(maker, form, vocabulary.size)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if _most_memory() - before > GROWTH_BYTES:
            return
        _write(answers, answer)


def _limit_addresses() -> None:
    """Let the process map no more than so much beside what it has, where that can be said."""
    with suppress(ValueError, OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _ADDRESS_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _most_memory() -> int:
    """Return the most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if _IS_MAC else 1024)


def _try(maker: GrammarMaker, form: StructuredOutputs, size: int) -> bytes:
    """Compile a form and write an answer that it allows; return what is wrong with it."""
    try:
        matcher = maker.compile(form).start()
        _walk(matcher, size)
    except RequestError as refusal:
        return str(refusal).encode()
    return b""


def _walk(matcher: TokenMatcher, size: int) -> None:
    draw, mask = Random(0), np.zeros(-(-size // 32), dtype=np.int32)
    for _ in range(_STEPS):
        matcher.fill(mask)
        words = np.flatnonzero(mask)
        if not len(words):
            return
        word = int(draw.choice(words))
        bits = [bit for bit in range(32) if int(mask[word]) >> bit & 1]
        try:
            matcher.consume([32 * word + draw.choice(bits)])
        except RequestError:
            return  # nothing may follow an end


if __name__ == "__main__":
    threading.stack_size(_STACK_BYTES)
    deep = threading.Thread(target=main, args=(sys.argv[1],))
    deep.start()
    deep.join()
