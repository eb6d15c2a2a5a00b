"""Prompts of agents that are shown demonstrations: our own templates, and texts that cannot forge a part of them.

Sources of what they say: ReAct (arXiv 2210.03629), Synapse (2306.07863), TRAD (2403.06221). The sentences are ours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from evolvent.memory.quoting import quoted
from evolvent.memory.records import Demonstration, StepRecord
from evolvent.memory.windows import Aligned, Window, align, window

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = [
    "WORDS",
    "Own",
    "Prompt",
    "Shown",
    "Thinking",
    "explaining_prompt",
    "prompts_digest",
    "step_prompt",
]

Thinking = Literal["call", "inline"]
WORDS = (
    "Here is an example. Here are examples. Task: ... [Step -0] > think: OK. > act: Now it is your turn.",
    " ".join(map(str, range(100))),
)
"""Texts that hold every word and mark of the prompts of steps: what a closed vocabulary needs beside its worlds'."""
_TEMPLATES = ("steps_system.jinja", "steps.jinja", "explain.jinja")
_OWN_LINE = re.compile(  # whatever may be taken for a line break
    r"(?:\A|(?<=[\n\r\v\f\x85\u2028\u2029]))(?=[ \t]*(?:>|\[Step |Now it is your turn\.|The thought before the last))"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is told once: the text of the system and that of the user."""

    system: str
    user: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A demonstration that is put into a prompt.

    Args:
        window: its part. rank: 0 for the best; the highest is dropped first. score: of the hit, 0 where none was made.
        whole: all of it is meant to be shown, so that its place in the prompt goes by its length.
    """

    window: Window
    rank: int
    score: float = 0.0
    whole: bool = True

    @classmethod
    def all_of(cls, found: Demonstration, rank: int, score: float = 0.0) -> Shown:
        """The demonstration from its first step to its last."""
        return cls(window(found, 0, before=None, after=None), rank, score)


@dataclass(frozen=True, slots=True)
class Own:
    """The episode that is being played.

    Args:
        first: its first observation. task: its instruction.
        steps: what was seen, thought and done so far. observation: what is seen now.
        pondered: thoughts since then. last: so many of the steps are shown; None: all.
    """

    first: str
    task: str
    steps: Sequence[StepRecord]
    observation: str
    pondered: tuple[str, ...] = ()
    last: int | None = None


def step_prompt(
    instructions: str,
    shown: Sequence[Shown],
    own: Own,
    *,
    ask: Literal["think", "act"],
    think: Thinking | None,
    marked: bool,
) -> Prompt:
    """The prompt of one generation of a step.

    Whole demonstrations stand in the order of their lengths, the longest last; windows in that of the steps that were
    found (TRAD). Marks number the steps of windows from there.

    Args:
        think: a thought is a generation of its own, a line of the reply, or there is none.
        marked: whether steps of demonstrations are numbered.
    """
    ordered = sorted(shown, key=_place)
    kept: Aligned[StepRecord] = align(
        own.steps, len(own.steps) if own.last is None else own.last, (own.task, own.first)
    )
    parts: dict[str, Any] = {
        "examples": [_example(one.window) for one in ordered],
        "think": think,
        "thoughts": think is not None,
        "marked": marked,
        "ask": ask,
        "pondered": [quoted(text) for text in own.pondered],
        "own": _part(kept.prefix, (own.task, own.first), kept.steps, following=own.observation),
    }
    system = _template("steps_system.jinja").render(instructions=instructions, **parts)
    return Prompt(system.strip(), _template("steps.jinja").render(**parts))


def explaining_prompt(instructions: str, found: Demonstration, at: int) -> Prompt:
    """The prompt that asks for the thought of step `at` of a demonstration, its action given (hindsight)."""
    part = _part(None, (found.task, found.steps[0].observation), found.steps[: at + 1], following="")
    return Prompt(instructions, _template("explain.jinja").render(part))


def prompts_digest() -> str:
    """32 hex digits of all templates: kept with what was played, since another wording is another agent."""
    texts = (files("evolvent.agents").joinpath("templates", name).read_bytes() for name in _TEMPLATES)
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:32]


@cache
def _template(name: str) -> Template:
    from jinja2 import PackageLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(
        loader=PackageLoader("evolvent.agents", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    ).get_template(name)


def _place(shown: Shown) -> tuple[int, str]:
    return (len(shown.window.steps) if shown.whole else shown.window.at, shown.window.trajectory_id)


def _example(found: Window) -> dict[str, Any]:
    first = found.prefix[1] if found.prefix else found.steps[0].observation
    return _part(found.prefix, (found.task, first), found.steps, following=found.following, marks=found.marks)


def _part(
    prefix: tuple[str, str] | None,
    about: tuple[str, str],
    steps: Sequence[StepRecord],
    *,
    following: str,
    marks: Sequence[int] = (),
) -> dict[str, Any]:
    """What a template shows of an episode; its task is told where the first observation does not tell it."""
    task, first = about
    rows = [
        {
            "mark": mark,
            "observation": _seen(step.observation),
            "thought": quoted(step.thought),
            "action": quoted(step.action),
        }
        for mark, step in zip(marks or range(len(steps)), steps, strict=True)
    ]
    return {
        "task": "" if task in first else quoted(task),
        "first": _seen(prefix[1]) if prefix else "",
        "steps": rows,
        "following": _seen(following),
    }


def _seen(text: str) -> str:
    """An observation as it is, but for lines that look like the prompt's own."""
    return _OWN_LINE.sub("\\\\", text)
