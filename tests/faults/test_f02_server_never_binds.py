"""Fault 2: a server that ends at import, or never listens, fails soon and with the last words of its log."""

import sys

import pytest

from evolvent.errors import ConfigError, EnvLost
from evolvent.serve.launch import launch_server


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_command_that_ends_at_import():
    with pytest.raises(EnvLost, match="exit code 1") as caught:
        with launch_server(program("print('loading the game data'); import no_such_package"), ready_s=30):
            pass
    assert "loading the game data" in str(caught.value) and "No module named 'no_such_package'" in str(caught.value)


def test_a_command_that_never_listens_is_ended():
    text = "import time; print('almost there http://127.0.0.1:9', flush=True); time.sleep(60)"
    with pytest.raises(EnvLost, match="no answer in 1 s") as caught:
        with launch_server(program(text), ready_s=1):
            pass
    assert "almost there" in str(caught.value)


def test_only_the_last_lines_are_kept():
    with pytest.raises(EnvLost) as caught:
        with launch_server(program("print(*range(10_000), sep='\\n')"), ready_s=30):
            pass
    assert "9999" in str(caught.value) and len(str(caught.value)) < 2000


def test_a_program_that_does_not_exist():
    with pytest.raises(ConfigError, match="cannot start 'no-such-program'"):
        with launch_server(["no-such-program"]):
            pass


def test_a_server_that_listens_is_stopped_with_the_block():
    text = (
        "import socket, time\nmade = socket.create_server(('127.0.0.1', 0))\n"
        "print('at http://127.0.0.1:%d/path' % made.getsockname()[1], flush=True)\ntime.sleep(60)"
    )
    with launch_server(program(text)) as server:
        assert server.url.startswith("http://127.0.0.1:") and server.is_listening() and server.process.poll() is None
    assert server.process.poll() is not None and not server.is_listening()


def test_a_server_that_ignores_being_terminated_is_killed(monkeypatch):
    monkeypatch.setattr("evolvent.serve.launch._STOP_S", 0.3)
    text = (
        "import signal, socket, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "made = socket.create_server(('127.0.0.1', 0))\n"
        "print('http://127.0.0.1:%d' % made.getsockname()[1], flush=True)\ntime.sleep(60)"
    )
    with launch_server(program(text)) as server:
        pass
    assert server.process.poll() == -9
