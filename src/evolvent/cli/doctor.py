"""`evolvent doctor`: what this machine offers, what is missing, what to do about it. Loads neither torch nor worlds."""

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

from evolvent.cli.console import table
from evolvent.cli.parsing import Parser

__all__ = ["Finding", "examine", "run"]

CORE = ("numpy", "pyarrow", "pydantic", "rich", "jinja2")
EXTRAS = {"train": ("torch", "transformers", "safetensors")}
LEAST_FREE_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination: `fail` means that evolvent does not work here, `note` that something is limited."""

    what: str
    state: Literal["ok", "note", "fail"]
    found: str


def run(words: Sequence[str], console: Console) -> int:
    """Print the findings; returns 1 where one of them failed."""
    Parser("evolvent doctor", "What this machine offers, what is missing, and what to do about it.").read(words)
    findings = list(examine(Path.cwd(), console))
    console.print(table(console, ("what", "state", "found"), [(f.what, f.state, f.found) for f in findings]))
    failed = [finding.what for finding in findings if finding.state == "fail"]
    console.print(f"does not work here: {', '.join(failed)}" if failed else "evolvent works here")
    return 1 if failed else 0


def examine(folder: Path, console: Console) -> Iterator[Finding]:
    """Every finding about this process, this machine and a folder that runs would be written to."""
    python = platform.python_version()
    yield Finding("python", "ok" if sys.version_info >= (3, 11) else "fail", f"{python}, evolvent needs 3.11 or newer")
    yield from _packages()
    yield from _machine()
    yield _disk(folder)
    yield _writable("folder", folder, "fail")
    yield _writable("temporary files", Path(tempfile.gettempdir()), "fail")
    yield _writable("home", Path.home(), "note")
    yield _isolation()
    yield _terminal(console)
    browser = next((name for name in ("chromium", "google-chrome") if shutil.which(name)), None)
    yield Finding("browser", "ok" if browser else "note", browser or "none on the path: open reports by hand")


def _packages() -> Iterator[Finding]:
    for name in CORE:
        found = _version(name)
        yield Finding(name, "ok" if found else "fail", found or "missing; run: pip install evolvent")
    for extra, names in EXTRAS.items():
        versions = {name: _version(name) for name in names}
        missing = [name for name, found in versions.items() if found is None]
        have = ", ".join(f"{name} {found}" for name, found in versions.items() if found)
        lack = f"without {', '.join(missing)}; run: pip install 'evolvent[{extra}]'"
        yield Finding(f"[{extra}]", "note" if missing else "ok", lack if missing else have)


def _version(name: str) -> str | None:
    try:
        return version(name) if find_spec(name) is not None else None
    except PackageNotFoundError:
        return "present, version unknown"
    except ImportError:
        return None


def _machine() -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS")
    yield Finding("threads", "ok", f"{usable} cores usable, OMP_NUM_THREADS {limit or 'not set'}")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Finding("memory", "ok", f"{memory / 2**30:.1f} GiB")
    accelerator = shutil.which("nvidia-smi") or shutil.which("rocm-smi")
    yield Finding("accelerator", "ok", Path(accelerator).name + " found" if accelerator else "none: runs on the CPU")


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    return Finding("disk", "ok" if free >= LEAST_FREE_BYTES else "note", f"{free / 2**30:.1f} GiB free here")


def _writable(what: str, folder: Path, otherwise: Literal["note", "fail"]) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Finding(what, "ok", "can be written")
    except OSError as error:
        return Finding(what, otherwise, f"cannot be written: {error.strerror}")


def _isolation() -> Finding:
    """Whether model-written code could be run apart from this process: kernel namespaces for ordinary users."""
    limit = Path("/proc/sys/user/max_user_namespaces")
    try:
        many = int(limit.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return Finding("isolation", "note", "no user namespaces: nothing model-written can be run here")
    return Finding("isolation", "ok" if many else "note", f"user namespaces: at most {many}")


def _terminal(console: Console) -> Finding:
    kind = "terminal" if console.is_terminal else "no terminal"
    colour = "no colour" if console.no_color or not console.is_terminal else str(console.color_system)
    return Finding("output", "ok", f"{kind}, {console.width} columns, {colour}, {console.encoding}")
