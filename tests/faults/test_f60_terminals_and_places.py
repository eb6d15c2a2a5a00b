"""Fault 60: no terminal, NO_COLOR, 40 columns, foreign locale, strange paths, read-only home, no network: it works."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time

import pytest

NO_NETWORK = """
import socket
def refuse(*words, **more):
    raise OSError("no network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


def last_words(handle: int, process: subprocess.Popen[bytes], until: bytes = b"", timeout_s: float = 60) -> bytes:
    """What a terminal shows until the process ends or a text has come."""
    shown, end = b"", time.monotonic() + timeout_s
    while time.monotonic() < end and not (until and until in shown):
        ready, _, _ = select.select([handle], [], [], 0.1)
        if ready:
            try:
                piece = os.read(handle, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not piece:
                break
            shown += piece
        elif process.poll() is not None:
            break
    return shown


def on_terminal(command, *words: str, **changes: str) -> tuple[int, subprocess.Popen[bytes]]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command.program, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=command.environment(TERM="xterm-256color", **changes),
    )
    os.close(theirs)
    return ours, process


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_with_and_without_colour(command, no_color, coloured):
    ours, process = on_terminal(command, "worlds", "list", NO_COLOR=no_color, COLUMNS="80")
    shown = last_words(ours, process)
    os.close(ours)
    assert process.wait(60) == 0 and b"lookup" in shown
    colours = [b"\x1b[%dm" % code for code in range(30, 38)] + [b"\x1b[1m"] * coloured
    assert any(code in shown for code in colours) == coloured


def test_playing_on_a_terminal_until_control_d(command):
    ours, process = on_terminal(command, "worlds", "play", "lookup", COLUMNS="40")
    assert b"> " in last_words(ours, process, b"> ")
    os.write(ours, b"\x04")
    assert b"ended before" in last_words(ours, process)
    os.close(ours)
    assert process.wait(60) == 0


NARROW = [("doctor",), ("worlds", "list"), ("worlds", "audit", "lookup", "--limit", "2")]
LOCALES = [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "latin-1"}]


@pytest.mark.parametrize("words", NARROW, ids=" ".join)
def test_forty_columns(command, words, tmp_path):
    done = command(*words, cwd=tmp_path, COLUMNS="40")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 40
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("locale", LOCALES, ids=["C", "latin-1"])
def test_a_locale_without_the_characters(command, locale, tmp_path):
    done = command("worlds", "list", cwd=tmp_path, **locale)
    assert done.returncode == 0 and "lookup" in done.stdout
    done = command("worlds", "show", "wörld-☃", cwd=tmp_path, **locale)
    assert done.returncode == 2 and "unknown world" in done.stderr and "Traceback" not in done.stderr


def test_strange_paths_no_home_no_network(command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    home = tmp_path / "home is a file"
    home.write_text("", encoding="utf-8")
    place = tmp_path / "a place — ünïcode 'quoted'"
    place.mkdir()
    around = {"PYTHONPATH": str(tmp_path), "HOME": str(home), "XDG_CACHE_HOME": str(home), "LC_ALL": "C"}
    done = command("collect", "--agent", "expert", "--limit", "3", "--to", "a run; $HOME", cwd=place, **around)
    assert done.returncode == 0, done.stderr
    assert "6 episodes, success 100%" in done.stdout
    for words in (("runs", "list", "."), ("runs", "show", "a run; $HOME"), ("view", "a run; $HOME")):
        again = command(*words, cwd=place, **around)
        assert again.returncode == 0, again.stderr
    assert (place / "a run; $HOME" / "report.html").is_file()
    assert home.read_text(encoding="utf-8") == ""


def test_a_folder_that_cannot_be_written(command, tmp_path):
    done = command("collect", "--limit", "2", "--to", "/proc/self/run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot use /proc/self/run") and done.stderr.count("\n") == 1
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = command("collect", "--limit", "2", "--to", tmp_path / "file" / "run", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
