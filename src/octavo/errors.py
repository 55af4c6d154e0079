"""The exceptions of octavo; the type says who must act.

OctavoError
├── ConfigError    who starts the engine: a setting or the memory does not fit
├── RequestError   who sends the request: a prompt or a sampling option is not possible
├── ModelError     who supplies the model: a file is missing, broken or of an unknown kind
├── FetchError     who supplies the network or the cache folder: a download did not work
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


class OutOfBlocks(OctavoError):
    """A pool was asked for more blocks than it has."""


class Corrupted(OctavoError):
    """The memory plane's own counts contradict each other."""
