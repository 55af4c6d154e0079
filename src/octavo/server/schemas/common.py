"""Fields that several routes take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from octavo.errors import RequestError
from octavo.server.cache_wishes import CacheWish, Says
from octavo.server.failures import ApiError
from octavo.server.fields import sift
from octavo.server.schemas.answer_forms import ResponseFormat
from octavo.server.terms import Terms

Whole: TypeAlias = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""JSON has whole numbers of any length; nothing here counts so far."""


MOST_PIN_CHARS = 256
"""Of a pin's name."""

ONE_MISTAKE: Any = Field(fail_fast=True)
"""Of a list: its first mistake is told, and no others are looked for."""


def within(*, about: str | None = None, **limits: float) -> Any:  # a field, as pydantic has it
    """Return an optional field that the document says to be within limits.

    They are not looked at here: `SamplingParams` does, and says more.
    """
    extra: dict[str, Any] = dict(limits)
    return Field(None, description=about, json_schema_extra=extra)


def type_of(given: object) -> object:
    """Return the type of a JSON object, as it says itself; None: it says none."""
    return cast("Mapping[str, object]", given).get("type") if isinstance(given, Mapping) else None


class Strict(BaseModel):
    """A JSON object inside a body. Values are taken as they are typed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _first_mistake(cls, given: Any) -> Any:  # any JSON value
        """Keep but the first field that is not known: it is refused, and the others unread."""
        if not isinstance(given, Mapping):
            return given
        fields = cast("Mapping[str, object]", given)
        known = cls.model_fields
        kept = {name: fields[name] for name in known if name in fields}
        unknown = next((name for name in fields if name not in known), None)
        return kept if unknown is None else {**kept, unknown: fields[unknown]}


class Body(BaseModel):
    """A JSON object; null means that a field is left out. Values are taken as they are typed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _sift(cls, given: Any) -> Any:  # any JSON value
        if not isinstance(given, Mapping):
            return given
        return sift(cast("Mapping[str, object]", given), cls.model_fields)


class StreamOptions(Strict):
    """What a stream tells beside its text."""

    include_usage: bool | None = Field(None, description="A last chunk with the usage")
    continuous_usage_stats: bool | None = Field(None, description="Usage so far, in every chunk")
    include_obfuscation: bool | None = Field(None, description="Without effect")


class CacheHintGiven(Strict):
    """How the prompt is to be kept, and what is known of texts to come."""

    pin: str | None = within(minLength=1, maxLength=256, about="Never evicted while it holds")
    ttl_s: float | None = within(exclusiveMinimum=0, about="Seconds after the last use")
    priority: Whole | None = within(minimum=0, maximum=100, about="The lowest is evicted first")
    continues: bool | None = within(about="A later prompt goes on from this text")
    closed: bool | None = within(about="No later prompt does")
    shared: bool | None = within(about="Other texts begin like it")

    def wish(self) -> CacheWish:
        """Return it as every API has it. Raises ApiError."""
        said = [word for word in get_args(Says) if getattr(self, word)]
        if len(said) > 1:
            raise ApiError(
                400, f"cache_hint: {said[0]} and {said[1]}: say one of them", param="cache_hint"
            )
        return wish_of("cache_hint", self.pin, self.ttl_s, self.priority, said[0] if said else None)


def wish_of(
    name: str,
    pin: str | None = None,
    ttl_s: float | None = None,
    priority: int | None = None,
    says: Says | None = None,
) -> CacheWish:
    """Return what a field asks of the memory. Raises ApiError that names the field."""
    if pin is not None and not 0 < len(pin) <= MOST_PIN_CHARS:
        raise ApiError(
            400, f"{name}: pin has 1 to {MOST_PIN_CHARS} characters, got {len(pin)}", param=name
        )
    try:
        return CacheWish(pin=pin, ttl_s=ttl_s, priority=priority, says=says)
    except RequestError as error:
        message = str(error).removeprefix("retention: ")
        raise ApiError(400, f"{name}: {message}", param=name) from None


class SamplingBody(Body):
    """How tokens are chosen, and what else both routes that generate take."""

    model: str | None = Field(None, description="A name of the model; left out: the only one")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="Tokens of a choice that are sent together"
    )
    n: Whole | None = within(minimum=1, about="Answers to each prompt")
    max_tokens: Whole | None = within(minimum=0)
    min_tokens: Whole | None = within(minimum=0)
    temperature: float | None = within(minimum=0, maximum=2)
    top_p: float | None = within(exclusiveMinimum=0, maximum=1)
    top_k: Whole | None = within(minimum=-1)
    min_p: float | None = within(minimum=0, maximum=1)
    presence_penalty: float | None = within(minimum=-2, maximum=2)
    frequency_penalty: float | None = within(minimum=-2, maximum=2)
    repetition_penalty: float | None = within(exclusiveMinimum=0)
    logit_bias: dict[str, float] | None = Field(None, description="By token id")
    allowed_token_ids: Annotated[list[Whole], ONE_MISTAKE] | None = None
    bad_words: Annotated[list[str], ONE_MISTAKE] | None = None
    seed: Whole | None = None
    stop: str | Annotated[list[str], ONE_MISTAKE] | None = None
    stop_token_ids: Annotated[list[Whole], ONE_MISTAKE] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    detokenize: bool | None = Field(None, description="False: token ids alone, no text")
    use_beam_search: bool | None = None
    beam_width: Whole | None = within(minimum=1, about="Left out: n")
    length_penalty: float | None = within(minimum=-16, maximum=16)
    early_stopping: bool | Literal["never"] | None = None
    prompt_logprobs: Whole | None = within(minimum=0)
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = Field(
        None,
        description="One of json, json_object, regex, choice, grammar, structural_tag; and options",
    )
    guided_json: str | dict[str, Any] | bool | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], ONE_MISTAKE] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    truncate_prompt_tokens: Whole | None = Field(
        None, description="Keep so many tokens, the last; -1: as many as the context has room for"
    )
    add_special_tokens: bool | None = None
    priority: Whole | None = Field(None, description="Lower goes first")
    request_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="Only requests with the same salt find each other's prompts in memory"
    )
    cache_hint: CacheHintGiven | None = None
    include_cache: bool | None = Field(None, description="Usage tells what was in memory, and why")
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    echo: bool | None = Field(None, description="The answer begins with the prompt")

    def terms(self, *, silent: bool = False, scores_field: str = "prompt_logprobs") -> Terms:
        """Return what is asked beside text and sampling. Raises ApiError. See `Terms`."""
        options = self.stream_options
        if options is not None and not self.stream:
            raise ApiError(
                400, "stream_options: they need stream, which is not true", param="stream_options"
            )
        return Terms(
            model=self.model,
            request_id=self.request_id,
            stream=bool(self.stream),
            interval=self.stream_interval,
            usage=bool(options and options.include_usage),
            usage_always=bool(options and options.continuous_usage_stats),
            priority=self.priority or 0,
            cache_salt=self.cache_salt,
            wish=None if self.cache_hint is None else self.cache_hint.wish(),
            tells_cache=bool(self.include_cache),
            silent=silent,
            scores_field=scores_field,
            logged=self._logged,
        )

    def _logged(self) -> dict[str, object]:
        # A salt is a secret.
        return self.model_dump(exclude_none=True, exclude={"prompt", "messages", "cache_salt"})
