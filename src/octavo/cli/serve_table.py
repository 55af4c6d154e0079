"""All flags of `octavo serve`, and what becomes of those that are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from octavo.cli.config_file import read_config_file
from octavo.cli.serve_engine_flags import DEAD, MEMORY, MODEL, NOT_YET, SCHEDULER, SGLANG
from octavo.cli.serve_flags import Effect, Flag, Kind, Value, write
from octavo.cli.serve_front_flags import CHAT, FRONT, REPORTS
from octavo.cli.synonyms import SYNONYMS
from octavo.errors import ConfigError

CONFIG = Flag(
    name="config",
    kind=Kind.TEXT,
    help="YAML file of flags, such as `max-num-seqs: 64`; a flag on the line goes before.",
)

GROUPS: dict[str, tuple[Flag, ...]] = {
    "model": (*(one.flag for one in SYNONYMS if one.flag.kind is Kind.WORD), *MODEL),
    "KV memory": MEMORY,
    "scheduler": SCHEDULER,
    "HTTP, keys and limits": (CONFIG, *FRONT),
    "chats": CHAT,
    "reports": REPORTS,
    "several devices, adapters, speculation": NOT_YET,
    "SGLang's names": (*(one.flag for one in SYNONYMS if one.flag.kind is not Kind.WORD), *SGLANG),
    "of earlier engines": DEAD,
}
"""Titles, and the flags under them, in the order of the help."""

FLAGS: dict[str, Flag] = {flag.name: flag for rows in GROUPS.values() for flag in rows}

_SYNONYMS = {one.flag.name: one for one in SYNONYMS}

_ALIASES = {
    "OCTAVO_API_KEY": "api-key",
    "VLLM_API_KEY": "api-key",
    "OCTAVO_ADMIN_API_KEY": "admin-api-key",
    "VLLM_MAX_N_SEQUENCES": "max-n",
}
"""Variables that stand for a flag; the first that is there counts, and a flag goes before."""

_IGNORED = {
    "VLLM_SERVER_DEV_MODE": "the administrator's routes need --admin-api-key",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "there are no LoRA adapters yet",
    "VLLM_HOST_IP": "give --host",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of a server, all of them, with the values that are in force."""

    values: Mapping[str, Value]
    given: frozenset[str] = frozenset()
    """Names of those that somebody has given a value."""
    notes: tuple[str, ...] = ()
    """What whoever started the server should be told."""
    ignored: Mapping[str, str] = field(default_factory=dict[str, str])
    """Flags that were given and do nothing, as they are spelled, and why."""

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.values[name]
        assert isinstance(value, str), name
        return value

    def count(self, name: str) -> int:
        """Return a whole number."""
        value = self.values[name]
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        """Return a number."""
        value = self.values[name]
        assert isinstance(value, float), name
        return value

    def switch(self, name: str) -> bool:
        """Say whether it is on."""
        value = self.values[name]
        assert isinstance(value, bool), name
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return all that were given."""
        value = self.values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def open_text(self, name: str) -> str | None:
        """Return a text, None: it was not given."""
        return None if self.values[name] is None else self.text(name)

    def open_count(self, name: str) -> int | None:
        """Return a whole number, None: it was not given."""
        return None if self.values[name] is None else self.count(name)

    def open_number(self, name: str) -> float | None:
        """Return a number, None: it was not given."""
        return None if self.values[name] is None else self.number(name)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a JSON object. Raises ConfigError if it is something else."""
        value = self.values[name]
        if not isinstance(value, dict):
            raise ConfigError(f"--{name} must be a JSON object, got {write(value):.200}")
        return value

    def names(self, name: str) -> list[str]:
        """Return a JSON list of texts. Raises ConfigError if it is something else."""
        value = self.values[name]
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ConfigError(f"--{name} must be a JSON list of texts, got {write(value):.200}")
        return cast("list[str]", value)


def settle(line: Mapping[str, object], environment: Mapping[str, str]) -> Options:
    """Return what is in force: a flag on the line, else in the file, else in the environment.

    line: flags by name, as texts. Raises ConfigError for a value that cannot be read, and for a
    flag that asks for what there is not.
    """
    read = {name: FLAGS[name].read(given) for name, given in line.items()}
    notes: list[str] = []
    path = read.pop("config", None)
    # Each source is renamed by itself, so that a line's flag goes before a file's synonym.
    sources = [_rename(read, notes)]
    if path is not None:
        sources.append(_rename(read_config_file(Path(str(path)), _in_files()), notes))
    given = sources[-1] | sources[0]
    ignored: dict[str, str] = {}
    for name, value in list(given.items()):
        flag = FLAGS[name]
        if flag.effect is Effect.NEUTRAL and value not in flag.neutral:
            raise _refused(flag, value)
        if flag.effect is Effect.NONE:
            ignored[flag.spelled] = flag.reason
            notes.append(f"{flag.spelled} has no effect: {flag.reason}")
        if flag.effect is not Effect.WORKS:
            del given[name]
    for name, value in _from(environment, notes).items():
        given.setdefault(name, value)
    defaults = {flag.name: flag.default for flag in _works(FLAGS.values())}
    return Options(defaults | given, frozenset(given), tuple(notes), ignored)


def _works(flags: Iterable[Flag]) -> list[Flag]:
    own = [flag for flag in flags if flag.name not in _SYNONYMS and flag is not CONFIG]
    return [flag for flag in own if flag.effect is Effect.WORKS]


def _in_files() -> dict[str, Flag]:
    return {
        name: flag
        for name, flag in FLAGS.items()
        if flag is not CONFIG and flag.kind is not Kind.WORD
    }


def _rename(read: Mapping[str, Value], notes: list[str]) -> dict[str, Value]:
    """Give synonyms the names of ours."""
    renamed = {name: value for name, value in read.items() if name not in _SYNONYMS}
    for name, value in read.items():
        synonym = _SYNONYMS.get(name)
        if synonym is None:
            continue
        converted = synonym.convert(value)
        if synonym.target in renamed and renamed[synonym.target] != converted:
            raise ConfigError(
                f"{synonym.flag.spelled} {write(value)} and --{synonym.target} "
                f"{write(renamed[synonym.target])} are the same setting: give one of them"
            )
        renamed[synonym.target] = converted
        if synonym.note:
            notes.append(f"{synonym.flag.spelled} is taken as --{synonym.target}: {synonym.note}")
    return renamed


def _refused(flag: Flag, value: Value) -> ConfigError:
    taken = [write(one) for one in flag.neutral if one is not None]
    way_out = f"leave it out, or give {' or '.join(taken)}" if taken else "leave it out"
    return ConfigError(f"{flag.spelled} {write(value):.200}: {flag.reason}; {way_out}")


def _from(environment: Mapping[str, str], notes: list[str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for variable, name in _ALIASES.items():
        text = environment.get(variable)
        if not text or name in values:
            continue
        try:
            values[name] = FLAGS[name].read(text)
        except ConfigError as error:
            # The value may be a key: it is not shown.
            what = str(error).rpartition(" must be ")[2] if " must be " in str(error) else "fits"
            raise ConfigError(f"the variable {variable} must be {what}") from None
    if environment.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        values["deterministic"] = True
    for variable, reason in _IGNORED.items():
        if environment.get(variable):
            notes.append(f"the variable {variable} has no effect: {reason}")
    return values
