"""What a caller may ask of sampling, checked once when the value is made."""

from __future__ import annotations

import math

import msgspec

from octavo.errors import RequestError


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to choose the tokens of one request; names and defaults are vLLM's.

    An unknown option is a `TypeError`, an impossible value a `RequestError`.
    """

    n: int = 1
    """Number of independent answers to the prompt."""
    temperature: float = 1.0
    """0 is greedy; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities sum to at least this."""
    seed: int | None = None
    """None: derived from the engine's seed and the number of the request."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; given as one string or several, not part of the answer."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Emit the end token like any other and go on; it is not banned."""
    max_tokens: int | None = 16
    """None: as many as context and memory allow."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        msgspec.structs.force_setattr(self, "stop", stop)
        msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        self._check_types()
        self._check_ranges()

    def _check_types(self) -> None:
        for name in ("n", "top_k", "seed", "max_tokens"):
            value = getattr(self, name)
            if value is None and name in ("seed", "max_tokens"):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise RequestError(f"{name} must be a whole number, got {value!r}")
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise RequestError(f"{name} must be a number, got {value!r}")
        for text in self.stop:
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RequestError(f"stop must be a text or several, got {text!r}")
        for token in self.stop_token_ids:
            if not isinstance(token, int) or isinstance(token, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RequestError(f"stop_token_ids must be token ids, got {token!r}")

    def _check_ranges(self) -> None:
        if self.n < 1:
            raise RequestError(f"n must be at least 1, got {self.n}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(f"temperature must be 0 or more, got {self.temperature}")
        if self.n > 1 and self.greedy:
            raise RequestError(
                f"n must be 1 when sampling is greedy (temperature 0), got {self.n}: "
                "all answers would be the same; raise temperature"
            )
        if self.top_k < -1:
            raise RequestError(f"top_k must be -1 or 0 (all) or at least 1, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if "" in self.stop:
            raise RequestError("stop must not hold an empty text: it would match at once")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise RequestError(f"seed must fit 64 bits, got {self.seed}")

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature == 0
