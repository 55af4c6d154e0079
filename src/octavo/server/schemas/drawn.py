"""What the routes of newer APIs take beside their conversation: one answer, and how it is drawn."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from octavo.server.schemas.common import ONE_MISTAKE, Body, CacheHintGiven, Whole, within
from octavo.server.terms import Terms

DRAWN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop_token_ids",
    "ignore_eos",
)
"""Fields whose name and meaning are those of `SamplingParams`."""


class DrawnBody(Body):
    """How the only answer is drawn and told. Beyond the first four fields it is ours."""

    model: str | None = Field(None, description="A name of the model; left out: the only one")
    stream: bool | None = None
    temperature: float | None = within(minimum=0, maximum=2)
    top_p: float | None = within(exclusiveMinimum=0, maximum=1)
    top_k: Whole | None = within(minimum=-1)
    min_p: float | None = within(minimum=0, maximum=1)
    seed: Whole | None = None
    min_tokens: Whole | None = within(minimum=0)
    presence_penalty: float | None = within(minimum=-2, maximum=2)
    frequency_penalty: float | None = within(minimum=-2, maximum=2)
    repetition_penalty: float | None = within(exclusiveMinimum=0)
    stop_token_ids: Annotated[list[Whole], ONE_MISTAKE] | None = None
    ignore_eos: bool | None = None
    stream_interval: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="Tokens that are sent together"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the model's template"
    )
    priority: Whole | None = Field(None, description="Lower goes first")
    request_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="Only requests with the same salt find each other's prompts in memory"
    )
    cache_hint: CacheHintGiven | None = None
    include_cache: bool | None = Field(None, description="Usage tells what was in memory, and why")

    def terms(self) -> Terms:
        """Return what is asked beside text and sampling. See `Terms`."""
        return Terms(
            model=self.model,
            request_id=self.request_id,
            stream=bool(self.stream),
            interval=self.stream_interval,
            usage=True,
            priority=self.priority or 0,
            cache_salt=self.cache_salt,
            wish=None if self.cache_hint is None else self.cache_hint.wish(),
            tells_cache=bool(self.include_cache),
            logged=self._logged,
        )

    def _logged(self) -> dict[str, object]:
        # A salt is a secret.
        texts = {"input", "instructions", "messages", "system", "tools", "cache_salt"}
        return self.model_dump(exclude_none=True, exclude=texts)
