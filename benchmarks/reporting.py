"""What every benchmark says of itself: its options, the versions and the machine it ran on, and its figures as JSON.

A benchmark prints a table for people; with `--json` its last line is one JSON object with the figures, `versions`,
`machine` and the seeds, with `--save` that object is a file of `benchmarks/results`, which `benchmarks.page` reads.

    parser = command_line("name", __doc__, quick="what a quick run leaves out", save=RESULTS / "name.json")
    options = parser.parse_args(arguments)
    found = {"benchmark": "name", **figures, "seed": SEED, **about("torch", threads=1)}
    show(found)
    finish(found, options)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from evolvent.files import write_atomic

__all__ = ["RESULTS", "about", "command_line", "finish", "load", "machine", "show", "versions", "write"]

RESULTS = Path(__file__).parent / "results"


class _Options(argparse.ArgumentParser):
    """A parser that keeps what was measured: a quick run, which supports no claim, is saved under another name only."""

    kept: Path | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if self.kept is not None and found.quick and found.save == self.kept:
            self.error("--quick supports no claim and is not kept beside measurements: name a file, --save FILE")
        return found, rest


def command_line(name: str, doc: str | None, *, quick: str, save: Path | None = None) -> argparse.ArgumentParser:
    """A parser with `--json`, `--quick` and, where a benchmark keeps one file, `--save`; others are added by it.

    Args:
        name: of the module, after `benchmarks.`.
        doc: the module's own text, the whole of which `--help` prints.
        quick: what `--quick` leaves out.
        save: what `--save` writes without a file; None: the option is not there (a study keeps its cells by itself).
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = _Options(prog=f"python -m benchmarks.{name}", description=doc, formatter_class=form)
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object in the last line")
    parser.add_argument("--quick", action="store_true", help=quick)
    if save is not None:
        parser.kept = save
        where = f"benchmarks/results/{save.name}" if save.parent == RESULTS else save.name
        parser.add_argument(
            "--save",
            type=Path,
            nargs="?",
            const=save,
            metavar="FILE",
            help=f"write the JSON object to {where}, or to FILE",
        )
    return parser


def versions(*packages: str) -> dict[str, str | None]:
    """Distribution -> its installed version, None where it is not installed; "python" is the interpreter's."""
    return {name: platform.python_version() if name == "python" else _version(name) for name in packages}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def machine(*packages: str, cores: bool = False, threads: int | None = None) -> str:
    """The machine in words, as "x86_64, AMD EPYC 7B13, 2 cores, Python 3.11.7, torch 2.13.0, 1 thread".

    Args:
        packages: whose versions stand there too, for figures that are kept without a `versions`.
        cores: say how many there are.
        threads: that the benchmark computed with.
    """
    told = [platform.machine(), *filter(None, [_processor_name()])]
    told += [*([f"{os.cpu_count()} cores"] if cores else []), f"Python {platform.python_version()}"]
    told += [f"{name} {number or 'missing'}" for name, number in versions(*packages).items()]
    return ", ".join([*told, *([f"{threads} thread{'s' * (threads != 1)}"] if threads is not None else [])])


def _processor_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """Returns what Linux calls the processor, with what decides how fast it multiplies; "" where it does not say."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    entries = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = re.sub(r"\((R|TM)\)|\bProcessor\b|\bCPU\b", "", entries.get("model name", ""))
    flags = entries.get("flags", "").split()
    wide = next((flag for flag in ("amx_bf16", "avx512f", "avx2") if flag in flags), "")
    return " ".join([*name.split(), *filter(None, [wide])])


def about(*packages: str, cores: bool = False, threads: int | None = None) -> dict[str, Any]:
    """`versions` of these packages and the `machine`, for the JSON object of a benchmark."""
    return {"versions": versions(*packages), "machine": machine(cores=cores, threads=threads)}


def load() -> list[float]:
    """Processes that wanted a core, on average of the last 1, 5 and 15 minutes."""
    return [round(each, 1) for each in os.getloadavg()]


def show(found: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
    """The plainest table for people: a name and its value a line, in columns."""
    names = [name for name in found if name not in without]
    wide = max(map(len, names), default=0)
    for name in names:
        print(f"{name:{wide}}  {found[name]}")


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Keep figures as an indented JSON file, whole or not at all.

    Raises:
        ValueError: a figure is not finite, which JSON has no name for; the file is as it was.
        NoSpace, StoreUnavailable: the disk refuses it.
    """
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)


def finish(found: Mapping[str, Any], options: argparse.Namespace, *, kept: Mapping[str, Any] | None = None) -> None:
    """What `--save` and `--json` ask for, after the table: the file, and the one line that ends the output.

    Args:
        kept: what the file holds, where that is more than was measured this time.
    Raises:
        ValueError: a figure is not finite; nothing is printed or written.
    """
    file = getattr(options, "save", None)
    line = json.dumps(found, allow_nan=False) if options.json or file is not None else ""
    if file is not None:
        write(file, found if kept is None else kept)
    if options.json:
        print(line)
