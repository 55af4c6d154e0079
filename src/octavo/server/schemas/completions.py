"""Bodies of `/v1/completions`."""

from __future__ import annotations

from pydantic import Field

from octavo.server.schemas.common import SamplingBody, Whole, within


class CompletionBody(SamplingBody):
    """Prompts to be continued."""

    prompt: str | list[str] | list[Whole] | list[list[Whole]] = Field(
        description="One text or several, or the same as token ids"
    )
    logprobs: Whole | None = within(minimum=0, about="Likely tokens told for each position")
    best_of: Whole | None = Field(None, description="Nothing but n")
