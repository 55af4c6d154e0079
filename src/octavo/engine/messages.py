"""What the process that serves and the engine's process say to each other.

A command goes to the engine, a report comes back; each travels as one MessagePack frame that names
its kind. Both ends are of one version: the process that serves starts the other.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from octavo.contract.memory_view import BlockFacts, MemoryFrame
from octavo.contract.namespace import Namespace
from octavo.contract.request import Request, Update
from octavo.contract.retention import PinFacts
from octavo.contract.usage import Usage
from octavo.engine.histogram import Histogram, ladder
from octavo.sched.stats import Stats

Setting: TypeAlias = str | int | float | bool | None

# ── commands ──────────────────────────────────────────────────────────────────────────────────


class CoreSpec(msgspec.Struct, frozen=True, tag=True):
    """How the engine is built: the first command of all."""

    factory: str
    """module:function, called with `settings` and with what is told in words what takes long;
    it returns the loop and its `CoreFacts`."""
    settings: bytes
    """As the factory reads them."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Queue a request. Its id is in use until it has ended."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request; nothing more is reported of it but what is under way. Unknown: no effect."""

    request_id: str


class Finish(msgspec.Struct, frozen=True, tag=True):
    """End one choice, whose text is complete. Updates of it may still be under way."""

    request_id: str
    index: int


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Plan no steps until `Resume`; requests are queued meanwhile."""

    call: int
    abort: bool = False
    """End all requests that are there, each with an update that says so."""


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Go on."""

    call: int


class ResetCache(msgspec.Struct, frozen=True, tag=True):
    """Forget cached texts that no sequence uses; answered by the number of blocks."""

    call: int


class Unpin(msgspec.Struct, frozen=True, tag=True):
    """Let go of pins, None: of any name or tenant; answered by the blocks they held."""

    call: int
    name: str | None = None
    tenant: str | None = None


class ListPins(msgspec.Struct, frozen=True, tag=True):
    """Tell of a tenant's pins, None: of all."""

    call: int
    tenant: str | None = None


class TakeSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Report all counts as they are between two steps."""

    call: int


class Check(msgspec.Struct, frozen=True, tag=True):
    """Recompute every count of the memory plane now; what is wrong is set right."""

    call: int


class LookAtMemory(msgspec.Struct, frozen=True, tag=True):
    """Show what has changed in the memory since a frame; answered beside the next step.

    Whoever has not asked for a while is shown all of it.
    """

    call: int
    seen: int = 0
    """Number of the frame that was shown last; 0: none was."""


class ShowBlock(msgspec.Struct, frozen=True, tag=True):
    """Tell of one block, and of the text in it."""

    call: int
    block: int
    prefix: bool = False
    """With the text before it."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process after the step in flight; requests that are not finished are lost."""


Command: TypeAlias = (
    CoreSpec
    | Submit
    | Abort
    | Finish
    | Pause
    | Resume
    | ResetCache
    | Unpin
    | ListPins
    | TakeSnapshot
    | Check
    | LookAtMemory
    | ShowBlock
    | Stop
)

# ── reports ───────────────────────────────────────────────────────────────────────────────────


class CoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while an engine lives."""

    namespace: Namespace
    """Of its model, without a salt."""
    vocab_size: int
    max_model_len: int
    longest_text: int
    """Tokens of prompt and answer that context and memory allow."""
    num_blocks: int
    block_sizes: tuple[int, ...]
    """Tokens of a block, by KV group."""
    windows: tuple[int | None, ...] = ()
    """Positions that a query sees, by KV group; None: all. Empty: all in every group."""
    block_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    """What a long prompt is given a step; 0: all of it. In `settings` it may be left open."""
    dtype: str = ""
    kv_dtype: str = ""
    backend: str = ""
    device: str = ""
    pooling: str = ""
    """How its model embeds prompts, as `Pooling.how` has it; empty: it has no embeddings."""
    settings: dict[str, Setting] = msgspec.field(default_factory=dict[str, Setting])
    """All settings that it was built with."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is built and takes requests."""

    facts: CoreFacts


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not be built, or cannot go on; the process ends."""

    kind: str
    """Name of the exception: one of `octavo.errors`, or of any other."""
    message: str
    trace: str = ""
    """Where it was raised; empty: that is no help, or stands on stderr."""


class Said(msgspec.Struct, frozen=True, tag=True):
    """In words: what takes long at the start, what was set right later."""

    text: str


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """A request is in the queue."""

    request_id: str
    max_tokens: int
    """The effective maximum of its output."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A request is not served; nothing more is reported of it."""

    request_id: str
    message: str
    retry_after_s: float | None = None
    """When it may be sent again; None: it can never be served."""


class Begun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request is computed for the first time."""

    request_id: str
    at_s: float
    """When the step was planned."""


class News(msgspec.Struct, frozen=True, tag=True):
    """What a step has brought. Times are of the clock that all processes of a host share."""

    step: int
    """Steps so far, this one included."""
    applied_s: float
    updates: tuple[Update, ...] = ()
    begun: tuple[Begun, ...] = ()


class Count(msgspec.Struct, frozen=True, tag=True):
    """Answers a call: it is done, to so many."""

    call: int
    value: int = 0


class PinsListed(msgspec.Struct, frozen=True, tag=True):
    """Answers `ListPins`."""

    call: int
    pins: tuple[PinFacts, ...]


class StepTimes(msgspec.Struct, frozen=True):
    """Where the time of steps goes, in seconds, and how many tokens each computes."""

    plan: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_STEP_SECONDS))
    run: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_STEP_SECONDS))
    """Submitting, and waiting for the result."""
    apply: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_STEP_SECONDS))
    tokens: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_STEP_TOKENS))


class BlockTimes(msgspec.Struct, frozen=True):
    """How long blocks stay, in seconds: of those that are followed."""

    lifetime: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_BLOCK_SECONDS))
    """From when a block was given out until its text was evicted."""
    idle: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_BLOCK_SECONDS))
    """From its last use until then."""
    gap: Histogram = msgspec.field(default_factory=lambda: Histogram.of(_BLOCK_SECONDS))
    """From the end of a use to the next one."""


_BLOCK_SECONDS = ladder(2000.0, 1e-3)
_STEP_SECONDS = ladder(5.0, 1e-5)
_STEP_TOKENS = ladder(16_384)


class Checks(msgspec.Struct, frozen=True):
    """How often every count was recomputed, and what came of it."""

    runs: int = 0
    failures: int = 0
    """Times that something was wrong."""
    quarantined: int = 0
    """Blocks that are given out no more."""
    last_error: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All counts between two steps: they agree with each other."""

    at_s: float
    usage: Usage
    stats: Stats
    running: int
    waiting: int
    """Sequences."""
    num_blocks: int
    paused: bool = False
    times: StepTimes = msgspec.field(default_factory=StepTimes)
    checks: Checks = Checks()
    blocks: BlockTimes | None = None
    """None: no block is followed."""


class Counted(msgspec.Struct, frozen=True, tag=True):
    """Answers `TakeSnapshot`."""

    call: int
    snapshot: Snapshot


class Checked(msgspec.Struct, frozen=True, tag=True):
    """Answers `Check`."""

    call: int
    checks: Checks
    """This one included."""
    error: str = ""
    """What was wrong; empty: nothing."""


class MemoryShown(msgspec.Struct, frozen=True, tag=True):
    """Answers `LookAtMemory`: all of it is of one moment."""

    call: int
    frame: MemoryFrame
    usage: Usage
    stats: Stats
    running: int
    waiting: int
    """Sequences."""
    paused: bool = False


class BlockShown(msgspec.Struct, frozen=True, tag=True):
    """Answers `ShowBlock`."""

    call: int
    facts: BlockFacts | None
    """None: there is no such block."""


Report: TypeAlias = (
    Ready
    | Failed
    | Said
    | Accepted
    | Refused
    | News
    | Count
    | PinsListed
    | Counted
    | Checked
    | MemoryShown
    | BlockShown
)

# ── frames ────────────────────────────────────────────────────────────────────────────────────

_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_reports = msgspec.msgpack.Decoder(Report)


def pack(message: Command | Report) -> bytes:
    """Write a message as one frame."""
    return _encoder.encode(message)


def read_command(frame: bytes) -> Command:
    """Read a command. Raises msgspec.DecodeError, also for a value that it may not hold."""
    return _commands.decode(frame)


def read_report(frame: bytes) -> Report:
    """Read a report. Raises msgspec.DecodeError."""
    return _reports.decode(frame)
