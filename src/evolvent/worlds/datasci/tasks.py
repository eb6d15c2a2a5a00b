"""Tasks of data science: a data set, what is said of it, how it is worded, and which true hints are given.

The data sets of dev and test are never trained on, nor are their wordings. A hint says what the best pipeline of the
data set has: its scale, its selection, its model, or any of these together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any

from evolvent.errors import ConfigError, Problem, VersionMismatch
from evolvent.trajectory import Json, Task, sample_seed
from evolvent.worlds.base import World, check_task
from evolvent.worlds.datasci.pipelines import Pipeline, read_pipeline
from evolvent.worlds.datasci.sets import SETS
from evolvent.worlds.datasci.table import Table

__all__ = ["FORMS", "HINTS", "first_text", "panel", "read_spec", "words_told"]

FORMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "train": (
            "fit a model to data with {facts} . {hint}",
            "the data have {facts} . {hint} . fit a model",
            "{hint} . find a pipeline for data with {facts}",
            "find a model for these data : {facts} . {hint}",
            "data with {facts} , {hint} : what do you fit",
        ),
        "dev": (
            "these data have {facts} . find a pipeline . {hint}",
            "{hint} . what model do you fit to data with {facts}",
            "fit these data : {facts} . {hint}",
        ),
        "test": (
            "find what to fit to data with {facts} . {hint}",
            "{hint} . these are the data : {facts} . find a model",
            "what pipeline do you fit : the data have {facts} . {hint}",
            "a pipeline for data with {facts} . {hint}",
            "{facts} : fit a pipeline to these data . {hint}",
        ),
    }
)
"""Split -> the ways to say a task. No form is in two splits."""
_NAMES = ("scale", "select", "model")
HINTS: tuple[tuple[str, ...], ...] = tuple(names for n in range(4) for names in combinations(_NAMES, n))
"""What a task may tell of the best pipeline: nothing, up to its scale, selection and model."""
_SAID = {
    "rows": "{} rows",
    "columns": "{} columns",
    "classes": "{} classes",
    "scales": "{} scales",
    "tails": "{} tails",
    "balance": "{} balance",
}
_FACTS = (
    "few some many under 5 10 or more two three uneven even heavy light rare rows columns classes scales tails balance"
)


def panel(world: World, split: str, table: Table, *, most: int) -> tuple[Task, ...]:
    """The tasks of a split, drawn by hash from data sets x wordings x hints; at most so many."""
    made = [_task(world, split, spec, table) for spec in _specs(split, table)]
    return tuple(sorted(made, key=lambda task: sample_seed("datasci", task.spec["form"], task.kind))[:most])


def _specs(split: str, table: Table) -> Iterator[dict[str, Json]]:
    for name in (name for name, of in SETS.items() if of == split and name in table.scores):
        for form in FORMS[split]:
            for hint in HINTS:
                yield {"data": name, "form": form, "hint": list(hint)}


def _task(world: World, split: str, spec: dict[str, Json], table: Table) -> Task:
    hint: Any = spec["hint"]
    kind = " ".join((str(spec["data"]), *hint))
    return Task(world.name, world.version, {**spec, "table": table.digest[:16]}, kind, world.tiers[0], split)


def read_spec(world: World, task: Task, table: Table) -> tuple[str, str, tuple[str, ...]]:
    """Data set, form and hint of a task.

    Raises:
        ConfigError: a task of another world, or a spec that is none; all that is wrong at once.
        VersionMismatch: a task of another version, or of another table.
    """
    check_task(world, task)
    name, form, hint = (task.spec.get(key) for key in ("data", "form", "hint"))
    if task.spec.get("table") != table.digest[:16]:
        raise VersionMismatch(
            "a task of another table of scores", value=task.spec.get("table"), expected=table.digest[:16]
        )
    known = {"data": list(table.scores), "form": [form for of in FORMS.values() for form in of]}
    problems = [
        Problem(key, f"{value!r} is none", f"known: {', '.join(known[key])}")
        for key, value in (("data", name), ("form", form))
        if value not in known[key]
    ]
    names = tuple(hint) if isinstance(hint, list | tuple) else ("",)
    if names not in HINTS:
        problems.append(Problem("hint", f"{hint!r} is no hint", f"give some of {', '.join(_NAMES)}, in this order"))
    if problems:
        raise ConfigError(problems)
    return str(name), str(form), names


def first_text(table: Table, name: str, form: str, *, hint: Sequence[str]) -> str:
    """What a task says at the start."""
    facts = " , ".join(said.format(table.facts[name][fact]) for fact, said in _SAID.items())
    best = read_pipeline(table.best(name))
    told = [_told(best, part) for part in hint] if isinstance(best, Pipeline) else []
    return form.format(facts=facts, hint=f"hint : {' , '.join(told)}" if told else "no hint")


def _told(best: Pipeline, part: str) -> str:
    if part == "model":
        return f"model {best.model}"
    if part == "scale":
        return f"scale {best.scale}" if best.scale else "no scale"
    return f"select {best.select} {best.size}" if best.select else "no select"


def words_told() -> set[str]:
    """Every word and mark of what tasks say at the start, but those of the language of pipelines."""
    forms = " ".join(form for of in FORMS.values() for form in of).replace("{facts}", "").replace("{hint}", "")
    return {*forms.split(), *_FACTS.split(), "hint", "no", ":", ",", "."}
