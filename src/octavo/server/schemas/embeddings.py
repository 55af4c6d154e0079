"""Bodies of `/v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from octavo.server.schemas.common import ONE_MISTAKE, Body, Whole, within
from octavo.server.schemas.completions import CompletionBody
from octavo.server.schemas.replies import Reply
from octavo.server.terms import Terms

_Texts: TypeAlias = Annotated[list[str], ONE_MISTAKE]
_Ids: TypeAlias = Annotated[list[Whole], ONE_MISTAKE]


class EmbeddingBody(Body):
    """Prompts to be embedded."""

    model: str | None = Field(None, description="A name of the model; left out: the only one")
    input: str | _Texts | _Ids | Annotated[list[_Ids], ONE_MISTAKE] = Field(
        description="One text or several, or the same as token ids"
    )
    encoding_format: Literal["float", "base64"] | None = Field(None, description="Left out: float")
    dimensions: Whole | None = within(minimum=1, about="Numbers that are kept, the first")
    normalize: bool | None = Field(None, description="False: the vector keeps its length")
    truncate_prompt_tokens: Whole | None = Field(
        None, description="Keep so many tokens, the last; -1: as many as the context has room for"
    )
    add_special_tokens: bool | None = None
    priority: Whole | None = Field(None, description="Lower goes first")
    request_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None

    def terms(self) -> Terms:
        """Return what is asked beside the prompts. See `Terms`."""
        return Terms(
            model=self.model,
            request_id=self.request_id,
            priority=self.priority or 0,
            cache_salt=self.cache_salt,
            logged=lambda: self.model_dump(exclude_none=True, exclude={"input", "cache_salt"}),
        )

    def prompts(self) -> CompletionBody:
        """Return its prompts as those of a completion, which are read alike."""
        return CompletionBody.model_validate(
            {
                "prompt": self.input,
                "max_tokens": 1,
                "truncate_prompt_tokens": self.truncate_prompt_tokens,
                "add_special_tokens": self.add_special_tokens,
            }
        )


class EmbeddingReplyRow(Reply):
    """The vector of one prompt."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="base64: float32, little-endian")


class EmbeddingUsage(Reply):
    """Tokens of all prompts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(Reply):
    """The vectors of all prompts, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str | None
    data: list[EmbeddingReplyRow]
    usage: EmbeddingUsage
