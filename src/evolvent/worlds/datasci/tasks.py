"""Tasks of data science: a data set, its described facts, the wording, and the true hints.

The data sets of dev and test are never trained on, nor are their wordings. A hint says what the best pipeline of the
data set has: its scale, its selection, its model, or any of these together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any

from evolvent.errors import ConfigError, Problem, VersionMismatch
from evolvent.trajectory import Json, Task, sample_seed
from evolvent.worlds.base import World, check_task
from evolvent.worlds.datasci.pipelines import Pipeline, read_pipeline
from evolvent.worlds.datasci.sets import SETS
from evolvent.worlds.datasci.table import Table

__all__ = ["FORMS", "HINTS", "build_panel", "first_text", "parse_spec", "task_words"]

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
_FACT_TEMPLATES = {
    "rows": "{} rows",
    "columns": "{} columns",
    "classes": "{} classes",
    "scales": "{} scales",
    "tails": "{} tails",
    "balance": "{} balance",
}
_FACT_WORDS = (
    "few some many under 5 10 or more two three uneven even heavy light rare rows columns classes scales tails balance"
)


def build_panel(
    world: World, split: str, table: Table, *, max_tasks: int, names: Iterable[str] | None = None
) -> tuple[Task, ...]:
    """Returns the tasks of a split, drawn by hash from data sets x wordings x hints.

    Args:
        max_tasks: maximum number of tasks.
        names: of the data sets; None: the library's own of this split.
    """
    if names is None:
        names = [name for name, set_split in SETS.items() if set_split == split and name in table.scores]
    tasks = [_build_task(world, split, spec, table) for spec in _iterate_specs(split, names)]
    return tuple(sorted(tasks, key=lambda task: sample_seed("datasci", task.spec["form"], task.kind))[:max_tasks])


def _iterate_specs(split: str, names: Iterable[str]) -> Iterator[dict[str, Json]]:
    for name in names:
        for form in FORMS[split]:
            for hint in HINTS:
                yield {"data": name, "form": form, "hint": list(hint)}


def _build_task(world: World, split: str, spec: dict[str, Json], table: Table) -> Task:
    hint: Any = spec["hint"]
    kind = " ".join((str(spec["data"]), *hint))
    return Task(world.name, world.version, {**spec, "table": table.digest[:16]}, kind, world.tiers[0], split)


def parse_spec(world: World, task: Task, table: Table) -> tuple[str, str, tuple[str, ...]]:
    """Parses data set, form and hint of a task.

    Raises:
        ConfigError: a task of another world, or a spec that is none; all that is wrong at once.
        VersionMismatch: a task of another version, or of another table.
    """
    check_task(world, task)
    name, form, hint = (task.spec.get(key) for key in ("data", "form", "hint"))
    if task.spec.get("table") != table.digest[:16]:
        raise VersionMismatch(
            "the task belongs to another table of scores", value=task.spec.get("table"), expected=table.digest[:16]
        )
    allowed = {"data": list(table.scores), "form": [form for forms in FORMS.values() for form in forms]}
    problems = [
        Problem(key, f"unknown value {value!r}", f"known: {', '.join(allowed[key])}")
        for key, value in (("data", name), ("form", form))
        if value not in allowed[key]
    ]
    names = tuple(hint) if isinstance(hint, list | tuple) else ("",)
    if names not in HINTS:
        problems.append(Problem("hint", f"unknown hint {hint!r}", f"give some of {', '.join(_NAMES)}, in this order"))
    if problems:
        raise ConfigError(problems)
    return str(name), str(form), names


def first_text(table: Table, name: str, form: str, *, hint: Sequence[str]) -> str:
    """Renders the first observation of a task."""
    facts = " , ".join(template.format(table.facts[name][fact]) for fact, template in _FACT_TEMPLATES.items())
    best = read_pipeline(table.best(name))
    hint_parts = [_describe_part(best, part) for part in hint] if isinstance(best, Pipeline) else []
    return form.format(facts=facts, hint=f"hint : {' , '.join(hint_parts)}" if hint_parts else "no hint")


def _describe_part(best: Pipeline, part: str) -> str:
    if part == "model":
        return f"model {best.model}"
    if part == "scale":
        return f"scale {best.scale}" if best.scale else "no scale"
    return f"select {best.select} {best.size}" if best.select else "no select"


def task_words() -> set[str]:
    """Returns every word and mark of the tasks' first observations, except those of the language of pipelines."""
    forms = (
        " ".join(form for split_forms in FORMS.values() for form in split_forms)
        .replace("{facts}", "")
        .replace("{hint}", "")
    )
    return {*forms.split(), *_FACT_WORDS.split(), "hint", "no", ":", ",", "."}
