"""Who sends requests, what is theirs alone, and what they may take."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from octavo.contract.retention import DEFAULT_TENANT
from octavo.errors import ConfigError

SHARED = ""
"""The namespace of all that share what they have in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """What one tenant may take of a server; None: as much as there is.

    Raises ConfigError for a limit that lets nothing through.
    """

    max_running: int | None = None
    """Answers that the engine gives at once; requests for more of them wait."""
    max_queued: int | None = None
    """Those that wait; more are refused."""
    tokens_per_minute: int | None = None
    """Of prompts and answers."""

    def __post_init__(self) -> None:
        for name, least in (("max_running", 1), ("max_queued", 0), ("tokens_per_minute", 1)):
            value: object = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"{name} must be a whole number of at least {least}, or nothing, got {value!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One who holds keys."""

    name: str
    namespace: str | None = None
    """Tenants share what is in memory only if their namespaces are equal, `SHARED` among them;
    None: one of its own, which no name equals."""
    limits: TenantLimits = TenantLimits()
    guaranteed: float = 0.0
    """Share of the KV memory that others cannot take."""
    maximum: float = 1.0
    """Share of the KV memory that it never exceeds."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a tenant needs a name")

    def salt(self, cache_salt: str | None = None) -> str:
        """Return the salt of its namespace. cache_salt: as its request chose, to keep apart more.

        No two different (tenant or namespace, cache_salt) spell the same salt.
        """
        if self.namespace == SHARED and cache_salt is None:
            return ""
        whose = ["tenant", self.name] if self.namespace is None else ["namespace", self.namespace]
        return json.dumps([*whose, cache_salt], ensure_ascii=False, separators=(",", ":"))


ANYBODY = Tenant(name=DEFAULT_TENANT)
"""Who sends requests to a server without keys."""


class Keyring(Protocol):
    """Knows keys."""

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """All tenants, in the order in which they were named."""
        ...

    def tenant(self, key: str | None) -> Tenant | None:
        """Return whose a key is; None: nobody's, or none was given and one is needed."""
        ...

    def admin(self, key: str | None) -> bool | None:
        """Say whether a key is an administrator's; None: there are none at all."""
        ...


class OpenKeyring:
    """Lets everybody in as one tenant; nobody is an administrator."""

    def __init__(self, tenant: Tenant = ANYBODY) -> None:
        self._tenant = tenant

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """The only one."""
        return (self._tenant,)

    def tenant(self, key: str | None) -> Tenant | None:
        """Return the only one."""
        return self._tenant

    def admin(self, key: str | None) -> bool | None:
        """Return None."""
        return None
