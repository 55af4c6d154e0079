"""A beam search over the fake model as the books have it: whole texts, no memory, no batches."""

from __future__ import annotations

from octavo.contract.request import Request, ends_of
from octavo.testing.fake_runner import eligible_tokens, likeliest, text_digest


def expected_beams(request: Request, limit: int, vocab_size: int) -> list[list[int]]:
    """Return the outputs that a beam search finds, best first. limit: longest text."""
    params, ends, prompt = request.sampling, ends_of(request), list(request.prompt)
    width = params.choices
    open_texts: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    while True:
        grown: list[tuple[float, int, int, list[int]]] = []
        for place, (total, output) in enumerate(open_texts):
            tokens = eligible_tokens(params.structured_outputs, output, vocab_size)
            best = likeliest(text_digest(prompt + output), vocab_size, tokens)
            for token, value in zip(best.tokens, best.logprobs, strict=True):
                grown.append((-(total + value), place, token, [*output, token]))
        grown.sort(key=lambda one: one[:3])
        length = len(grown[0][3])
        last = len(prompt) + length >= limit
        for minus, _, token, output in grown[:width]:
            if last or token in ends:
                ended.append((-minus / length**params.length_penalty, output))
        ended.sort(key=lambda one: -one[0])
        ended = ended[:width]
        open_texts = [(-minus, output) for minus, _, token, output in grown if token not in ends]
        open_texts = open_texts[:width]
        if last:
            break
        if len(ended) == width:
            far = limit - len(prompt) if params.early_stopping == "never" else length
            reach = far if params.length_penalty > 0 else length
            possible = open_texts[0][0] / reach**params.length_penalty
            if params.early_stopping is True or possible <= ended[-1][0]:
                break
    return [output for _, output in ended]
