"""The file of tenants and their keys, in YAML.

tenants:
alice:
keys: [alices-key, "sha256:…"]
max_running: 4
max_queued: 16
tokens_per_minute: 60000
guaranteed: 0.1
maximum: 0.5
namespace: team
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from octavo.errors import ConfigError
from octavo.server.keys import KeyHolder
from octavo.server.tenants import SHARED, Tenant, TenantLimits
from octavo.server.yaml_file import read_yaml

_LIMITS = ("max_running", "max_queued", "tokens_per_minute")
_SHARES = ("guaranteed", "maximum")
_FIELDS = ("keys", "namespace", *_LIMITS, *_SHARES)
_LONGEST_NAME = 64


def read_key_file(path: Path, like: Tenant) -> list[KeyHolder]:
    """Return the tenants of a file and their keys. Raises ConfigError.

    like: what a tenant is like where the file does not say. Keys are never repeated in errors.
    """
    found = read_yaml(path, "--api-key-file")
    where = f"--api-key-file {path}"
    rows = _mapping(found.get("tenants"), f"{where} must have a mapping `tenants`")
    for key in found:
        if key != "tenants":
            raise ConfigError(f"{where}: it has `tenants` and nothing else, not {_named(key)}")
    if not rows:
        raise ConfigError(f"{where} names no tenant: then no request would ever be let in")
    try:
        return [_holder(name, row, like) for name, row in rows.items()]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _holder(name: object, row: object, like: Tenant) -> KeyHolder:
    if not isinstance(name, str):
        # `1` and `"1"` would be one name for two tenants, and `no` is a truth value in YAML.
        raise ConfigError(
            f"the name of a tenant must be a text, not {_named(name)}: put it in quotes"
        )
    if not name.isprintable() or " " in name or not 0 < len(name) <= _LONGEST_NAME:
        raise ConfigError(
            f"tenant {name!r:.80}: a name stands in logs and metrics, so that it must have 1 to "
            f"{_LONGEST_NAME} characters without blanks"
        )
    fields = _mapping(row, f"tenant {name!r} must be a mapping with `keys`")
    for field in fields:
        if field not in _FIELDS:
            raise ConfigError(
                f"tenant {name!r} has no field {_named(field)}; it has: {', '.join(_FIELDS)}"
            )
    keys = fields.get("keys")
    given = cast("list[object]", keys) if isinstance(keys, list) else [keys]
    if not given or not all(isinstance(key, str) for key in given):
        raise ConfigError(
            f"tenant {name!r} needs keys, each a text: put one that looks like a number in quotes"
        )
    namespace: object = fields.get("namespace", like.namespace)
    if namespace is not None and (not isinstance(namespace, str) or namespace == SHARED):
        if "namespace" in fields:
            raise ConfigError(
                f"tenant {name!r}: namespace must be a name that several tenants share, not "
                f"{namespace!r:.80}"
            )
        assert isinstance(namespace, str)
    try:
        limits = {one: fields.get(one, getattr(like.limits, one)) for one in _LIMITS}
        tenant = Tenant(
            name=name,
            namespace=namespace,
            limits=TenantLimits(**cast("dict[str, int]", limits)),  # it checks them itself
            guaranteed=_share(fields, "guaranteed", 0.0),
            maximum=_share(fields, "maximum", 1.0),
        )
    except ConfigError as error:
        raise ConfigError(f"tenant {name!r}: {error}") from None
    return KeyHolder(tenant, tuple(cast("list[str]", given)))


def _share(fields: Mapping[object, object], name: str, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a share from 0 to 1, got {value!r:.80}")
    return float(value)


def _named(name: object) -> str:
    """Write a field's name; one that could be a key that slipped out of its place is cut."""
    text = str(name)
    return repr(text if len(text) <= 20 else text[:4] + "…")


def _mapping(value: object, otherwise: str) -> Mapping[object, object]:
    if not isinstance(value, dict):
        raise ConfigError(otherwise)
    return cast("dict[object, object]", value)
