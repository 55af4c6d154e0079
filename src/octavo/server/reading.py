"""What tools and reasoning add to a request, whichever API it came by."""

from __future__ import annotations

import uuid
from dataclasses import replace

import msgspec

from octavo.contract.sampling import SamplingParams
from octavo.server.chat_request import ChatRequest
from octavo.server.terms import Terms
from octavo.text.formats.reading import Formats


def read_answers(
    formats: Formats, chat: ChatRequest, prompt: str, params: SamplingParams, terms: Terms
) -> tuple[SamplingParams, Terms]:
    """Return options with the form that calls must have, and terms with what reads answers.

    prompt: as rendered. Raises RequestError for tools that the model has no words for.
    """
    use = chat.use
    form = formats.form(use, prompt, params.structured_outputs)
    parser = formats.parsers(use, prompt, terms.request_id or uuid.uuid4().hex)
    if form is not params.structured_outputs:
        params = msgspec.structs.replace(params, structured_outputs=form)
    if parser is None:
        return params, terms
    return params, replace(terms, parser=parser, shown=formats.shown(use))
