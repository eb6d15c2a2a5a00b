"""What the command line keeps about a run: its settings (`config.toml`) and its state (`run.json`)."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from evolvent import __version__
from evolvent.cli.console import open_console
from evolvent.config import Config, as_dict, redact, to_toml
from evolvent.errors import ConfigError, Problem
from evolvent.files import disk_errors, write_atomic
from evolvent.logs import about
from evolvent.view.escape import plain

__all__ = ["RUNS", "Record", "new_folder", "recorded", "versions"]

RUNS = Path("runs")
State = Literal["running", "finished", "interrupted", "failed"]
_PACKAGES = ("numpy", "pyarrow", "pydantic", "torch", "transformers")


@dataclass(frozen=True)
class Record:
    """What is written about a run beside its results.

    Args:
        verb: the verb that does it, and goes on with it.
        config: its resolved configuration, secrets redacted on writing.
        seed: all its randomness derives from it.
        arms: the arms that its results name.
        method: the method that the verb runs, where it has another name.
        program: how the command is started.
    """

    verb: str
    config: Config
    seed: int
    arms: tuple[str, ...] = ()
    method: str = ""
    program: str = "evolvent"


def new_folder(verb: str, to: Path | None) -> Path:
    """Where a new run goes: the folder asked for, or the first free `runs/VERB-N`.

    Raises:
        ConfigError: the folder holds a run already.
    """
    if to is None:
        with disk_errors(RUNS):
            taken = {path.name for path in RUNS.iterdir()} if RUNS.exists() else set()
        return RUNS / next(name for name in (f"{verb}-{n}" for n in range(1, len(taken) + 2)) if name not in taken)
    if (to / "run.json").exists() or (to / "config.toml").exists():
        raise ConfigError([Problem("to", f"{to} holds a run already", f"choose another folder, or --resume {to}")])
    return to


def versions() -> dict[str, str]:
    """Versions of everything that a result depends on; imports none of it."""
    found = {"evolvent": __version__, "python": platform.python_version(), "platform": platform.platform(terse=True)}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@contextmanager
def recorded(folder: Path, record: Record) -> Iterator[None]:
    """Write the settings, and the state as it changes: running, then finished, interrupted or failed.

    After an interrupt a line says which command goes on. Enter it when the run is open, so that nobody's record is
    touched whose folder is locked.
    """
    if not (folder / "config.toml").exists():
        write_atomic(folder / "config.toml", to_toml(record.config))
    _write(folder, record, "running")
    state: State = "failed"
    try:
        with about(folder.name):
            yield
        state = "finished"
    except (KeyboardInterrupt, SystemExit):
        state = "interrupted"
        words = plain(f"go on with: {record.program} {record.verb} --resume {folder}")
        open_console(stderr=True).print(words, soft_wrap=True)
        raise
    finally:
        _write(folder, record, state)


def _write(folder: Path, record: Record, state: State) -> None:
    path = folder / "run.json"
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    row = {
        "verb": record.verb,
        "method": record.method or record.verb,
        "name": folder.name,
        "seed": record.seed,
        "created": _created(path) or created,
        "versions": versions(),
        "config": as_dict(record.config),
        "command": redact(_command(sys.argv[1:])),
        "state": state,
        "arms": list(record.arms),
    }
    write_atomic(path, json.dumps(row, indent=1))


def _created(path: Path) -> str | None:
    try:
        row: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(row.get("created")) if isinstance(row, dict) else None


def _command(words: Sequence[str]) -> list[str]:
    """The words of the command; the value after an option with a secret name is hidden."""
    shown: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        name, mark, _ = word.partition("=")
        if before.startswith("--") and "=" not in before:
            word = str(redact({before: word})[before])
        elif mark:
            word = f"{name}={redact({name: word.partition('=')[2]})[name]}"
        shown.append(word)
    return ["evolvent", *shown]
