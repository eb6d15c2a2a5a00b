"""`docs/benchmarks.md`: what every benchmark measured, made of the JSON in `benchmarks/results`.

`python -m benchmarks.page` writes it anew. `page(folder)` is a pure function of those files. What stands on it:
`benchmarks.page_tables`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.page_tables import BENCHES, Bench, Figure
from benchmarks.study import unpacked_copy
from evolvent.bench.verdict import read_summary, to_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"


STUDIES = (("AgentEvol", "evolve"), ("Ends of AgentEvol", "evolve --study variants"))
FOLDERS = ("evolve", "variants")
INTRODUCTION = """\
# Benchmarks

Made of the JSON files in `benchmarks/results` by `python -m benchmarks.page`; a test holds the two together. Every
benchmark prints one JSON object with `--json`. Three numbers are a value and its 95 % interval, two an interval.
"Reached" compares the value with the aim that stood before the benchmark ran. What was not reached stays here.

Where nothing else is said: one thread of a shared two-core x86-64 machine, without a GPU. Ratios carry over to other
machines, rates do not. What the figures mean, and what they do not, stands in the guides and on the pages of the
papers; so do figures of benchmarks whose results are not kept as one file (rollout, train).
"""


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    sections = [study_section(title, name, folder / at) for (title, name), at in zip(STUDIES, FOLDERS, strict=True)]
    sections += [section(bench, json.loads((folder / bench.file).read_text(encoding="utf-8"))) for bench in BENCHES]
    return "\n".join([INTRODUCTION, *sections]).rstrip() + "\n"


def study_section(title: str, name: str, folder: Path) -> str:
    """A controlled study: every arm with its interval, the difference that decides, its verdict, seeds and versions."""
    with unpacked_copy(folder) as copy:
        frozen = json.loads((copy / "study.json").read_text(encoding="utf-8"))["study"]
        found = to_json(read_summary(copy))
    primary = found["primary"]
    lines = [f"## {title}", "", f"    python -m benchmarks.{name}", "", found["sentence"], ""]
    lines += [f"| arm | what it is | success | minus {primary['control']} |", "|---|---|---|---|"]
    against = {
        one["arm"]: one for one in found["differences"] if not one["world"] and one["against"] == primary["control"]
    }
    for arm in found["arms"]:
        gap = against.get(arm["name"])
        cells = (arm["name"], arm["question"], percent(arm["interval"]), percent(gap["interval"], "+") if gap else "")
        lines.append(f"| {' | '.join(cells)} |")
    told = f"seeds {', '.join(map(str, found['seeds']))}; {versions(frozen['facts'])}; frozen as `{found['digest']}`"
    threshold = f"success in % on {', '.join(primary['tiers'])}, 95 % intervals; threshold {found['threshold']:.0%}"
    return "\n".join([*lines, "", f"`benchmarks/results/{folder.name}`: {threshold}; {told}.", ""])


def percent(interval: Mapping[str, float], sign: str = "") -> str:
    """A share and its interval in per cent."""
    mean, low, high = (f"{100 * interval[key]:{sign}.1f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def section(bench: Bench, data: Mapping[str, Any]) -> str:
    """One benchmark: its command, its figures beside their aims, its seeds, versions and machine."""
    lines = [f"## {bench.title}", "", f"    python -m benchmarks.{bench.command} --json", ""]
    lines += ["| figure | value | aim | reached |", "|---|---|---|---|"]
    lines += [line(figure, data) for figure in bench.figures]
    told = [told for told in (seeds(data), versions(data), machine(data)) if told]
    lines += ["", *([bench.about, ""] if bench.about else [])]
    return "\n".join([*lines, f"`benchmarks/results/{bench.file}`{': ' if told else ''}{'; '.join(told)}.", ""])


def line(figure: Figure, data: Mapping[str, Any]) -> str:
    """A row of the table; where there is no aim nothing is said of reaching it."""
    value = at(data, figure.path)
    aim = at(data, figure.aim) if isinstance(figure.aim, str) else figure.aim
    if aim is None:
        return f"| {figure.what} | {shown(value)} | | |"
    word = "at least" if figure.better == "more" else "at most"
    met = "yes" if reached(value, aim, figure.better) else "**no**"
    return f"| {figure.what} | {shown(value)} | {word} {shown(aim)} | {met} |"


def reached(value: Any, aim: float, better: str) -> bool:
    """Whether a figure (of an interval: its value) comes up to its aim."""
    one = float(value[0] if isinstance(value, list) else value)
    return one >= aim if better == "more" else one <= aim


def at(data: Mapping[str, Any], path: str) -> Any:
    """What stands at a path of names with dots between them; a name may hold a dot itself."""
    if path in data:
        return data[path]
    for cut in (place for place, mark in enumerate(path) if mark == "."):
        if path[:cut] in data and isinstance(data[path[:cut]], Mapping):
            return at(data[path[:cut]], path[cut + 1 :])
    raise KeyError(path)


def shown(value: Any) -> str:
    """A number with at most four digits that count, or a value with its interval."""
    if isinstance(value, list):
        ends = ", ".join(shown(one) for one in value[-2:])
        return f"{shown(value[0])} [{ends}]" if len(value) == 3 else f"[{ends}]"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def seeds(data: Mapping[str, Any]) -> str:
    """The seeds, where they are written down."""
    found = data.get("seeds", data.get("seed"))
    if found is None and isinstance(data.get("tasks"), Mapping):
        found = {name: one.get("seeds") for name, one in data["tasks"].items() if isinstance(one, Mapping)}
    if isinstance(found, Mapping):
        told = [one for one in found.values() if one]
        found = told[0] if told and all(one == told[0] for one in told) else None
    if found is None:
        return ""
    return f"seeds {', '.join(map(str, found))}" if isinstance(found, list) else f"seed {found}"


def versions(data: Mapping[str, Any]) -> str:
    """The packages that were measured with, and those that were missing."""
    found = data.get("versions") or {}
    return ", ".join(f"{name} {number}" if number else f"no {name}" for name, number in found.items())


def machine(data: Mapping[str, Any]) -> str:
    """The machine, as far as it was written down."""
    found = data.get("machine", "")
    return ", ".join(f"{key} {value}" for key, value in found.items()) if isinstance(found, Mapping) else str(found)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
