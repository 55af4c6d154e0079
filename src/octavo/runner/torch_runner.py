"""The torch executor: a decoder, its KV memory and an attention backend on one torch device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.attention.backend import AttentionBackend
from octavo.contract.batch import Batch, Copy
from octavo.contract.layout import KVLayout
from octavo.errors import ConfigError
from octavo.models.decoder import Decoder
from octavo.models.exact import exact_row_tiles
from octavo.models.rows import ALL_AT_ONCE
from octavo.pages.arena import Arena
from octavo.runner.inputs import StepArrays
from octavo.runner.masks import Matchers
from octavo.runner.pooling import States
from octavo.runner.step_runner import Logits, StepRunner
from octavo.runner.tensors import step_tensors

TensorObserver = Callable[[Batch, Tensor], None]
"""Receives the logits of a step: [slices that sample, vocab_size] float32, in slice order."""


class TorchExecutor:
    """Computes steps on one torch device.

    deterministic: a token's logits have the same bits whether its prefix was reused or computed,
    whatever else is in the step and however the prompt was cut. Raises ConfigError if the backend
    cannot promise that, or cannot read what the arena stores.
    """

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        backend: AttentionBackend,
        *,
        deterministic: bool = False,
    ) -> None:
        if deterministic and not backend.batch_invariant:
            raise ConfigError(
                f"{type(backend).__name__} cannot give the same bits in every batch on "
                f"{arena.device}; choose another backend or turn deterministic off"
            )
        _check_formats(backend, arena)
        self.row_tiles = exact_row_tiles(decoder) if deterministic else ALL_AT_ONCE
        """In which row counts steps are computed; `sizes` is empty unless deterministic."""
        self._decoder = decoder
        self._arena = arena
        self._backend = backend
        self._states: Tensor | None = None

    @property
    def layout(self) -> KVLayout:
        """How the KV memory is laid out."""
        return self._arena.layout

    @property
    def num_blocks(self) -> int:
        """Blocks of KV memory."""
        return self._arena.num_blocks

    @property
    def vocab_size(self) -> int:
        """Tokens that are scored."""
        return self._decoder.spec.vocab_size

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy whole blocks, in order."""
        self._arena.copy(copies)

    @torch.inference_mode()
    def compute(self, step: StepArrays) -> None:
        """Write the KV of all rows, and keep the last states of the sampled ones."""
        inputs = step_tensors(step, self._arena.device)
        self._backend.plan(inputs)
        self._states = self._decoder.states(inputs, self._backend, self.row_tiles)

    @torch.inference_mode()
    def logits(self, first: int, count: int) -> Logits:
        """Score the vocabulary after some of the sampled rows of the last step."""
        assert self._states is not None, "logits before a step"
        rows = self._states[first : first + count]
        return self._decoder.score(rows, self.row_tiles).cpu().numpy()

    @torch.inference_mode()
    def states(self, first: int, count: int) -> States:
        """Return the last states of some of the sampled rows of the last step."""
        assert self._states is not None, "states before a step"
        rows = self._states[first : first + count]
        return self._decoder.normed(rows).float().cpu().numpy()

    def close(self) -> None:
        """Nothing goes on in the background."""


class TorchRunner(StepRunner):
    """Runs batches on a `TorchExecutor`, whose arguments and errors it shares.

    matchers: as of a `StepRunner`.
    """

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        backend: AttentionBackend,
        *,
        deterministic: bool = False,
        matchers: Matchers | None = None,
        on_logits: TensorObserver | None = None,
    ) -> None:
        executor = TorchExecutor(decoder, arena, backend, deterministic=deterministic)
        self.row_tiles = executor.row_tiles

        def observe(batch: Batch, rows: Logits) -> None:
            if on_logits is not None:
                on_logits(batch, torch.from_numpy(rows))

        watch = None if on_logits is None else observe
        super().__init__(executor, matchers=matchers, on_logits=watch)


def _check_formats(backend: AttentionBackend, arena: Arena) -> None:
    """Raise ConfigError if a backend cannot read what the arena stores."""
    if backend.reads is None:
        return
    strange = {arena.layout.keys.name, arena.layout.values.name} - backend.reads
    if strange:
        raise ConfigError(
            f"{type(backend).__name__} reads KV stored as {', '.join(sorted(backend.reads))}, not "
            f"as {' or '.join(sorted(strange))}: choose one of these as kv_cache_dtype, or another "
            "backend"
        )
