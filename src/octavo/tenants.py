"""Shares of the KV memory by tenant: how they are written, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Real
from typing import cast

from octavo.contract.retention import TenantShare
from octavo.errors import ConfigError

_FIELDS = ("guaranteed", "maximum")


def write_tenants(setting: object) -> str | None:
    """Write shares as JSON text that `read_tenants` reads; None stays. Raises ConfigError.

    setting: JSON text, or a mapping of a tenant's name to {"guaranteed": share, "maximum": share}.
    """
    if setting is None:
        return None
    if isinstance(setting, str):
        try:
            setting = json.loads(setting)
        except ValueError as error:
            raise ConfigError(
                f"tenants {setting!r:.80} is no JSON ({error}): write "
                '{"name": {"guaranteed": 0.2, "maximum": 0.6}}'
            ) from None
    if not isinstance(setting, Mapping) or not setting:
        raise ConfigError(
            f"tenants must be a mapping of names to shares, got {setting!r:.80}: write "
            '{"name": {"guaranteed": 0.2, "maximum": 0.6}}'
        )
    rows = [_share(name, one) for name, one in cast("Mapping[object, object]", setting).items()]
    total = sum(row.guaranteed for row in rows)
    if total > 1 + 1e-9:
        raise ConfigError(
            f"tenants are guaranteed {total:g} of the KV memory together: lower shares to 1 in all"
        )
    return json.dumps(
        {row.name: {"guaranteed": row.guaranteed, "maximum": row.maximum} for row in rows}
    )


def read_tenants(text: str | None) -> tuple[TenantShare, ...]:
    """Read what `write_tenants` wrote."""
    rows = {} if text is None else json.loads(text)
    return tuple(TenantShare(name, **fields) for name, fields in rows.items())


def _share(name: object, fields: object) -> TenantShare:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"tenants: a tenant needs a name, got {name!r}")
    given = cast("Mapping[object, object]", {} if fields is None else fields)
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"tenants: shares of {name!r} must be a mapping, got {fields!r}")
    for key, value in given.items():
        if key not in _FIELDS:
            raise ConfigError(
                f"tenants: {name!r} has no share {key!r}; it has: {', '.join(_FIELDS)}"
            )
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 0 <= float(cast("float", value)) <= 1:
            raise ConfigError(
                f"tenants: {key} of {name!r} must be a share from 0 to 1, got {value!r}"
            )
    numbers = cast("Mapping[str, float]", given)
    share = TenantShare(
        name, float(numbers.get("guaranteed", 0.0)), float(numbers.get("maximum", 1.0))
    )
    if share.guaranteed > share.maximum:
        raise ConfigError(
            f"tenants: {name!r} is guaranteed {share.guaranteed:g}, more than its maximum of "
            f"{share.maximum:g}"
        )
    return share
