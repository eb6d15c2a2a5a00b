"""Web replay: recorded tasks, one recorded page after the other, whatever was done on the last one.

    Task: reserve the red comet , a van in oslo
    Page 1: <body> ... <input id=74 text pick up city></input> ...
        ->  TYPE [74] [oslo]  ->  Page 1: ...  Action 1: `TYPE [74] [oslo]`  Page 2: <body> ...

Every step is one decision, scored by itself; the next page is the one that was recorded. History is teacher-forced:
what an observation tells of earlier steps is what the record did, not what the agent did. A page shows the candidates
that a ranking puts first. In the published evaluations the pages of the history always show the right elements too,
which is more than an agent saw (`history="targets"`); `history="as_seen"` shows those pages as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from evolvent.errors import ConfigError, InvalidAction, Problem, SampleInvalid, SessionGone, WorldError, unknown
from evolvent.grade.web_actions import (
    ParseFailure,
    Rules,
    StepScore,
    WebAction,
    WebScores,
    WebTarget,
    aggregate,
    parse,
    read_action,
    score_step,
)
from evolvent.trajectory import Score, Task, Trajectory, Value
from evolvent.worlds.base import Info, Reply, check_task, own_moment
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grammar import Grammar, Parsed
from evolvent.worlds.panel import Sizes
from evolvent.worlds.web_replay.library import Folder, Generated, Library
from evolvent.worlds.web_replay.pages import parse_page, prune, render
from evolvent.worlds.web_replay.records import WebStep, WebTask

__all__ = ["HISTORIES", "Screen", "WebGrammar", "WebReplayEnv", "WebReplayWorld"]

HISTORIES = ("targets", "as_seen", "none")
"""What an observation tells of earlier steps."""
_KNOWN_TASKS = 64  # tasks whose pages are kept ready
_MOST_SHOWN = 50


@dataclass(frozen=True, slots=True)
class WebGrammar:
    """The first back-quoted span is the action, what comes before it the thought."""

    def parse(self, text: str) -> Parsed:
        """The action and the thought; raises InvalidAction where nothing is between back quotes."""
        before, quote, rest = text.partition("`")
        action, end, _ = rest.partition("`")
        if not quote or not end or not action.strip():
            raise InvalidAction("nothing between back quotes", value=text, expected="`CLICK [id]`")
        return Parsed(action.strip(), before.strip() or None)

    def render(self, parsed: Parsed) -> str:
        """The thought, where there is one, and the action between back quotes."""
        return f"{parsed.thought} `{parsed.action}`" if parsed.thought else f"`{parsed.action}`"


@dataclass(frozen=True, slots=True)
class Screen:
    """A step as it is shown and scored.

    Args:
        page: the page as text, with the candidates that are ranked first.
        past: the page as later steps tell it.
        target: what was recorded, and what the page shows.
    """

    page: str
    past: str
    target: WebTarget


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: whether the episode runs, and the scores of the steps so far."""

    task: str
    running: bool
    scores: tuple[StepScore, ...]


class WebReplayEnv:
    """One recorded task. Every action is scored and answered by the next page; the last one ends the episode.

    `info` holds `task`, `website`, `domain`, `subdomain`, `step`, and after an action `scores`: what `StepScore` has,
    of all steps so far. Reward: the step's success. A step that cannot be scored has the reward None, one that is
    missed and skipped 0.
    """

    def __init__(self, task: Task, recorded: WebTask, screens: Sequence[Screen], *, world: WebReplayWorld) -> None:
        self._task, self._recorded, self._screens = task, recorded, screens
        self._rules, self._told = world.rules, world.history != "none"
        self._scores: tuple[StepScore, ...] = ()
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._scores, self._running = (), True
        return self._observation(), self._info()

    def _observation(self) -> str:
        at = len(self._scores)
        lines = [f"Task: {self._recorded.told}"]
        if self._told:
            for number, screen in enumerate(self._screens[:at], 1):
                lines += [f"Page {number}: {screen.past}", f"Action {number}: `{screen.target.action.text}`"]
        return "\n".join([*lines, f"Page {at + 1}: {self._screens[at].page}"])

    def _info(self) -> dict[str, object]:
        found = self._recorded
        info: dict[str, object] = {
            "task": found.told,
            "website": found.website,
            "domain": found.domain,
            "subdomain": found.subdomain,
            "step": len(self._scores),
        }
        return info | ({"scores": [asdict(score) for score in self._scores]} if self._scores else {})

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        read = _read(str(action))
        score = score_step(read, self._screens[len(self._scores)].target, self._rules)
        self._scores = (*self._scores, score)
        ended = len(self._scores) == len(self._screens)
        self._running = not ended
        info = self._info()
        observation = "The task is over." if ended else self._observation()
        if isinstance(read, ParseFailure):
            info["invalid"] = True
            observation = f"The last action was none: {read.why}.\n{observation}"
        reward: float = None if score.unscorable else score.success or 0.0  # type: ignore[assignment]
        return observation, reward, ended, False, info

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, self._scores)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._running, self._scores = moment.running, moment.scores

    def close(self) -> None:
        self._running = False


def _read(action: str) -> WebAction | ParseFailure:
    """A bare action, whose value may hold back quotes; else the first back-quoted span."""
    bare = read_action(action)
    return parse(action) if isinstance(bare, ParseFailure) and "`" in action else bare


class WebReplayWorld:
    """The world of recorded pages.

    Args:
        folder: of Mind2Web's files, or one file; None: generated pages.
        ranks: a JSON or Parquet file of ranks. Without one, and without ranks in the rows, pages show all candidates.
        top_k: how many candidates a page shows, 1 to 50.
        rules: how steps are scored.
        history: what is told of earlier steps: their pages with the right elements always among those shown
            ("targets", as published), as they were shown ("as_seen"), or nothing ("none"; an agent has its own).
        sizes: at most so many tasks of each split (None: all).
        pages, seed: of generated tasks.

    Raises:
        ConfigError: options out of range, all of them told; or nothing in the folder that can be used.
        UnsafeFile: ranks in a pickle.
    """

    grammar: Grammar = WebGrammar()
    blocking = False
    reward_range = (0.0, 1.0)
    instructions = (
        "Do the task on the web page, one action at a time. Only elements with an id can be used. Write the action "
        "between back quotes: `CLICK [id]`, `TYPE [id] [value]` or `SELECT [id] [value]`."
    )

    def __init__(
        self,
        folder: str | Path | None = None,
        ranks: str | Path | None = None,
        *,
        top_k: int = 5,
        rules: Rules | None = None,
        history: Literal["targets", "as_seen", "none"] = "targets",
        sizes: Sizes | None = None,
        pages: int = 50,
        seed: int = 0,
    ) -> None:
        problems = [] if history in HISTORIES else [unknown("history", str(history), HISTORIES)]
        if not 1 <= top_k <= _MOST_SHOWN:
            problems.append(Problem("top_k", f"{top_k} candidates on a page", f"give 1 to {_MOST_SHOWN}"))
        if folder is None and pages < 1:
            problems.append(Problem("pages", f"{pages} pages", "give at least 1"))
        if folder is None and ranks is not None:
            problems.append(Problem("ranks", "generated pages bring their own", "leave it out, or give a folder"))
        if problems:
            raise ConfigError(problems)
        self.top_k, self.history, self.rules = top_k, history, rules or Rules()
        self.library: Library = (
            Generated(pages, seed, sizes=sizes) if folder is None else Folder(folder, ranks, first=top_k, sizes=sizes)
        )
        self.name, self.version, self.tiers = self.library.name, self.library.version, self.library.tiers
        self.horizon = self.library.longest
        self._screens = lru_cache(maxsize=_KNOWN_TASKS)(self._shown)

    @property
    def invalid(self) -> tuple[Problem, ...]:
        """The rows that were left out, and why."""
        return self.library.invalid

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self.library.tasks(split, tier)

    def recorded(self, task: Task) -> WebTask:
        """What a task was recorded as.

        Raises:
            ConfigError: a task of another world, or of no such row. VersionMismatch: it was changed since.
        """
        check_task(self, task)
        return self.library.recorded(task)

    def make(self, task: Task) -> WebReplayEnv:
        """An Env for a task of this world; raises what `recorded` does."""
        recorded, screens = self._screens(task)
        return WebReplayEnv(task, recorded, screens, world=self)

    def _shown(self, task: Task) -> tuple[WebTask, tuple[Screen, ...]]:
        recorded = self.recorded(task)
        return recorded, tuple(self._screen(recorded, step) for step in recorded.steps)

    def _screen(self, recorded: WebTask, step: WebStep) -> Screen:
        ranks, why = step.ranks, step.unscorable
        if self.library.ranks is not None:
            ranks = self.library.ranks.of.get(f"{recorded.id}_{step.uid}", step.ranks)
            why = why or ("" if ranks is not None else "no ranks of its candidates")
        every = step.candidates
        first = every if ranks is None else [one for one in every if ranks.get(one, self.top_k) < self.top_k]
        target = WebTarget(step.positives, step.operation, step.value, frozenset(first), why)
        try:
            tree = parse_page(step.html)
        except SampleInvalid as error:
            return Screen("", "", replace(target, shown=frozenset(), unscorable=why or str(error)))
        on_page = {one.id for one in tree.walk() if one.id}
        if not why and step.positives and on_page.isdisjoint(step.positives):
            target = replace(target, unscorable="the page has no element that is right")
        target = replace(target, shown=frozenset(on_page & set(first)))
        page = render(prune(tree, first))
        past = page if self.history != "targets" else render(prune(tree, {*first, *step.positives}))
        return Screen(page, past, target)

    def targets(self, task: Task) -> tuple[WebTarget, ...]:
        """What is right at each step of a task, and what its page shows."""
        return tuple(screen.target for screen in self._screens(task)[1])

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = every step succeeded; raw = how many did, unit = their share of the steps in the average.

        An episode with a step that cannot be scored is unscored; a missed step is no success, also where it is skipped.

        Raises:
            WorldError: `info["scores"]` are none of this world.
        """
        try:
            scores = [StepScore(**score) for score in info.get("scores", ())]
        except TypeError as error:
            raise WorldError(f"no scores of steps ({error})", value=info.get("scores"), expected="a list") from error
        if any(reward is None for reward in rewards) or any(score.unscorable for score in scores):
            return Score(None, None, None)
        known = [score.success for score in scores if score.success is not None]
        success = bool(scores) and len(scores) == len(rewards) and all(score.success == 1.0 for score in scores)
        return Score(float(sum(known)), sum(known) / len(known) if known else None, success)

    def evaluate(self, trajectories: Sequence[Trajectory], *, rules: Rules | None = None) -> WebScores:
        """The averages and counts of whole episodes, under these rules (None: the world's).

        A step that was not reached, because the episode broke off, counts as a wrong one.

        Raises:
            ConfigError: a task of another world.
        """
        chosen = rules or self.rules
        scores = []
        for one in trajectories:
            targets = self.targets(one.task)
            done = [_read(str(step.action)) for step in one.steps[: len(targets)]]
            missing = [ParseFailure("", "the episode broke off")] * (len(targets) - len(done))
            scores.append(
                [score_step(action, target, chosen) for action, target in zip([*done, *missing], targets, strict=True)]
            )
        return aggregate(scores)

    def expert(self, task: Task) -> Sequence[str]:
        """The recorded actions. Where a page does not show the right element they score 0 as well."""
        return [parsed.action for parsed in self.explained(task)]

    def explained(self, task: Task) -> Sequence[Parsed]:
        """The recorded actions, with thoughts where the record has them (that of generated pages does)."""
        targets = self.targets(task)
        steps = self.recorded(task).steps
        return [Parsed(target.action.text, step.thought or None) for target, step in zip(targets, steps, strict=True)]

    def vocabulary(self) -> Sequence[str] | None:
        """Every word and mark of observations, actions and thoughts, sorted; None for a folder."""
        words = self.library.words()
        fixed = (*words_of(self.instructions), *words_of(_SAID))
        return None if words is None else sorted({*words, *fixed, *map(str, range(1, 100))})


_SAID = (
    "Task: Page Action: < > / = ` [ ] . id The task is over. The last action was none: expected CLICK [id], TYPE [id] "
    "[value] or SELECT [id] [value] there is nothing between back quotes. no id between the first brackets needs a "
    "second pair of brackets with the value."
)
