"""Web replay: recorded tasks, one recorded page after the other, whatever the last action was.

    Task: reserve the red comet , a van in oslo
    Page 1: <body> ... <input id=74 text pick up city></input> ...
        ->  TYPE [74] [oslo]  ->  Page 1: ...  Action 1: `TYPE [74] [oslo]`  Page 2: <body> ...

Every step is one decision, scored by itself; the next page is the recorded one. History is teacher-forced: an
observation shows the recorded earlier actions, not those of the agent. A page shows the candidates that a
ranking puts first. In the published evaluations the pages of the history always show the right elements too,
which is more than an agent saw (`history="targets"`); `history="as_seen"` shows those pages as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from evolvent.errors import (
    ConfigError,
    InvalidAction,
    Problem,
    SampleInvalid,
    WorldError,
    unknown_name_problem,
)
from evolvent.grade.markdown import find_code_span
from evolvent.grade.thoughts import split_thoughts
from evolvent.grade.web_actions import (
    ParseFailure,
    ScoringRules,
    StepScore,
    WebAction,
    WebScores,
    WebTarget,
    aggregate_scores,
    parse_action,
    parse_reply,
    score_step,
)
from evolvent.trajectory import Score, Task, Trajectory, Value
from evolvent.worlds.base import Grammar, Info, Parsed, Reply, StateEnv, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.searchqa.bm25 import Index, split_words
from evolvent.worlds.web_replay.pages import Folder, Generated, Library, parse_page, prune, render
from evolvent.worlds.web_replay.records import WebStep, WebTask

__all__ = ["HISTORIES", "Screen", "WebGrammar", "WebReplayEnv", "WebReplayWorld"]

HISTORIES = ("targets", "as_seen", "none")
"""What an observation tells of earlier steps."""
_MAX_CACHED_TASKS = 64  # tasks whose pages are kept ready
_MAX_CANDIDATES = 50
_RANKER = "bm25-1"  # in the ids of tasks whose candidates are ranked by text
_MAX_RANKED_WORDS = 60  # words of a candidate that are compared with the instruction


@dataclass(frozen=True, slots=True)
class WebGrammar:
    """A grammar in which the first back-quoted span is the action, and the text before it the thought."""

    def parse(self, text: str) -> Parsed:
        """Parses the action and the thought; raises InvalidAction if there is no text between back quotes."""
        visible, inner_thought = split_thoughts(text, leading=False)
        span = find_code_span(visible)
        if span is None:
            raise InvalidAction("nothing between back quotes", value=text, expected="`CLICK [id]`")
        thought = visible[: span[0]].strip().removesuffix("**").strip()
        return Parsed(span[2].strip(), "\n\n".join(filter(None, (inner_thought, thought))) or None)

    def render(self, parsed: Parsed) -> str:
        """Renders the thought, if there is one, and the action between back quotes."""
        return f"{parsed.thought} `{parsed.action}`" if parsed.thought else f"`{parsed.action}`"


@dataclass(frozen=True, slots=True)
class Screen:
    """A step as shown and scored.

    Args:
        page: the page as text, with the first-ranked candidates.
        past: the page as shown in later steps.
        target: the recorded action, and the elements that the page shows.
    """

    page: str
    past: str
    target: WebTarget


class WebReplayEnv(StateEnv[tuple[StepScore, ...]]):
    """The environment of one recorded task. Every action is scored and answered by the next page; the last one ends
    the episode. The state is the scores of the steps so far.

    `info` holds `task`, `website`, `domain`, `subdomain`, `step`, and after an action `scores`: the fields of
    `StepScore`, for all steps so far. Reward: the step's success. A step that cannot be scored has the reward None,
    a step that is missed and skipped has 0.
    """

    def __init__(self, task: Task, recorded: WebTask, screens: Sequence[Screen], *, world: WebReplayWorld) -> None:
        super().__init__(task, ())
        self._recorded, self._screens = recorded, screens
        self._rules, self._told = world.rules, world.history != "none"

    def _observe_start(self) -> tuple[Value, Info]:
        return self._build_observation(0), self._build_info(())

    def _build_observation(self, step_index: int) -> str:
        lines = [f"Task: {self._recorded.instruction}"]
        if self._told:
            for number, screen in enumerate(self._screens[:step_index], 1):
                lines += [f"Page {number}: {screen.past}", f"Action {number}: `{screen.target.action.text}`"]
        return "\n".join([*lines, f"Page {step_index + 1}: {self._screens[step_index].page}"])

    def _build_info(self, scores: tuple[StepScore, ...]) -> dict[str, object]:
        record = self._recorded
        info: dict[str, object] = {
            "task": record.instruction,
            "website": record.website,
            "domain": record.domain,
            "subdomain": record.subdomain,
            "step": len(scores),
        }
        return info | ({"scores": [asdict(score) for score in scores]} if scores else {})

    def _transition(self, state: tuple[StepScore, ...], action: Value) -> tuple[tuple[StepScore, ...], Reply]:
        parsed = _parse_action(str(action))
        score = score_step(parsed, self._screens[len(state)].target, self._rules)
        scores = (*state, score)
        ended = len(scores) == len(self._screens)
        info = self._build_info(scores)
        observation = "The task is over." if ended else self._build_observation(len(scores))
        if isinstance(parsed, ParseFailure):
            info["invalid"] = True
            observation = f"The last action was none: {parsed.reason}.\n{observation}"
        reward: float = None if score.unscorable else score.success or 0.0  # type: ignore[assignment]
        return scores, (observation, reward, ended, False, info)


def _parse_action(action: str) -> WebAction | ParseFailure:
    """Parses a bare action, whose value may contain back quotes; else the first back-quoted span."""
    bare = parse_action(action)
    return parse_reply(action) if isinstance(bare, ParseFailure) and "`" in action else bare


class WebReplayWorld:
    """The world of recorded pages.

    Args:
        folder: a folder of Mind2Web's files, or one file; None: generated pages.
        ranks: a JSON or Parquet file of ranks. Without one, and without ranks in the rows, pages show all
            candidates.
        top_k: number of candidates on a page, 1 to 50.
        rank_by: "file": by the ranks of the file or of the rows; "text": by BM25 of a candidate's tag, attributes and
            words for the instruction, where no published ranks are at hand. Results with either do not compare.
        rules: the rules for scoring steps.
        history: the shown part of earlier steps: their pages, with the right elements always among those shown
            ("targets", as published), or as they were shown ("as_seen"), or nothing ("none"; an agent has its own).
        sizes: maximum number of tasks of each split (None: all).
        pages, seed: of generated tasks.

    Raises:
        ConfigError: options out of range, all at once; or no usable task in the folder.
        UnsafeFile: ranks in a pickle.
    """

    grammar: Grammar = WebGrammar()
    run_in_thread = False
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
        rank_by: Literal["file", "text"] = "file",
        rules: ScoringRules | None = None,
        history: Literal["targets", "as_seen", "none"] = "targets",
        sizes: Sizes | None = None,
        pages: int = 50,
        seed: int = 0,
    ) -> None:
        problems = [] if history in HISTORIES else [unknown_name_problem("history", str(history), HISTORIES)]
        if not 1 <= top_k <= _MAX_CANDIDATES:
            problems.append(Problem("top_k", f"got {top_k}, expected 1 to {_MAX_CANDIDATES}"))
        if rank_by == "text" and (folder is None or ranks is not None):
            problems.append(Problem("rank_by", "ranks by text are for files without ranks", "leave out the ranks"))
        if folder is None and pages < 1:
            problems.append(Problem("pages", f"got {pages}, expected at least 1"))
        if folder is None and ranks is not None:
            problems.append(Problem("ranks", "generated pages have their own ranks", "leave it out, or pass a folder"))
        if problems:
            raise ConfigError(problems)
        self._rank_by = rank_by
        self.top_k, self.history, self.rules = top_k, history, rules or ScoringRules()
        self.library: Library = (
            Generated(pages, seed, sizes=sizes)
            if folder is None
            else Folder(folder, ranks, max_candidates=top_k, sizes=sizes, ranker=_RANKER if rank_by == "text" else "")
        )
        self.name, self.version, self.tiers = self.library.name, self.library.version, self.library.tiers
        self.horizon = self.library.max_steps
        self._screens = lru_cache(maxsize=_MAX_CACHED_TASKS)(self._build_screens)

    @property
    def invalid(self) -> tuple[Problem, ...]:
        """Returns the rows that were left out, with the reasons."""
        return self.library.invalid

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self.library.tasks(split, tier)

    def get_record(self, task: Task) -> WebTask:
        """Returns the record of a task.

        Raises:
            ConfigError: a task of another world, or of a missing row. VersionMismatch: it has changed since.
        """
        check_task(self, task)
        return self.library.get_record(task)

    def make(self, task: Task) -> WebReplayEnv:
        """Creates an Env for a task of this world; raises the errors of `get_record`."""
        recorded, screens = self._screens(task)
        return WebReplayEnv(task, recorded, screens, world=self)

    def _build_screens(self, task: Task) -> tuple[WebTask, tuple[Screen, ...]]:
        recorded = self.get_record(task)
        return recorded, tuple(self._build_screen(recorded, step) for step in recorded.steps)

    def _build_screen(self, recorded: WebTask, step: WebStep) -> Screen:
        ranks, reason = step.ranks, step.unscorable
        if self.library.ranks is not None:
            ranks = self.library.ranks.by_step.get(f"{recorded.id}_{step.uid}", step.ranks)
            reason = reason or ("" if ranks is not None else "no ranks of its candidates")
        candidates = step.candidates
        if self._rank_by == "text" and not reason:
            ranks = _rank_by_text(step, recorded.instruction)
        top_candidates = (
            candidates
            if ranks is None
            else [candidate for candidate in candidates if ranks.get(candidate, self.top_k) < self.top_k]
        )
        target = WebTarget(step.positives, step.operation, step.value, frozenset(top_candidates), reason)
        try:
            tree = parse_page(step.html)
        except SampleInvalid as error:
            return Screen("", "", replace(target, shown_ids=frozenset(), unscorable=reason or str(error)))
        on_page = {candidate.id for candidate in tree.walk() if candidate.id}
        if not reason and step.positives and on_page.isdisjoint(step.positives):
            target = replace(target, unscorable="the page has no element that is right")
        target = replace(target, shown_ids=frozenset(on_page & set(top_candidates)))
        page = render(prune(tree, top_candidates))
        past = page if self.history != "targets" else render(prune(tree, {*top_candidates, *step.positives}))
        return Screen(page, past, target)

    def targets(self, task: Task) -> tuple[WebTarget, ...]:
        """Returns, for each step of a task, the right action and the elements that its page shows."""
        return tuple(screen.target for screen in self._screens(task)[1])

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = every step succeeded; raw = number of successes, unit = the share of steps.

        An episode with a step that cannot be scored is unscored; a missed step is not a success, even if it is skipped.

        Raises:
            WorldError: `info["scores"]` does not come from this world.
        """
        try:
            scores = [StepScore(**score) for score in info.get("scores", ())]
        except TypeError as error:
            raise WorldError(
                f"the scores of the steps are missing ({error})", value=info.get("scores"), expected="a list"
            ) from error
        if any(reward is None for reward in rewards) or any(score.unscorable for score in scores):
            return Score(None, None, None)
        successes = [score.success for score in scores if score.success is not None]
        success = bool(scores) and len(scores) == len(rewards) and all(score.success == 1.0 for score in scores)
        return Score(float(sum(successes)), sum(successes) / len(successes) if successes else None, success)

    def evaluate(self, trajectories: Sequence[Trajectory], *, rules: ScoringRules | None = None) -> WebScores:
        """Computes the averages and counts of whole episodes, under the given rules (None: the world's).

        A step that was not reached, because the episode ended early, counts as wrong.

        Raises:
            ConfigError: a task of another world.
        """
        step_rules = rules or self.rules
        scores = []
        for trajectory in trajectories:
            targets = self.targets(trajectory.task)
            actions = [_parse_action(str(step.action)) for step in trajectory.steps[: len(targets)]]
            missing = [ParseFailure("", "the episode broke off")] * (len(targets) - len(actions))
            scores.append(
                [
                    score_step(action, target, step_rules)
                    for action, target in zip([*actions, *missing], targets, strict=True)
                ]
            )
        return aggregate_scores(scores)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the recorded actions. They score 0 if a page does not show the right element."""
        return [parsed.action for parsed in self.explain(task)]

    def explain(self, task: Task) -> Sequence[Parsed]:
        """The recorded actions, with thoughts where the record has them (that of generated pages does)."""
        targets = self.targets(task)
        steps = self.get_record(task).steps
        return [Parsed(target.action.text, step.thought or None) for target, step in zip(targets, steps, strict=True)]

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word and mark of observations, actions and thoughts, sorted; None for a folder."""
        vocabulary_texts = self.library.vocabulary_source()
        fixed = (*words_of(self.instructions), *words_of(_FIXED_WORDS))
        return None if vocabulary_texts is None else sorted({*vocabulary_texts, *fixed, *map(str, range(1, 100))})


def _rank_by_text(step: WebStep, instruction: str) -> dict[str, int]:
    """Ranks the candidates of a page by how well their own text fits the instruction; ties in the page's order."""
    try:
        tree = parse_page(step.html)
    except SampleInvalid:
        return {}  # the step cannot be scored, which is told with the page
    texts = dict.fromkeys(step.candidates, "")
    for element in tree.walk():
        if element.id in texts:
            words = [element.tag, *element.attributes.values(), *(part.text for part in element.walk())]
            texts[element.id] = " ".join(" ".join(words).split()[:_MAX_RANKED_WORDS])
    if not any(map(split_words, texts.values())):
        return {candidate: rank for rank, candidate in enumerate(step.candidates)}
    scores = Index(texts.values()).compute_scores(instruction)
    order = np.argsort(-scores, kind="stable").tolist()
    return {step.candidates[index]: rank for rank, index in enumerate(order)}


_FIXED_WORDS = (
    "Task: Page Action: < > / = ` [ ] . id The task is over. The last action was none: expected CLICK [id], TYPE [id] "
    "[value] or SELECT [id] [value] there is nothing between back quotes. no id between the first brackets needs a "
    "second pair of brackets with the value."
)
