"""Fault 14: a port in use is refused by its number; beyond the loopback nothing is served without a token."""

import io
import socket

import pytest

from evolvent.cli.serve import run
from evolvent.cli.terminal.console import make_console
from evolvent.errors import ConfigError
from evolvent.serve.listen import listen, listening_url


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port} of 127.0.0.1 is in use"):
            listen("127.0.0.1", port)
        with pytest.raises(ConfigError, match=f"port: {port} of 127.0.0.1 is in use"):
            _serve("--port", str(port))


def _console():
    return make_console(io.StringIO(), {})


def _serve(*words):
    return run(["maze", *words], _console())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_beyond_the_loopback_a_token_is_needed(monkeypatch, host):
    monkeypatch.delenv("EVOLVENT_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="no token is set"):
        _serve("--host", host, "--port", "0")


def test_a_token_that_could_be_guessed_is_refused(monkeypatch):
    monkeypatch.setenv("EVOLVENT_TOKEN", "hunter2")
    with pytest.raises(ConfigError, match="at least 16") as caught:
        _serve("--host", "0.0.0.0", "--port", "0")
    assert "hunter2" not in str(caught.value)


def test_a_host_that_is_not_this_machine(monkeypatch):
    monkeypatch.setenv("EVOLVENT_TOKEN", "a-token-of-24-characters")
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.7"):
        _serve("--host", "192.0.2.7", "--port", "0")


def test_a_socket_of_ours_sends_small_answers_at_once():
    """asyncio looks at the protocol number before it switches Nagle's algorithm off."""
    with listen("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP
        assert listening_url(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"
    with listen("localhost", 0) as bound:
        assert "0.0.0.0" not in listening_url(bound)
