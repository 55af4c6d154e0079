"""Whose a key is: known by digests alone, so that no key stands in memory or in a log."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from octavo.errors import ConfigError
from octavo.server.tenants import ANYBODY, Tenant

PREFIX = "sha256:"
_DIGEST_CHARS = 64
_SHORT = 8


def digest_of(key: str) -> bytes:
    """Return the digest of a key, as text or as `sha256:` and its digest in hexadecimal digits.

    Raises ConfigError for a key that could not be sent: empty, or with blanks or other signs than
    those of ASCII.
    """
    if key.startswith(PREFIX):
        digits = key.removeprefix(PREFIX)
        try:
            digest = bytes.fromhex(digits)
        except ValueError:
            digest = b""
        if len(digits) != _DIGEST_CHARS or len(digest) != _DIGEST_CHARS // 2:
            raise ConfigError(
                f"a key that begins with {PREFIX} must go on with {_DIGEST_CHARS} hexadecimal "
                f"digits, this one has {len(digits)} characters"
            )
        return digest
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"a key of {len(key)} characters cannot be sent in a header: use visible ASCII "
            "characters without blanks"
        )
    return sha256(key.encode()).digest()


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """A tenant and its keys."""

    tenant: Tenant
    keys: tuple[str, ...]
    """As text, or as their digests: see `digest_of`."""


class KeyTable:
    """A `Keyring` of digests. Raises ConfigError for a key that is two tenants'.

    Without holders everybody is `anybody`. admins: keys of administrators; none: there are no
    administrators at all.
    """

    def __init__(
        self,
        holders: Iterable[KeyHolder],
        admins: Iterable[str] = (),
        *,
        anybody: Tenant = ANYBODY,
    ) -> None:
        self._holders: dict[bytes, Tenant] = {}
        tenants: dict[str, Tenant] = {}
        for holder in holders:
            name = holder.tenant.name
            if tenants.setdefault(name, holder.tenant) != holder.tenant:
                raise ConfigError(f"tenant {name!r} is named twice: give all its keys in one place")
            for key in holder.keys:
                other = self._holders.setdefault(digest_of(key), holder.tenant)
                if other != holder.tenant:
                    raise ConfigError(
                        f"tenants {other.name!r} and {name!r} have the same key: give each its own"
                    )
        self._anybody = None if tenants else anybody
        self.tenants: tuple[Tenant, ...] = tuple(tenants.values()) or (anybody,)
        """All tenants, in the order in which they were named."""
        self._admins = [digest_of(key) for key in admins]
        if any(digest in self._holders for digest in self._admins):
            raise ConfigError("a tenant's key is an administrator's too: give them different ones")

    def tenant(self, key: str | None) -> Tenant | None:
        """Return whose a key is; None: nobody's, or none was given and one is needed."""
        if self._anybody is not None:
            return self._anybody
        # A digest tells nothing of the key, however long looking it up takes.
        return None if key is None else self._holders.get(_digest(key))

    def admin(self, key: str | None) -> bool | None:
        """Say whether a key is an administrator's; None: there are none at all."""
        if not self._admins:
            return None
        digest = _digest(key or "")
        return any([hmac.compare_digest(digest, known) for known in self._admins])


def holders_of_flags(
    keys: Iterable[str], tenants: Mapping[str, Tenant], like: Tenant
) -> list[KeyHolder]:
    """Return a tenant for each key that has no name: `key-` and the digest's first digits.

    tenants: those with that name that are known otherwise. like: what the others are like.
    """
    holders: list[KeyHolder] = []
    for key in dict.fromkeys(keys):
        name = f"key-{digest_of(key).hex()[:_SHORT]}"
        tenant = tenants.get(name) or Tenant(
            name=name, namespace=like.namespace, limits=like.limits
        )
        holders.append(KeyHolder(tenant, (key,)))
    return holders


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
