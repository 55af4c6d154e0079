"""What a recording of traffic says of a request: hashes and lengths, never text.

A file is JSON lines: a header, then one line for each request that has ended. A file may hold
several recordings, one behind the other; each has its own secret, so that its hashes mean nothing
in another one.
"""

from __future__ import annotations

from base64 import b64decode, b64encode

import msgspec

HASH_BYTES = 8
"""Of one block."""


class RecordingHeader(msgspec.Struct, frozen=True, tag="octavo.recording/1", tag_field="schema"):
    """The first line of a recording."""

    block_size: int
    """Tokens of a hash."""
    started_s: float
    """Seconds since 1970."""


class RecordedLine(
    msgspec.Struct, frozen=True, tag="request", tag_field="schema", omit_defaults=True
):
    """One request with all its choices."""

    time_s: float
    """When it came, since the header's `started_s`."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens of the answer; of several choices, of the first."""
    blocks: str
    """Hashes of all full blocks of prompt and answer, each of everything up to its block's end and
    of the namespace, in base64; of several choices, of the first."""
    tenant: str
    """Hash of the salt that the tenant chose."""
    cached: int = 0
    """Prompt tokens found in memory."""
    outputs: tuple[int, ...] = ()
    """Tokens of each choice, if there were several."""
    others: tuple[str, ...] = ()
    """Of each choice but the first: hashes of the full blocks behind the prompt's, which begin with
    what is left of the prompt. Recordings of before have none."""
    finish: str = "stop"
    """Why the answer ended."""


def pack_hashes(hashes: list[bytes]) -> str:
    """Spell hashes of `HASH_BYTES` each as text."""
    return b64encode(b"".join(hashes)).decode()


def unpack_hashes(text: str) -> list[bytes]:
    """Read what `pack_hashes` has written. Raises ValueError."""
    data = b64decode(text, validate=True)
    if len(data) % HASH_BYTES:
        raise ValueError(f"{len(data)} bytes are no hashes of {HASH_BYTES}")
    return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]
