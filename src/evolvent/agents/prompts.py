"""Prompts of agents with demonstrations: our own templates, and texts that cannot imitate a part of them.

Sources of the prompts' content: ReAct (arXiv 2210.03629), Synapse (2306.07863), TRAD (2403.06221). The
sentences are ours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from evolvent.memory.quoting import quote_text
from evolvent.memory.records import Demonstration, StepRecord
from evolvent.memory.windows import AlignedHistory, Window, align_history, cut_window

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = [
    "PROMPT_VOCABULARY",
    "EpisodeSoFar",
    "Prompt",
    "PromptExample",
    "Thinking",
    "hindsight_digest",
    "hindsight_prompt",
    "prompts_digest",
    "step_prompt",
]

Thinking = Literal["call", "inline"]
PROMPT_VOCABULARY = (
    "Here is an example. Here are examples. Task: ... [Step -0] > think: OK. > act: Now it is your turn.",
    " ".join(map(str, range(100))),
)
"""Texts that hold every word and mark of the prompts of steps: what a closed vocabulary needs beside its worlds'."""
_TEMPLATES = ("steps_system.jinja", "steps.jinja", "explain.jinja")
_OUTCOME_TEMPLATE = "explain_outcome.jinja"  # not of an agent: it is in no digest of an agent
_MAX_OUTCOME_LENGTH = 2_000  # characters of what an action led to
_OWN_LINE = re.compile(  # whatever may be taken for a line break
    r"(?:\A|(?<=[\n\r\v\f\x85\u2028\u2029]))(?=[ \t]*(?:>|\[Step |Now it is your turn\.|The thought before the last))"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt for a model: the system text and the user text."""

    system: str
    user: str


@dataclass(frozen=True, slots=True)
class PromptExample:
    """A demonstration that is put into a prompt.

    Args:
        window: its part. rank: 0 for the best; the highest is dropped first. score: of the hit, 0 where none was
            made.
        is_whole: the whole demonstration is meant, so that its position in the prompt follows its length.
    """

    window: Window
    rank: int
    score: float = 0.0
    is_whole: bool = True

    @classmethod
    def all_of(cls, demonstration: Demonstration, rank: int, score: float = 0.0) -> PromptExample:
        """Returns an example with all steps of the demonstration."""
        return cls(cut_window(demonstration, 0, before=None, after=None), rank, score)


@dataclass(frozen=True, slots=True)
class EpisodeSoFar:
    """The current episode.

    Args:
        first: its first observation. task: its instruction.
        steps: past observations, thoughts and actions. observation: the current observation.
        thoughts: thoughts since then. max_steps: number of steps in the prompt; None: all.
    """

    first: str
    task: str
    steps: Sequence[StepRecord]
    observation: str
    thoughts: tuple[str, ...] = ()
    max_steps: int | None = None


def step_prompt(
    instructions: str,
    examples: Sequence[PromptExample],
    episode: EpisodeSoFar,
    *,
    ask: Literal["think", "act"],
    think: Thinking | None,
    marked: bool,
) -> Prompt:
    """Builds the prompt of one generation of a step.

    Whole demonstrations stand in the order of their lengths, the longest last; windows in the order of the found
    steps (TRAD). Marks number the steps of windows from the found step.

    Args:
        think: a thought is its own generation, a line of the reply, or there is none.
        marked: whether steps of demonstrations are numbered.
    """
    ordered = sorted(examples, key=_sort_key)
    aligned: AlignedHistory[StepRecord] = align_history(
        episode.steps,
        len(episode.steps) if episode.max_steps is None else episode.max_steps,
        (episode.task, episode.first),
    )
    parts: dict[str, Any] = {
        "examples": [_example_fields(example.window) for example in ordered],
        "think": think,
        "thoughts": think is not None,
        "marked": marked,
        "ask": ask,
        "pondered": [quote_text(text) for text in episode.thoughts],
        "own": _episode_fields(
            aligned.prefix, (episode.task, episode.first), aligned.steps, following=episode.observation
        ),
    }
    system = _template("steps_system.jinja").render(instructions=instructions, **parts)
    return Prompt(system.strip(), _template("steps.jinja").render(**parts))


def hindsight_prompt(
    instructions: str, demonstration: Demonstration, step: int, *, max_steps: int | None = None, outcome: bool = False
) -> Prompt:
    """Builds the prompt that asks for the thought of step `step` of a demonstration, its action given (hindsight).

    Args:
        max_steps: number of steps in the prompt, that of the thought included; None: all before it. Observations that
            hold the history themselves, as those of recorded pages do, need 1.
        outcome: also show what the action led to: the end of the next observation.
    """
    first = 0 if max_steps is None else max(0, step + 1 - max_steps)
    shown_steps = demonstration.steps[first : step + 1]
    following = ""
    if outcome:
        is_last = step + 1 == len(demonstration.steps)
        after = demonstration.final_observation if is_last else demonstration.steps[step + 1].observation
        following = _clip_start(after or "The episode ended.")
    part = _episode_fields(None, (demonstration.task, shown_steps[0].observation), shown_steps, following=following)
    return Prompt(instructions, _template(_OUTCOME_TEMPLATE if outcome else "explain.jinja").render(part))


def _clip_start(text: str) -> str:
    """Returns the last characters of a long text, from the beginning of a line where there is one."""
    if len(text) <= _MAX_OUTCOME_LENGTH:
        return text
    end = text[-_MAX_OUTCOME_LENGTH:]
    return f"[...] {end.partition(chr(10))[2] or end}"


def hindsight_digest(*, max_steps: int | None = None, outcome: bool = False) -> str:
    """Computes 32 hex digits of how thoughts in hindsight are asked for: `prompts_digest` with the default settings."""
    if max_steps is None and not outcome:
        return prompts_digest()
    template = _OUTCOME_TEMPLATE if outcome else "explain.jinja"
    text = files("evolvent.agents").joinpath("templates", template).read_bytes()
    return hashlib.sha256(b"%s\0%d" % (text, max_steps or 0)).hexdigest()[:32]


def prompts_digest() -> str:
    """Computes 32 hex digits of all templates, stored with each episode, since another wording is another agent."""
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


def _sort_key(example: PromptExample) -> tuple[int, str]:
    return (len(example.window.steps) if example.is_whole else example.window.center, example.window.trajectory_id)


def _example_fields(example_window: Window) -> dict[str, Any]:
    first = example_window.prefix[1] if example_window.prefix else example_window.steps[0].observation
    return _episode_fields(
        example_window.prefix,
        (example_window.task, first),
        example_window.steps,
        following=example_window.next_observation,
        marks=example_window.marks,
    )


def _episode_fields(
    prefix: tuple[str, str] | None,
    task_and_first: tuple[str, str],
    steps: Sequence[StepRecord],
    *,
    following: str,
    marks: Sequence[int] = (),
) -> dict[str, Any]:
    """Builds the template fields of an episode; its task is included unless the first observation contains it."""
    task, first = task_and_first
    rows = [
        {
            "mark": mark,
            "observation": _escape_observation(step.observation),
            "thought": quote_text(step.thought),
            "action": quote_text(step.action),
        }
        for mark, step in zip(marks or range(len(steps)), steps, strict=True)
    ]
    return {
        "task": "" if task in first else quote_text(task),
        "first": _escape_observation(prefix[1]) if prefix else "",
        "steps": rows,
        "following": _escape_observation(following),
    }


def _escape_observation(text: str) -> str:
    """Marks with a backslash the lines of an observation that look like the prompt's own."""
    return _OWN_LINE.sub("\\\\", text)
