"""Shares of the KV memory by tenant: how they are written, read and checked.

The value they become is imported when it is made: settings are read before anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, cast

from octavo.errors import ConfigError
from octavo.parameters import read_json

if TYPE_CHECKING:
    from octavo.contract.retention import TenantShare

_FIELDS = ("guaranteed", "maximum")


def write_tenants(setting: object) -> str | None:
    """Write shares as JSON text that `read_tenants` reads; None stays. Raises ConfigError.

    setting: JSON text, or a mapping of a tenant's name to {"guaranteed": share, "maximum": share}.
    """
    if setting is None:
        return None
    if isinstance(setting, str):
        try:
            setting = read_json("tenants", setting)
        except ConfigError:  # a ValueError too
            raise
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
    rows = dict(_share(name, one) for name, one in cast("Mapping[object, object]", setting).items())
    total = sum(row["guaranteed"] for row in rows.values())
    if total > 1 + 1e-9:
        raise ConfigError(
            f"tenants are guaranteed {total:g} of the KV memory together: lower shares to 1 in all"
        )
    return json.dumps(rows)


def read_tenants(text: str | None) -> tuple[TenantShare, ...]:
    """Read what `write_tenants` wrote."""
    from octavo.contract.retention import TenantShare

    rows = {} if text is None else json.loads(text)
    return tuple(TenantShare(name, **fields) for name, fields in rows.items())


def _share(name: object, fields: object) -> tuple[str, dict[str, float]]:
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
        if not number or not 0 <= cast("float", value) <= 1:
            raise ConfigError(
                f"tenants: {key} of {name!r} must be a share from 0 to 1, got {value!r:.80}"
            )
    numbers = cast("Mapping[str, float]", given)
    share = {
        "guaranteed": float(numbers.get("guaranteed", 0.0)),
        "maximum": float(numbers.get("maximum", 1.0)),
    }
    if share["guaranteed"] > share["maximum"]:
        raise ConfigError(
            f"tenants: {name!r} is guaranteed {share['guaranteed']:g}, more than its maximum of "
            f"{share['maximum']:g}"
        )
    return name, share
