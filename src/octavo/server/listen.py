"""Where a server listens: sockets are bound before anything heavy is loaded."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from dataclasses import dataclass

from octavo.errors import ConfigError

BACKLOG = 2048
_PROBES = 3
"""Unanswered questions after which a client has vanished."""
_MOST_FILES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files of a server that speaks HTTPS. Raises ConfigError where they cannot be used."""

    certfile: str
    keyfile: str | None = None
    """None: the key stands in the certificate's file."""
    ca_certs: str | None = None
    """What clients' certificates are checked against."""
    cert_reqs: int = 0
    """0: clients need no certificate, 1: if they have one, 2: they need one."""

    def __post_init__(self) -> None:
        if self.cert_reqs not in (0, 1, 2):
            raise ConfigError(f"--ssl-cert-reqs must be 0, 1 or 2, got {self.cert_reqs}")
        if self.cert_reqs and self.ca_certs is None:
            raise ConfigError(
                f"--ssl-cert-reqs {self.cert_reqs} needs certificates to check against: give "
                "--ssl-ca-certs"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certfile, self.keyfile, _no_password)
            if self.ca_certs is not None:
                context.load_verify_locations(self.ca_certs)
        except (OSError, ValueError) as error:  # those of ssl are among them
            files = ", ".join(one for one in (self.certfile, self.keyfile, self.ca_certs) if one)
            raise ConfigError(f"HTTPS cannot be set up from {files}: {error}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for its password")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Raises ConfigError."""
    if not 0 <= port < 65536:
        raise ConfigError(f"--port must be from 0 to 65535, got {port}")
    if not host:  # for the system it would be every address
        raise ConfigError("--host must not be empty: 0.0.0.0 is all that this machine has")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise _refused(f"{host} port {port}", error, "--port") from None


def listen_at_path(path: str) -> socket.socket:
    """Return a socket that listens at a path; one that nobody listens at any more is replaced.

    Raises ConfigError.
    """
    if not path or "\0" in path:  # Linux would give it a name that no folder has
        raise ConfigError(f"--uds must be the path of a socket, got {path!r}")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        server.bind(path)
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        raise _refused(path, error, "--uds") from None
    return server


def notice_vanished(server: socket.socket, seconds: float) -> None:
    """Let the system end connections to clients that have gone without a word; 0: it does not.

    A machine that is cut off says nothing: it is asked after half of the time without a byte, and
    what it does not confirm in all of it ends the connection. Connections inherit this.
    """
    if server.family is socket.AF_UNIX or not seconds:
        return
    server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    whole = max(1, round(seconds))
    every = max(1, whole // (2 * _PROBES))
    for name, value in (
        ("TCP_KEEPIDLE", max(1, whole // 2)),
        ("TCP_KEEPINTVL", every),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", 1000 * whole),
    ):
        option = getattr(socket, name, None)  # not all systems have each of them
        if option is not None:
            server.setsockopt(socket.IPPROTO_TCP, option, value)


def address_of(server: socket.socket, *, tls: bool) -> str:
    """Write where a socket listens, as people open it."""
    if server.family is socket.AF_UNIX:
        return f"unix:{server.getsockname()}"
    host, port = str(server.getsockname()[0]), int(server.getsockname()[1])
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def is_local(server: socket.socket) -> bool:
    """True if only this machine can reach it."""
    if server.family is socket.AF_UNIX:
        return True
    host = str(server.getsockname()[0])
    return host.startswith("127.") or host == "::1"


def allow_many_files() -> None:
    """Raise the number of open files as far as the system lets: each connection is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _clear(path: str) -> None:
    """Remove a socket that nobody listens at."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _refused(where: str, error: Exception, flag: str) -> ConfigError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return ConfigError(f"{where} is in use: end what listens there, or give another {flag}")
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"cannot listen at {where}: {said}")
