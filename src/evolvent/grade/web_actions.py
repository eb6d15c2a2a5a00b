"""Actions on recorded web pages, and their scores: element accuracy, operation F1, step success, task success.

The metrics are Mind2Web's (arXiv 2306.06070, section 4.1); a setting selects between its two published
evaluations: `ScoringRules(step_success="mindact")` requires one of the correct elements and an operation with
F1 = 1; `ScoringRules(step_success="exact")`, of Synapse (2306.07863) and TRAD (2403.06221), requires the whole
action, character by character, and names one element although several may be correct. A page that does not show
that element makes an exact success impossible: such steps are counted separately (`impossible`), as are those
that show no correct element (`missed`) and those that cannot be scored (`unscorable`), so that no average can
hide them.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.grade.markdown import find_code_span
from evolvent.grade.thoughts import split_thoughts

__all__ = [
    "OPERATIONS",
    "Averages",
    "ParseFailure",
    "ScoringRules",
    "StepScore",
    "WebAction",
    "WebScores",
    "WebTarget",
    "aggregate_scores",
    "parse_action",
    "parse_reply",
    "score_step",
    "token_f1",
]

OPERATIONS: tuple[str, ...] = ("CLICK", "TYPE", "SELECT")
"""What can be done with an element."""
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
        """Returns the action as `CLICK [id]`, `TYPE [id] [value]` or `SELECT [id] [value]`."""
        prefix = f"{self.operation} " if self.operation else ""
        return f"{prefix}[{self.element}]" + ("" if self.operation == "CLICK" else f" [{self.value}]")

    @property
    def operation_text(self) -> str:
        """Returns operation and value, the text for the operation F1; a click has no value."""
        return " ".join((self.operation or "", "" if self.operation == "CLICK" else self.value)).strip()


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """A text that is not an action, and the reason."""

    text: str
    reason: str


def parse_reply(text: str) -> WebAction | ParseFailure:
    """Parses the action in the first code span of a reply, behind its thoughts."""
    span = find_code_span(split_thoughts(text, leading=False)[0])
    return ParseFailure(text, "there is nothing between back quotes") if span is None else parse_action(span[2])


def parse_action(text: str) -> WebAction | ParseFailure:
    """Parses a text as an action, without backquotes.

    A value goes on to the last bracket, so it may hold brackets itself. The value of a click is left out.
    """
    match = _ACTION.fullmatch(text.strip())
    if match is None:
        return ParseFailure(text, "expected CLICK [id], TYPE [id] [value] or SELECT [id] [value]")
    operation, element, value = match.groups()
    if not element.strip():
        return ParseFailure(text, "there is no id between the first brackets")
    if operation in ("TYPE", "SELECT") and value is None:
        return ParseFailure(text, f"{operation} needs a second pair of brackets with the value")
    return WebAction(operation, element.strip(), "" if operation == "CLICK" else (value or "").strip())


def token_f1(text_a: str, text_b: str) -> float:
    """Computes F1 of the sets of whitespace tokens of two texts; punctuation tokens do not count; 1 if both are
    empty.

    They are sets: a repeated token counts once, as in the evaluation published with Mind2Web.
    """
    tokens_a, tokens_b = _tokens(text_a), _tokens(text_b)
    if not tokens_a and not tokens_b:
        return 1.0
    return 2 * len(tokens_a & tokens_b) / (len(tokens_a) + len(tokens_b))


def _tokens(text: str) -> frozenset[str]:
    return frozenset(token for token in text.split() if not _MARKS.issuperset(token))


@dataclass(frozen=True, slots=True)
class ScoringRules:
    """Settings that select among the published definitions of a step's scores.

    Args:
        step_success: "mindact": the element is one of the correct ones and the operation's F1 is 1; "exact": the action
            equals the target's text, character by character, with the first correct element.
        miss: A step whose page shows no correct element scores 0 ("zero") or stays out of the averages ("skip"). A task
            with such a step is never a success.
        strict_op: Whether an action without an operation has an operation F1 of 0. Published evaluations compare its
            value alone (False).
    Raises:
        ConfigError: unknown names; lists all of them.
    """

    step_success: Literal["mindact", "exact"] = "mindact"
    miss: Literal["zero", "skip"] = "zero"
    strict_op: bool = True

    def __post_init__(self) -> None:
        allowed = (("step_success", self.step_success, ("mindact", "exact")), ("miss", self.miss, ("zero", "skip")))
        problems = [
            unknown_name_problem(name, str(value), choices) for name, value, choices in allowed if value not in choices
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class WebTarget:
    """The recorded action of a step, and the elements that its page shows.

    Args:
        positives: Ids of all correct elements; the first is the target's.
        operation, value: The recorded operation and value.
        shown_ids: Ids that the page shows as candidates; None: all ids.
        unscorable: Reason why the step cannot be scored (no ranking, a broken page); "" where it can.
    """

    positives: tuple[str, ...]
    operation: str
    value: str = ""
    shown_ids: frozenset[str] | None = None
    unscorable: str = ""

    @property
    def action(self) -> WebAction:
        """Returns the recorded action on the first correct element; without any, on an element with an empty id."""
        return WebAction(self.operation, self.positives[0] if self.positives else "", self.value)

    @property
    def is_missed(self) -> bool:
        """Returns whether the page shows no correct element."""
        return not self.positives or (self.shown_ids is not None and self.shown_ids.isdisjoint(self.positives))

    @property
    def is_hidden(self) -> bool:
        """Returns whether the page does not show the first correct element, so that an exact success is impossible."""
        return self.is_missed or (self.shown_ids is not None and self.positives[0] not in self.shown_ids)


@dataclass(frozen=True, slots=True)
class StepScore:
    """The scores of a step; None: not scored (`unscorable`, or missed and skipped).

    Args:
        element, operation, success: Element accuracy, operation F1 and step success, each 0 to 1.
        missed: Whether the page shows no correct element.
        impossible: Whether an exact success is required and the page does not show the element for it.
        unscorable: Whether the step cannot be scored.
    """

    element: float | None
    operation: float | None
    success: float | None
    missed: bool = False
    impossible: bool = False
    unscorable: bool = False


def score_step(prediction: WebAction | ParseFailure, target: WebTarget, rules: ScoringRules) -> StepScore:
    """Scores one step. An unparsable prediction has element accuracy, operation F1 and success 0."""
    if target.unscorable:
        return StepScore(None, None, None, unscorable=True)
    is_exact = rules.step_success == "exact"
    missed, impossible = target.is_missed, is_exact and target.is_hidden
    if missed:
        score = None if rules.miss == "skip" else 0.0
        return StepScore(score, score, score, missed=True, impossible=impossible)
    if isinstance(prediction, ParseFailure):
        return StepScore(0.0, 0.0, 0.0, impossible=impossible)
    element = float(prediction.element in target.positives)
    has_no_operation = prediction.operation is None and rules.strict_op
    operation = 0.0 if has_no_operation else token_f1(prediction.operation_text, target.action.operation_text)
    is_same_text = prediction.text == target.action.text and not impossible
    success = float(is_same_text) if is_exact else float(element == 1.0 and operation == 1.0)
    return StepScore(element, operation, success, impossible=impossible)


@dataclass(frozen=True, slots=True)
class Averages:
    """Means of the scored steps; None where there is none."""

    element: float | None
    operation: float | None
    success: float | None


@dataclass(frozen=True, slots=True)
class WebScores:
    """The scores of a set of tasks: both averages, and the counts that they leave out.

    Args:
        macro: Mean per task, then over tasks (the data's authors advise it).
        micro: Mean over all steps.
        task_success: Share of tasks of which every step succeeded, among those without unscorable steps; None
            without such tasks.
        tasks, steps: Numbers of tasks and steps; `scored` counts the steps in the averages.
        missed, impossible, unscorable: Numbers of steps; see `StepScore`.
        unscorable_tasks: Number of tasks with an unscorable step.
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


def aggregate_scores(scores: Sequence[Sequence[StepScore]]) -> WebScores:
    """Computes both averages and all counts over tasks, each given by the scores of its steps."""
    steps = list(chain.from_iterable(scores))
    scorable_tasks = [task for task in scores if task and not any(step.unscorable for step in task)]
    is_success = [all(step.success == 1.0 for step in task) for task in scorable_tasks]
    task_averages = [_averages(task) for task in scores]
    return WebScores(
        macro=_averages(task_averages),
        micro=_averages(steps),
        task_success=sum(is_success) / len(is_success) if is_success else None,
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
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
