"""What a server is made of; every route gets these, and nothing is global."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.server.core import CoreClient
from octavo.server.doors import Doors
from octavo.server.faults import Faults
from octavo.server.gate import Gate, OpenGate
from octavo.server.meters import Meters, NoMeters
from octavo.server.settings import ServerSettings
from octavo.server.tenants import Keyring, OpenKeyring
from octavo.server.traces import Traces
from octavo.server.watch.history import History
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model as clients name it, and its text."""

    names: tuple[str, ...]
    """All that requests may call it; replies use the first."""
    root: str
    """What it was loaded from: a name or a file's name, never a path."""
    tokenizer: Tokenizer | None
    """None: dummy weights of a shape; prompts are token ids, and answers have no text."""
    created_s: int
    """Seconds since 1970."""
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """Sampling options of requests that do not name them, from the model's own files."""
    fingerprint: str = ""
    """Changes with version, weights and settings that change answers."""

    @property
    def name(self) -> str:
        """What replies call it."""
        return self.names[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One server."""

    core: CoreClient
    model: ServedModel
    settings: ServerSettings = field(default_factory=ServerSettings)
    keys: Keyring = field(default_factory=OpenKeyring)
    gate: Gate = field(default_factory=OpenGate)
    meters: Meters = field(default_factory=NoMeters)
    doors: Doors = field(default_factory=Doors)
    traces: Traces | None = None
    faults: Faults = field(default_factory=Faults)
    history: History = field(default_factory=History)
    about: Mapping[str, object] = field(default_factory=dict[str, object])
    """What administrators are told of how the server was started."""
