"""The command line's record of a run: its settings (`config.toml`) and its state (`run.json`)."""

from __future__ import annotations

import json
import platform
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from evolvent import __version__
from evolvent.cli.terminal.console import open_console
from evolvent.config import Config, as_dict, redact, to_toml
from evolvent.errors import ConfigError, Problem
from evolvent.files import disk_errors, write_atomic
from evolvent.logs import log_run
from evolvent.run import changed_code, record_code, world_code
from evolvent.view.escape import show_hidden

__all__ = [
    "RUNS",
    "RunRecord",
    "check_code",
    "choose_run_folder",
    "collect_versions",
    "read_recorded_worlds",
    "read_run_verb",
    "record_run",
]

RUNS = Path("runs")
State = Literal["running", "finished", "interrupted", "failed"]
_PACKAGES = ("numpy", "pyarrow", "pydantic", "torch", "transformers")


@dataclass(frozen=True)
class RunRecord:
    """The record of a run that is written beside its results.

    Args:
        verb: the verb that runs it, and resumes it.
        config: its resolved configuration, secrets redacted on writing.
        seed: all its randomness derives from it.
        arms: the arms that its results name.
        method: the method that the verb runs, where it has another name.
        program: the program that starts the command.
    """

    verb: str
    config: Config
    seed: int
    arms: tuple[str, ...] = ()
    method: str = ""
    program: str = "evolvent"


def choose_run_folder(verb: str, output_dir: Path | None) -> Path:
    """Returns the folder of a new run: the requested one, or the first free `runs/VERB-N`.

    Raises:
        ConfigError: the folder holds a run already, or is a file.
    """
    if output_dir is None:
        with disk_errors(RUNS):
            existing_names = {path.name for path in RUNS.iterdir()} if RUNS.exists() else set()
        return RUNS / next(
            name for name in (f"{verb}-{n}" for n in range(1, len(existing_names) + 2)) if name not in existing_names
        )
    if output_dir.exists() and not output_dir.is_dir():
        hint = "choose the name of a new folder"
        raise ConfigError([Problem("output_dir", f"{output_dir} is a file, expected a folder", hint)])
    if (output_dir / "run.json").exists() or (output_dir / "config.toml").exists():
        raise ConfigError(
            [
                Problem(
                    "output_dir",
                    f"{output_dir} already holds a run",
                    f"choose another folder, or pass --resume {output_dir}",
                )
            ]
        )
    return output_dir


def read_recorded_worlds(folder: Path) -> tuple[str, ...]:
    """Reads the names of the worlds of a run from its settings; none where it records none."""
    try:
        names = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")).get("worlds")
    except (OSError, ValueError):
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def collect_versions() -> dict[str, str]:
    """Returns the versions of everything that a result depends on; imports none of it."""
    version_by_name = {
        "evolvent": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
    }
    for name in _PACKAGES:
        try:
            version_by_name[name] = version(name)
        except PackageNotFoundError:
            version_by_name[name] = "not installed"
    return version_by_name


def check_code(folder: Path, worlds: Mapping[str, object], *, is_resumed: bool) -> None:
    """Records the digests of the user's worlds and rewards in a run folder; of a resumed run it compares them.

    Raises:
        ConfigError: code that changed: new episodes would be mixed with earlier ones of other rules.
    """
    code = world_code(worlds)
    changed = changed_code(folder, code) if is_resumed else []
    if changed:
        message = f"the code of {', '.join(changed)} has changed since {folder} began"
        hint = "start a new run; its episodes would be mixed with those of the earlier code"
        raise ConfigError([Problem("--resume", message, hint)])
    record_code(folder, code)


@contextmanager
def record_run(folder: Path, record: RunRecord) -> Iterator[None]:
    """Writes the settings, and the state as it changes: running, then finished, interrupted or failed.

    After an interrupt a line names the command that resumes the run. Enter the context when the run is open, so
    that the record of a locked folder is never touched.
    """
    if not (folder / "config.toml").exists():
        write_atomic(folder / "config.toml", to_toml(record.config))
    _write_state(folder, record, "running")
    state: State = "failed"
    try:
        with log_run(folder.name):
            yield
        state = "finished"
    except (KeyboardInterrupt, SystemExit):
        state = "interrupted"
        resume_command = show_hidden(f"go on with: {record.program} {record.verb} --resume {folder}")
        open_console(stderr=True).print(resume_command, soft_wrap=True)
        raise
    finally:
        _write_state(folder, record, state)


def _write_state(folder: Path, record: RunRecord, state: State) -> None:
    path = folder / "run.json"
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    row = {
        "verb": record.verb,
        "method": record.method or record.verb,
        "name": folder.name,
        "seed": record.seed,
        "created": _read_created(path) or created,
        "versions": collect_versions(),
        "config": as_dict(record.config),
        "command": redact(_redact_argv(sys.argv[1:])),
        "state": state,
        "arms": list(record.arms),
    }
    write_atomic(path, json.dumps(row, indent=1))


def read_run_verb(folder: Path) -> str | None:
    """Returns the verb of the run in a folder; None where there is no run."""
    return _read_field(folder / "run.json", "verb")


def _read_created(path: Path) -> str | None:
    return _read_field(path, "created")


def _read_field(path: Path, name: str) -> str | None:
    try:
        row: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    value = row.get(name) if isinstance(row, dict) else None
    return None if value is None else str(value)


def _redact_argv(argv: Sequence[str]) -> list[str]:
    """Returns the arguments of the command; values of options with a secret name are hidden."""
    redacted: list[str] = []
    for previous, word in zip(["", *argv], argv, strict=False):
        name, equals_sign, _ = word.partition("=")
        if previous.startswith("--") and "=" not in previous:
            word = str(redact({previous: word})[previous])
        elif equals_sign:
            word = f"{name}={redact({name: word.partition('=')[2]})[name]}"
        redacted.append(word)
    return ["evolvent", *redacted]
