"""The socket of a server, bound before anything else is started, so that a port in use gives a clear error."""

from __future__ import annotations

import errno
import socket

from evolvent.errors import ConfigError, Problem

__all__ = ["listen", "listening_url"]


def listen(host: str, port: int) -> socket.socket:
    """Returns a bound TCP socket; port 0: a free port, chosen by the system.

    It is made as TCP by number: asyncio switches Nagle's algorithm off only for such sockets, and with it an answer in
    several writes waits 40 ms for the client's acknowledgement.

    Raises:
        ConfigError: the port is in use, or the host is not an address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError([Problem("host", f"cannot resolve {host!r}", error.strerror or "")]) from error
    bound_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound_socket.bind(address)
    except OSError as error:
        bound_socket.close()
        if error.errno == errno.EADDRINUSE:
            problem = Problem(
                "port",
                f"{port} of {host} is in use",
                "stop the process that uses it, or choose another port (0 for any free port)",
            )
        else:
            problem = Problem("host", f"cannot listen on {host}:{port}", error.strerror or str(error))
        raise ConfigError([problem]) from error
    return bound_socket


def listening_url(bound_socket: socket.socket, scheme: str = "http") -> str:
    """Returns the URL under which a client of this machine reaches a listening socket."""
    host, port = bound_socket.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"
