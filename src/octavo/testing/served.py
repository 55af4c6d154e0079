"""Engines that compute nothing, for a process of their own: what tests name in a `CoreSpec`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from octavo import errors
from octavo.contract.batch import Batch, StepResult
from octavo.contract.retention import TenantShare
from octavo.engine.loop import Loop
from octavo.engine.messages import CoreFacts, CoreSpec
from octavo.models.gguf import GGUFFile
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.near_core import fake_loop
from octavo.text.grammars.backend import Vocabulary
from octavo.text.grammars.compiler import GrammarCompiler
from octavo.text.grammars.table import GRAMMAR_BACKENDS
from octavo.text.tokenizer import Tokenizer


class FakeCore(msgspec.Struct, frozen=True, kw_only=True):
    """How a fake engine is built, and what goes wrong with it."""

    num_blocks: int = 200
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 64
    max_model_len: int = 400
    vocab_size: int = 50
    by_priority: bool = False
    tenants: tuple[str, ...] = ()
    """Names; none is guaranteed anything."""
    pin_limit: float = 0.0
    gguf: str = ""
    """A file whose vocabulary answers are held to forms by; empty: they are held to none."""
    step_s: float = 0.0
    """What a step takes at least."""
    build_s: float = 0.0
    refuses: str = ""
    """It cannot be built: KIND:MESSAGE, with an exception of `octavo.errors` or of Python."""
    dies_at: int = 0
    """The process ends at this step, as by a signal; 0: never."""
    raises_at: int = 0
    """The runner raises at this step; 0: never."""
    hangs_at: int = 0
    """The runner never returns from this step; 0: never."""

    def spec(self) -> CoreSpec:
        """Return how a process builds it."""
        return CoreSpec("octavo.testing.served:fake_core", msgspec.msgpack.encode(self))


def fake_core(settings: bytes, report: Callable[[str], None]) -> tuple[Loop, CoreFacts]:
    """Build the engine that a `FakeCore` describes."""
    fake = msgspec.msgpack.decode(settings, type=FakeCore)
    report("a fake engine is built")
    time.sleep(fake.build_s)
    if fake.refuses:
        kind, _, message = fake.refuses.partition(":")
        raise getattr(errors, kind, ValueError)(message)
    grammars = grammars_of(fake.gguf, fake.vocab_size) if fake.gguf else None
    return fake_loop(
        fake.num_blocks,
        vocab_size=fake.vocab_size,
        max_num_seqs=fake.max_num_seqs,
        max_num_batched_tokens=fake.max_num_batched_tokens,
        max_model_len=fake.max_model_len,
        by_priority=fake.by_priority,
        tenants=[TenantShare(name=name) for name in fake.tenants],
        pin_limit=fake.pin_limit,
        runner=_Troubled(fake, grammars),
        grammars=grammars,
    )


def grammars_of(gguf: str, vocab_size: int) -> GrammarCompiler:
    """Return what holds answers to forms, over the vocabulary in a file."""

    def vocabulary() -> Vocabulary:
        return Vocabulary.of(Tokenizer.from_gguf(GGUFFile(Path(gguf)).metadata), vocab_size)

    return GrammarCompiler(vocabulary, GRAMMAR_BACKENDS)


class _Troubled:
    """A fake runner that takes its time, and to which what a `FakeCore` says happens."""

    def __init__(self, fake: FakeCore, grammars: GrammarCompiler | None) -> None:
        self._fake = fake
        self._runner = FakeRunner((4,), vocab_size=fake.vocab_size, grammars=grammars)
        self._steps = 0

    def submit(self, batch: Batch) -> None:
        self._runner.submit(batch)

    def collect(self) -> StepResult:
        self._steps += 1
        time.sleep(self._fake.step_s)
        if self._steps == self._fake.dies_at:
            os.abort()
        if self._steps == self._fake.raises_at:
            raise RuntimeError("the fake runner is out of order")
        while self._steps == self._fake.hangs_at:
            time.sleep(1)
        return self._runner.collect()

    def close(self) -> None:
        self._runner.close()
