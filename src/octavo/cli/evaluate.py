"""The command `octavo eval arithmetic`."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli.flags import Group, Option
from octavo.cli.options import Json, Model, Threads
from octavo.cli.output import note, print_json, say
from octavo.cli.pull import model_path
from octavo.errors import ConfigError
from octavo.machine import available_cores

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.evaluate.arithmetic import Scorer, SideRow
    from octavo.evaluate.peer import PeerScorer
    from octavo.models.checkpoint import Checkpoint

evaluate = Group("eval", "Measure what approximations cost in quality.")

Text = Annotated[
    Path | None, Option(help="A UTF-8 text, plain or .gz; default: our own, which is short.")
]
Tokens = Annotated[
    int | None, Option(help="Tokens to compare; default: 20480, or all that our text has.")
]
Window = Annotated[int, Option(help="Tokens of one text; each begins anew.")]
Sides = Annotated[str, Option("--cpu-arithmetic", help="What to compare with float32, by commas.")]
Peer = Annotated[str | None, Option(help="Compare another engine too: llamacpp, on a GGUF file.")]
Environments = Annotated[
    Path | None,
    Option(help="Folder with the other engine's environment; make bench-peers makes it."),
]

_REFERENCE = "float32"
_SIDES = ("int8", "bf16")
_PEERS = ("llamacpp",)
_TOKENS = 20_480
_MOST_TOKENS = 10_000_000
_CHECKOUT = Path(__file__).resolve().parents[3]
_WORKER = Path("benchmarks", "peers", "logits_worker.py")


@dataclass(frozen=True, slots=True)
class _Setting:
    """What is compared."""

    model: Path
    text: str
    sides: list[str]
    tokens: int
    window: int
    threads: int | None


@evaluate.command()
def arithmetic(
    text: Text = None,
    tokens: Tokens = None,
    window: Window = 512,
    cpu_arithmetic: Sides = "int8,bf16",
    peer: Peer = None,
    environments: Environments = None,
    model: Model = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """How far int8 and bf16 arithmetic are from float32, on the same weights and the same text.

    Without --text: a text that comes with octavo, too short to decide anything.
    """
    from octavo.bench.texts import PACKAGED, read_text
    from octavo.evaluate.arithmetic import compare, windows
    from octavo.models.checkpoint import open_checkpoint
    from octavo.progress import work_bar

    sides = _sides(cpu_arithmetic)
    _check_numbers(tokens, window, threads)
    _check_peer(peer, environments)
    content = read_text(text)
    path = model_path(model)
    checkpoint = open_checkpoint(path)
    _check_window(window, checkpoint)
    ids, bos = _encode(checkpoint, content)
    where = PACKAGED if text is None else str(text)
    if tokens is None:
        tokens = _TOKENS if text is not None else max(len(ids) // window * window, window)
    texts = windows(ids, length=window, count=tokens, bos=bos, where=where)
    used = len(texts) * window
    setting = _Setting(path, where, sides, used, window, threads)
    if used < _TOKENS:
        note(f"octavo: {used} tokens are few: give --text a longer file")
    with contextlib.ExitStack() as stack:
        reference, *others = _scorers(setting, checkpoint)
        versions: dict[str, str] = {}
        if peer is not None:
            other = stack.enter_context(
                contextlib.closing(_load_peer(peer, environments, setting, checkpoint))
            )
            others.append(other)
            versions[peer] = other.name
        advance = stack.enter_context(work_bar("tokens", used))
        rows = compare(reference, others, texts, advance=advance)
    peer_row = rows[-1] if peer is not None else None
    if json:
        _print_json(rows, peer_row, setting, versions)
    else:
        _print_table(rows, peer_row)


# ── what is asked for ─────────────────────────────────────────────────────────────────────


def _sides(names: str) -> list[str]:
    sides = [name.strip() for name in names.split(",")]
    for name in sides:
        if name not in _SIDES:
            raise ConfigError(f"--cpu-arithmetic {name!r} is not one of {', '.join(_SIDES)}")
    return [name for name in _SIDES if name in sides]


def _check_numbers(tokens: int | None, window: int, threads: int | None) -> None:
    if tokens is not None and not 1 <= tokens <= _MOST_TOKENS:
        raise ConfigError(f"--tokens must be from 1 to {_MOST_TOKENS}, got {tokens}")
    if window < 2:
        raise ConfigError(f"--window must be at least 2, got {window}")
    if threads is not None and threads < 1:
        raise ConfigError(f"--threads must be at least 1, got {threads}")


def _check_peer(peer: str | None, environments: Path | None) -> None:
    if peer is None:
        if environments is not None:
            raise ConfigError("--environments is for --peer: add it, or leave --environments out")
        return
    if peer not in _PEERS:
        raise ConfigError(f"--peer {peer!r} is not one of {', '.join(_PEERS)}")
    worker = _CHECKOUT / _WORKER
    if not worker.is_file():
        raise ConfigError(f"--peer needs a checkout of octavo: there is no {worker}")


def _check_window(window: int, checkpoint: Checkpoint) -> None:
    context = checkpoint.spec.context
    if window > context:
        raise ConfigError(
            f"--window is {window}, but the context of {checkpoint.path.name} is {context}: "
            "lower it"
        )


def _encode(checkpoint: Checkpoint, text: str) -> tuple[list[int], int | None]:
    """Return a text's tokens, and the one that the model wants before every text."""
    from octavo.build import open_tokenizer

    tokenizer = open_tokenizer(checkpoint)
    bos = tokenizer.bos_token_id
    begins = tokenizer.encode("")[:1] == [bos]
    return tokenizer.encode(text, add_special_tokens=False), bos if begins else None


# ── the sides ─────────────────────────────────────────────────────────────────────────────


def _scorers(setting: _Setting, checkpoint: Checkpoint) -> list[Scorer]:
    from octavo.config import EngineConfig
    from octavo.executors.scorer import TextScorer

    config = EngineConfig(model=str(setting.model), backend="cpu", threads=setting.threads)
    return [
        TextScorer(config, checkpoint, arithmetic=name, longest=setting.window)
        for name in (_REFERENCE, *setting.sides)
    ]


def _load_peer(
    name: str, environments: Path | None, setting: _Setting, checkpoint: Checkpoint
) -> PeerScorer:
    from octavo.evaluate.peer import PeerScorer

    if not setting.model.is_file():
        raise ConfigError(f"{setting.model} is a folder, but llama.cpp reads a GGUF file")
    python = (environments or _CHECKOUT / ".peers") / name / "bin" / "python"
    if not python.exists():
        raise ConfigError(f"there is no {python}, which `make bench-peers` makes")
    settings: dict[str, object] = {
        "model": str(setting.model),
        "threads": setting.threads or available_cores(),
        "longest": setting.window,
    }
    worker = _CHECKOUT / _WORKER
    return PeerScorer(python, worker, settings, vocab_size=checkpoint.spec.vocab_size)


# ── what comes out ────────────────────────────────────────────────────────────────────────


def _goals(rows: list[SideRow], peer: SideRow | None) -> dict[str, bool]:
    """Tell which goals of the default arithmetic are met, of those that were measured."""
    from octavo.evaluate.arithmetic import MOST_BEHIND, MOST_KL

    met: dict[str, bool] = {}
    for row in rows:
        if row.side != "int8":
            continue
        met[f"mean KL at most {MOST_KL} nats"] = row.mean_kl <= MOST_KL
        if peer is not None:
            goal = f"top-1 agreement at most {MOST_BEHIND:.0%} below that of {peer.side}"
            met[goal] = row.top1_agreement >= peer.top1_agreement - MOST_BEHIND
    return met


def _table(rows: list[SideRow]) -> Table:
    from rich.table import Table

    table = Table(title=f"against {_REFERENCE} arithmetic, {rows[0].positions} positions")
    table.add_column("side")
    for column in ("perplexity", "mean KL", "±", "KL 99 %", "largest KL", "same top-1"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.side,
            f"{row.perplexity:.3f}",
            f"{row.mean_kl:.5f}",
            "" if row.kl_error is None else f"{row.kl_error:.5f}",
            f"{row.kl_99:.4f}",
            f"{row.largest_kl:.3f}",
            f"{row.top1_agreement:.2%}",
        )
    return table


def _print_table(rows: list[SideRow], peer: SideRow | None) -> None:
    from octavo.cli.bench import print_tables

    print_tables(_table(rows))
    for goal, met in _goals(rows, peer).items():
        say(f"int8: {goal}: {'met' if met else 'missed'}")


def _print_json(
    rows: list[SideRow], peer: SideRow | None, setting: _Setting, versions: dict[str, str]
) -> None:
    from octavo import cpu

    settings: dict[str, object] = {
        "model": setting.model.name,
        "text": Path(setting.text).name,
        "tokens": setting.tokens,
        "window": setting.window,
        "cpu_arithmetic": setting.sides,
        "threads": setting.threads,
        "isa": cpu.require_native().isa(),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }
    payload: dict[str, object] = {
        "versions": versions,
        "rows": rows,
        "goals": _goals(rows, peer),
    }
    print_json("octavo.eval.arithmetic/1", settings, payload)
