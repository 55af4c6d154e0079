"""From the fields of a body to the form that its answer must have, however it is said."""

from __future__ import annotations

from typing import Any, cast

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.server.failures import ApiError
from octavo.server.schemas.answer_forms import ResponseFormat
from octavo.server.schemas.common import SamplingBody
from octavo.server.schemas.messages import OutputConfig
from octavo.server.schemas.responses import TextFormat

_GUIDED = ("json", "json_object", "regex", "choice", "grammar")
_BACKENDS = {"guidance": "llguidance"}
_WITHOUT_EFFECT = frozenset({"disable_fallback"})


def form_of(body: SamplingBody) -> StructuredOutputs | None:
    """Return the form that an answer must have; None: any text. Raises ApiError, by the field."""
    ways = {
        "response_format": _of_response_format(body.response_format),
        "structured_outputs": _given(body.structured_outputs),
        "guided_*": _guided(body),
    }
    said = {name: options for name, options in ways.items() if options is not None}
    if not said:
        return None
    if len(said) > 1:
        raise ApiError(
            400,
            f"{' and '.join(said)} all say what form the answer has: leave all but one out",
            param=next(iter(said)).replace("guided_*", "guided_json"),
        )
    (name, options) = next(iter(said.items()))
    return _form(name, options)


def text_form(given: TextFormat | None) -> StructuredOutputs | None:
    """Return the form of a response's text; None: any text. Raises ApiError."""
    if given is None or given.type == "text":
        return None
    schema = given.schema_ if given.type == "json_schema" else None
    return _form("text.format", {"json_object": True} if schema is None else {"json": schema})


def message_form(given: OutputConfig | None) -> StructuredOutputs | None:
    """Return the form of a message's text; None: any text. Raises ApiError."""
    if given is None or given.format is None:
        return None
    return _form("output_config.format", {"json": given.format.schema_})


def _form(name: str, options: dict[str, object]) -> StructuredOutputs:
    try:
        return StructuredOutputs(**cast("dict[str, Any]", options))
    except RequestError as error:
        told = str(error).removeprefix("structured_outputs: ")
        raise ApiError(
            400, f"{name}: {told}", param=name.replace("guided_*", "guided_json")
        ) from None


def _of_response_format(given: ResponseFormat | None) -> dict[str, object] | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return {"json_object": True}
    if given.type == "json_schema":
        schema = given.json_schema.schema_ if given.json_schema is not None else None
        return {"json_object": True} if schema is None else {"json": schema}
    tag = {
        "structures": given.structures,
        "triggers": given.triggers,
        "format": given.format,
    }
    return {"structural_tag": {key: of for key, of in tag.items() if of is not None}}


def _given(fields: dict[str, Any] | None) -> dict[str, object] | None:
    if not fields:
        return None
    known = set(StructuredOutputs.__struct_fields__) - {"after"}
    options: dict[str, object] = {}
    for name, value in fields.items():
        if value is None or name in _WITHOUT_EFFECT:
            continue
        if name == "disable_additional_properties":
            if value is not False:
                raise ApiError(
                    400,
                    f"structured_outputs: {name}: write additionalProperties into the schema",
                    param="structured_outputs",
                )
            continue
        if name not in known:
            raise ApiError(
                400,
                f"structured_outputs: {name!r:.80} is none of {', '.join(sorted(known))}",
                param="structured_outputs",
            )
        options[name] = value
    return options or None


def _guided(body: SamplingBody) -> dict[str, object] | None:
    options: dict[str, object] = {}
    for name in _GUIDED:
        value: object = getattr(body, f"guided_{name}")
        if value is not None and value is not False:
            options[name] = value
    if body.guided_whitespace_pattern is not None:
        options["whitespace_pattern"] = body.guided_whitespace_pattern
    if options and body.guided_decoding_backend is not None:
        backend = body.guided_decoding_backend.partition(":")[0]
        options["backend"] = _BACKENDS.get(backend, backend)
    return options or None
