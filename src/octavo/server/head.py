"""What all objects of one answer begin with."""

from __future__ import annotations

import msgspec

from octavo.server.answers import Usage


class Head:
    """Id, time and model of an answer. tells_usage: its chunks have the field, as null."""

    def __init__(
        self, answer_id: str, created_s: int, model: str, fingerprint: str, *, tells_usage: bool
    ) -> None:
        self._id = answer_id
        self._created_s = created_s
        self._model = model
        self._fingerprint = fingerprint
        self._tells_usage = tells_usage

    def fields(self, kind: str) -> dict[str, object]:
        """Return them as JSON has them. kind: of object."""
        return {
            "id": self._id,
            "object": kind,
            "created": self._created_s,
            "model": self._model,
            "system_fingerprint": self._fingerprint or None,
        }

    def opening(self, kind: str) -> bytes:
        """Return the beginning of an event with them, up to before the next comma."""
        return b"data: " + msgspec.json.encode(self.fields(kind))[:-1]

    @property
    def null_usage(self) -> bytes:
        """What comes last in a chunk that tells no usage."""
        return b',"usage":null' if self._tells_usage else b""

    def usage_field(self, usage: Usage | None) -> dict[str, object]:
        """Return the usage of a chunk as fields."""
        return {"usage": usage} if usage is not None or self._tells_usage else {}
