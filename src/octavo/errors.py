"""The exceptions of octavo; the type says who must act.

OctavoError
├── ConfigError    who starts the engine: a setting or the memory does not fit
├── RequestError   who sends the request: a prompt or a sampling option is not possible
├── ModelError     who supplies the model: a file is missing, broken or of an unknown kind
├── FetchError     who supplies the network or the cache folder: a download did not work
├── OverLimit      who sends the request, later: a limit of its tenant or of the server is reached
├── EngineGone     who runs the server: the engine's process has ended, or is not there yet
├── OutOfBlocks    nobody: the caller asked for blocks without looking; a bug of ours
└── Corrupted      nobody: a count of the memory plane does not add up; a bug of ours
"""

from __future__ import annotations


class OctavoError(Exception):
    """Root of every error that octavo raises on purpose."""


class ConfigError(OctavoError, ValueError):
    """A setting is out of range, or settings do not fit each other or this machine."""


class RequestError(OctavoError, ValueError):
    """One request cannot be served as it stands; no other request is affected."""


class ModelError(OctavoError):
    """A model's files are missing, truncated or of a kind that is not read."""


class FetchError(OctavoError):
    """A model could not be fetched or does not have the expected checksum."""


class OverLimit(OctavoError):
    """A request is refused now and may be sent again later; no other request is affected."""

    def __init__(self, message: str, *, retry_after_s: float, of_server: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """When it may be worth while."""
        self.of_server = of_server
        """True: whoever sent it would be refused; False: its tenant has reached a limit."""


class EngineGone(OctavoError):
    """The engine's process has ended with the requests that it was answering, or is starting."""


class OutOfBlocks(OctavoError):
    """A pool was asked for more blocks than it has."""


class Corrupted(OctavoError):
    """The memory plane's own counts contradict each other."""
