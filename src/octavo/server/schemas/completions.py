"""Bodies of `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from octavo.server.schemas.common import ONE_MISTAKE, SamplingBody, Whole, within

_Texts: TypeAlias = Annotated[list[str], ONE_MISTAKE]
_Ids: TypeAlias = Annotated[list[Whole], ONE_MISTAKE]


class CompletionBody(SamplingBody):
    """Prompts to be continued."""

    prompt: str | _Texts | _Ids | Annotated[list[_Ids], ONE_MISTAKE] = Field(
        description="One text or several, or the same as token ids"
    )
    logprobs: Whole | None = within(minimum=0, about="Likely tokens told for each position")
    best_of: Whole | None = Field(None, description="Nothing but n")
