"""Actions on recorded web pages, and their scores: element accuracy, operation F1, step success, task success.

The metrics are Mind2Web's (arXiv 2306.06070, section 4.1) with what its two published evaluations do differently as a
choice: `Rules(step_success="mindact")` asks for an element among the right ones and an operation with F1 = 1;
`Rules(step_success="exact")`, of Synapse (2306.07863) and TRAD (2403.06221), asks for the whole action, character by
character, and names one element although several may be right. A page that does not show that element makes an exact
success impossible: such steps are counted apart (`impossible`), as are those that show no right element (`missed`) and
those that nobody can score (`unscorable`), so that no average can hide them.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from evolvent.errors import ConfigError, unknown

__all__ = [
    "OPERATIONS",
    "Averages",
    "ParseFailure",
    "Rules",
    "StepScore",
    "WebAction",
    "WebScores",
    "WebTarget",
    "aggregate",
    "parse",
    "read_action",
    "score_step",
    "token_f1",
]

OPERATIONS: tuple[str, ...] = ("CLICK", "TYPE", "SELECT")
"""What can be done with an element."""
_QUOTED = re.compile(r"`([^`]*)`")
_ACTION = re.compile(r"(?:(CLICK|TYPE|SELECT)\s*)?\[([^\[\]]*)\](?:\s*\[(.*)\])?", re.DOTALL)
_MARKS = frozenset(string.punctuation)


@dataclass(frozen=True, slots=True)
class WebAction:
    """An operation on an element of a page.

    Args:
        operation: one of `OPERATIONS`; None where the text named none.
        element: the id of the element on the page.
        value: what is typed or selected; "" for a click.
    """

    operation: str | None
    element: str
    value: str = ""

    @property
    def text(self) -> str:
        """`CLICK [id]`, `TYPE [id] [value]` or `SELECT [id] [value]`."""
        named = f"{self.operation} " if self.operation else ""
        return f"{named}[{self.element}]" + ("" if self.operation == "CLICK" else f" [{self.value}]")

    @property
    def said(self) -> str:
        """Operation and value, of which the operation F1 is taken; a click has no value."""
        return " ".join((self.operation or "", "" if self.operation == "CLICK" else self.value)).strip()


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """A text that is no action, and why."""

    text: str
    why: str


def parse(text: str) -> WebAction | ParseFailure:
    """The action in the first back-quoted span of a reply."""
    span = _QUOTED.search(text)
    return ParseFailure(text, "there is nothing between back quotes") if span is None else read_action(span[1])


def read_action(text: str) -> WebAction | ParseFailure:
    """The action that a text is, without back quotes.

    A value goes on to the last bracket, so it may hold brackets itself. The value of a click is left out.
    """
    found = _ACTION.fullmatch(text.strip())
    if found is None:
        return ParseFailure(text, "expected CLICK [id], TYPE [id] [value] or SELECT [id] [value]")
    operation, element, value = found.groups()
    if not element.strip():
        return ParseFailure(text, "there is no id between the first brackets")
    if operation in ("TYPE", "SELECT") and value is None:
        return ParseFailure(text, f"{operation} needs a second pair of brackets with the value")
    return WebAction(operation, element.strip(), "" if operation == "CLICK" else (value or "").strip())


def token_f1(a: str, b: str) -> float:
    """F1 of the sets of whitespace tokens of two texts; tokens of punctuation alone do not count; 1 if both are empty.

    They are sets: a token said twice counts once, as in the evaluation published with Mind2Web.
    """
    first, second = _tokens(a), _tokens(b)
    if not first and not second:
        return 1.0
    return 2 * len(first & second) / (len(first) + len(second))


def _tokens(text: str) -> frozenset[str]:
    return frozenset(token for token in text.split() if not _MARKS.issuperset(token))


@dataclass(frozen=True, slots=True)
class Rules:
    """Which of the published definitions of a step's scores is used.

    Args:
        step_success: "mindact": the element is among the right ones and the operation's F1 is 1; "exact": the action is
            the target's text, character by character, with the first of the right elements.
        miss: a step whose page shows no right element scores 0 ("zero") or stays out of the averages ("skip"). A task
            with such a step is no success either way.
        strict_op: an action that names no operation has an operation F1 of 0. Published evaluations compare its value
            alone (False).
    Raises:
        ConfigError: an unknown name, all of them told.
    """

    step_success: Literal["mindact", "exact"] = "mindact"
    miss: Literal["zero", "skip"] = "zero"
    strict_op: bool = True

    def __post_init__(self) -> None:
        allowed = (("step_success", self.step_success, ("mindact", "exact")), ("miss", self.miss, ("zero", "skip")))
        problems = [unknown(name, str(value), known) for name, value, known in allowed if value not in known]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class WebTarget:
    """What was recorded for a step, and what its page shows.

    Args:
        positives: the ids of all elements that are right; the first is the target's.
        operation, value: what was done with it.
        shown: the ids that the page shows as candidates; None: all of them.
        unscorable: why the step cannot be scored (no ranking, a broken page); "" where it can.
    """

    positives: tuple[str, ...]
    operation: str
    value: str = ""
    shown: frozenset[str] | None = None
    unscorable: str = ""

    @property
    def action(self) -> WebAction:
        """The recorded action, on the first of the right elements; without any, on an element of no name."""
        return WebAction(self.operation, self.positives[0] if self.positives else "", self.value)

    @property
    def missed(self) -> bool:
        """Whether the page shows no right element."""
        return not self.positives or (self.shown is not None and self.shown.isdisjoint(self.positives))

    @property
    def hidden(self) -> bool:
        """Whether the page does not show the first right element, which alone is an exact success."""
        return self.missed or (self.shown is not None and self.positives[0] not in self.shown)


@dataclass(frozen=True, slots=True)
class StepScore:
    """How a step went; None: not scored (`unscorable`, or missed and skipped).

    Args:
        element, operation, success: element accuracy, operation F1 and step success, each 0 to 1.
        missed: the page shows no right element.
        impossible: the rules ask for an exact success and the page does not show the one element that would be one.
        unscorable: nobody can tell.
    """

    element: float | None
    operation: float | None
    success: float | None
    missed: bool = False
    impossible: bool = False
    unscorable: bool = False


def score_step(pred: WebAction | ParseFailure, step: WebTarget, rules: Rules) -> StepScore:
    """The scores of one step. What cannot be read has element accuracy, operation F1 and success 0."""
    if step.unscorable:
        return StepScore(None, None, None, unscorable=True)
    exact = rules.step_success == "exact"
    missed, impossible = step.missed, exact and step.hidden
    if missed:
        score = None if rules.miss == "skip" else 0.0
        return StepScore(score, score, score, missed=True, impossible=impossible)
    if isinstance(pred, ParseFailure):
        return StepScore(0.0, 0.0, 0.0, impossible=impossible)
    element = float(pred.element in step.positives)
    silent = pred.operation is None and rules.strict_op
    operation = 0.0 if silent else token_f1(pred.said, step.action.said)
    same = pred.text == step.action.text and not impossible
    success = float(same) if exact else float(element == 1.0 and operation == 1.0)
    return StepScore(element, operation, success, impossible=impossible)


@dataclass(frozen=True, slots=True)
class Averages:
    """Means of the scored steps; None where there is none."""

    element: float | None
    operation: float | None
    success: float | None


@dataclass(frozen=True, slots=True)
class WebScores:
    """The scores of a set of tasks: both averages, and what neither of them tells.

    Args:
        macro: per task, then the mean over tasks (what the data's authors advise).
        micro: over all steps.
        task_success: the share of tasks of which every step succeeded, among those without unscorable steps; None
            without such tasks.
        tasks, steps: how many there are, and `scored` the steps in the averages.
        missed, impossible, unscorable: steps; see `StepScore`.
        unscorable_tasks: tasks with an unscorable step.
    """

    macro: Averages
    micro: Averages
    task_success: float | None
    tasks: int
    steps: int
    scored: int
    missed: int
    impossible: int
    unscorable: int
    unscorable_tasks: int


def aggregate(scores: Sequence[Sequence[StepScore]]) -> WebScores:
    """Both averages and all counts over tasks, each given by the scores of its steps."""
    steps = list(chain.from_iterable(scores))
    told = [task for task in scores if task and not any(step.unscorable for step in task)]
    won = [all(step.success == 1.0 for step in task) for task in told]
    each = [_averages(task) for task in scores]
    return WebScores(
        macro=_averages(each),
        micro=_averages(steps),
        task_success=sum(won) / len(won) if won else None,
        tasks=len(scores),
        steps=len(steps),
        scored=sum(step.success is not None for step in steps),
        missed=sum(step.missed for step in steps),
        impossible=sum(step.impossible for step in steps),
        unscorable=sum(step.unscorable for step in steps),
        unscorable_tasks=sum(any(step.unscorable for step in task) for task in scores),
    )


def _averages(scores: Sequence[StepScore | Averages]) -> Averages:
    return Averages(
        _mean([score.element for score in scores]),
        _mean([score.operation for score in scores]),
        _mean([score.success for score in scores]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
