"""`evolvent doctor`: checks what this machine offers and lacks, and suggests fixes. Imports neither torch nor
worlds.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.console import Console

from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.parsing import Parser
from evolvent.errors import IsolationUnavailable
from evolvent.sandbox.bubblewrap import isolation

__all__ = ["Finding", "examine", "run"]

CORE = ("numpy", "pyarrow", "pydantic", "rich", "jinja2")
EXTRAS = {"train": ("torch", "transformers", "safetensors")}
MIN_FREE_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the examination: `fail` means that evolvent does not work here, `note` that a feature is limited."""

    check_name: str
    state: Literal["ok", "note", "fail"]
    detail: str


def run(argv: Sequence[str], console: Console) -> int:
    """Prints the findings; returns 1 where one of them failed."""
    Parser("evolvent doctor", "What this machine offers, what is missing, and what to do about it.").parse_argv(argv)
    findings = list(examine(Path.cwd(), console))
    console.print(
        render_table(console, ("what", "state", "found"), [(f.check_name, f.state, f.detail) for f in findings])
    )
    failed = [finding.check_name for finding in findings if finding.state == "fail"]
    console.print(f"does not work here: {', '.join(failed)}" if failed else "evolvent works here")
    return 1 if failed else 0


def examine(folder: Path, console: Console) -> Iterator[Finding]:
    """Yields every finding about this process, this machine, and a folder for runs."""
    python = platform.python_version()
    yield Finding("python", "ok" if sys.version_info >= (3, 11) else "fail", f"{python}, evolvent needs 3.11 or newer")
    yield from _check_packages()
    yield from _check_machine()
    yield _check_disk(folder)
    yield _check_writable("folder", folder, "fail")
    yield _check_writable("temporary files", Path(tempfile.gettempdir()), "fail")
    yield _check_writable("home", Path.home(), "note")
    yield _check_isolation()
    yield _check_terminal(console)
    browser = next((name for name in ("chromium", "google-chrome") if shutil.which(name)), None)
    yield Finding("browser", "ok" if browser else "note", browser or "none on the path: open reports by hand")


def _check_packages() -> Iterator[Finding]:
    for name in CORE:
        installed_version = _installed_version(name)
        yield Finding(
            name, "ok" if installed_version else "fail", installed_version or "missing; run: pip install evolvent"
        )
    for extra, names in EXTRAS.items():
        versions = {name: _installed_version(name) for name in names}
        missing = [name for name, installed_version in versions.items() if installed_version is None]
        installed_text = ", ".join(
            f"{name} {installed_version}" for name, installed_version in versions.items() if installed_version
        )
        missing_text = f"without {', '.join(missing)}; run: pip install 'evolvent[{extra}]'"
        yield Finding(f"[{extra}]", "note" if missing else "ok", missing_text if missing else installed_text)


def _installed_version(name: str) -> str | None:
    try:
        return version(name) if find_spec(name) is not None else None
    except PackageNotFoundError:
        return "present, version unknown"
    except ImportError:
        return None


def _check_machine() -> Iterator[Finding]:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS")
    yield Finding("threads", "ok", f"{num_cores} cores usable, OMP_NUM_THREADS {limit or 'not set'}")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Finding("memory", "ok", f"{memory / 2**30:.1f} GiB")
    accelerator = shutil.which("nvidia-smi") or shutil.which("rocm-smi")
    yield Finding("accelerator", "ok", Path(accelerator).name + " found" if accelerator else "none: runs on the CPU")


def _check_disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    return Finding("disk", "ok" if free >= MIN_FREE_BYTES else "note", f"{free / 2**30:.1f} GiB free here")


def _check_writable(check_name: str, folder: Path, failure_state: Literal["note", "fail"]) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Finding(check_name, "ok", "can be written")
    except OSError as error:
        return Finding(check_name, failure_state, f"cannot be written: {error.strerror}")


def _check_isolation() -> Finding:
    """Checks whether code that models write can run isolated from this process, by running an empty box."""
    try:
        host = isolation()
    except IsolationUnavailable as error:
        return Finding("isolation", "note", str(error))
    return Finding("isolation", "ok", f"bubblewrap {host.version} at {host.program}")


def _check_terminal(console: Console) -> Finding:
    terminal_text = "terminal" if console.is_terminal else "no terminal"
    color_text = "no colour" if console.no_color or not console.is_terminal else str(console.color_system)
    return Finding("output", "ok", f"{terminal_text}, {console.width} columns, {color_text}, {console.encoding}")
