"""From lengths to requests that share nothing but what they are told to share."""

from __future__ import annotations

from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams

_SPREAD = 2654435761
_ALL_TOKENS = 2**31


def make_request(
    number: int, lengths: tuple[int, int], *, n: int = 1, vocab_size: int = _ALL_TOKENS
) -> Request:
    """Build a request with a prompt of its own and an answer of exactly the given length.

    Rules that know the length of the answer are told the true one. The `n` answers to a
    prompt have the same length.
    """
    prompt, output = lengths
    first = number * _SPREAD % vocab_size
    return Request(
        id=str(number),
        prompt=tuple((first + place) % vocab_size for place in range(prompt)),
        sampling=SamplingParams(n=n, max_tokens=output, temperature=1.0, ignore_eos=True),
        seed=number,
        expected_output_tokens=output,
    )
