"""The world of sites: tasks in a shop, a forum and a project tracker, in the form of WebArena.

    OBJECTIVE: Who wrote the latest comment on the second newest post in the forum cycling?
        click [57]  ->  ...  click [93]  ->  ...  stop [ada_abbott]

Observations, actions and evaluators are those of Zhou et al. 2023 (https://arxiv.org/abs/2307.13854); pages and rows
are generated, and no browser runs. A task joins a source, which describes a target, with a goal. A kind is such a pair.
`evo` has sources and goals that `seen` lacks; `combo` has pairs whose parts are trained, but never together; `longer`
asks a question and writes the answer somewhere else, often on another site. A few questions have no answer; there
`N/A` is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Json, Score, Task, canonical_json, sample_rng
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, check_task, score_if_won
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.site.browser import Scene, SiteEnv
from evolvent.worlds.site.database import Database, load_database
from evolvent.worlds.site.evaluators import NOT_AVAILABLE, Evaluation, ProgramCheck, is_accepted
from evolvent.worlds.site.goals.base import Goal, Navigator, Slots, Source, pick
from evolvent.worlds.site.goals.forum import BOARD_GOALS, BOARD_SOURCES, POST_GOALS, POST_SOURCES, TITLES
from evolvent.worlds.site.goals.shop import ORDER_GOALS, ORDER_SOURCES, PRODUCT_GOALS, PRODUCT_SOURCES
from evolvent.worlds.site.goals.tracker import (
    ISSUE_GOALS,
    ISSUE_SOURCES,
    ISSUE_TITLES,
    PROJECT_GOALS,
    PROJECT_SOURCES,
    REQUEST_GOALS,
    REQUEST_SOURCES,
)
from evolvent.worlds.site.nodes import build_url
from evolvent.worlds.site.pages import forum, tracker
from evolvent.worlds.site.records import load_view
from evolvent.worlds.site.router import SITES

__all__ = ["Kind", "Site", "list_kinds_by_tier"]

_HORIZON = 25  # AgentGym's number of rounds
_MAX_CACHED_SCENES = 2048
_MISSING_SHARE = 0.08  # of the questions
_MAX_TRIES = 100
_PARTS: Sequence[tuple[Sequence[Source[Any]], Sequence[Goal[Any]]]] = (
    (PRODUCT_SOURCES, PRODUCT_GOALS),
    (ORDER_SOURCES, ORDER_GOALS),
    (POST_SOURCES, POST_GOALS),
    (BOARD_SOURCES, BOARD_GOALS),
    (ISSUE_SOURCES, ISSUE_GOALS),
    (REQUEST_SOURCES, REQUEST_GOALS),
    (PROJECT_SOURCES, PROJECT_GOALS),
)
_SOURCES = {source.name: source for sources, _ in _PARTS for source in sources}
_GOALS = {f"{goal.entity}: {goal.name}": goal for _, goals in _PARTS for goal in goals}
_UNSEEN_SOURCES = ("dear product", "top post", "assigned issue")
_UNSEEN_GOALS = (
    *("product: sku", "product: wish", "product: buy", "order: date", "order: reorder", "post: latest commenter"),
    *("post: downvote", "board: subscribe", "issue: labels", "issue: assign", "merge request: reviewer"),
    *("merge request: comment", "project: star"),
)
_POINTLESS = (
    ("latest order of a status", "order: status"),
    ("dated order", "order: date"),
    ("post of a user", "post: author"),
    ("assigned issue", "issue: assignee"),
    ("merge request of a user", "merge request: author"),
)  # pairs whose source tells the answer
_SINKS = ("post", "comment", "new issue", "note")
_SINK_TEXTS = {
    "post": "Then submit a post with the title {title!r} to the forum {board}; the answer is its body.",
    "comment": "Then write the answer as a comment on the newest post in the forum {board}.",
    "new issue": "Then create an issue in the project {project} with the title {title!r}, described by the answer.",
    "note": "Then write the answer as a comment on the newest open issue in the project {project}.",
}


class Kind(NamedTuple):
    """A kind of tasks.

    Attributes:
        source: name of the source.
        goal: name of the goal with its entity, for example `post: author`.
        sink: where the answer is written; "" for the answer itself.
    """

    source: str
    goal: str
    sink: str = ""

    @property
    def name(self) -> str:
        """Returns the name of the kind, as tasks have it."""
        return f"{self.source}, {self.goal}" + (f", then {self.sink}" if self.sink else "")


@cache
def list_kinds_by_tier() -> Mapping[str, tuple[Kind, ...]]:
    """Returns the kinds of tasks of each tier."""
    kinds: dict[str, list[Kind]] = {tier: [] for tier in TIERS}
    for sources, goals in _PARTS:
        for row, source in enumerate(sources):
            for column, goal in enumerate(goals):
                kind = Kind(source.name, f"{goal.entity}: {goal.name}")
                if (kind.source, kind.goal) in _POINTLESS:
                    continue
                is_unseen = kind.source in _UNSEEN_SOURCES or kind.goal in _UNSEEN_GOALS
                is_combination = len(sources) > 1 and (row + column) % 2 == 1
                kinds["evo" if is_unseen else "combo" if is_combination else "seen"].append(kind)
                if goal.is_question and not goal.is_count:
                    kinds["longer"] += [kind._replace(sink=sink) for sink in _SINKS]
    return {tier: tuple(tier_kinds) for tier, tier_kinds in kinds.items()}


class _Job:
    """A task with its rows: what it asks for, how that is judged, and how it is done."""

    def __init__(self, kind: Kind, slots: Slots, goal_slots: Slots, sink_slots: Slots, *, database: Database) -> None:
        self.source, self.goal, self.sink = _SOURCES[kind.source], _GOALS[kind.goal], kind.sink
        self.slots, self.goal_slots, self.sink_slots = slots, goal_slots, sink_slots
        self.database = database
        self.row = self.source.resolve(database, slots)

    def evaluate(self) -> Evaluation:
        """Returns the evaluators; those of a question without an answer accept `N/A`."""
        evaluation = None
        if self.row is not None:
            evaluation = self.goal.evaluate(self.database, self.row, self.goal_slots)
        if evaluation is None:
            return Evaluation(exact_match=NOT_AVAILABLE)
        return self._check_sink(evaluation) if self.sink else evaluation

    def _check_sink(self, question: Evaluation) -> Evaluation:
        answers = question.must_include or (question.exact_match or question.fuzzy_match,)
        board, project = str(self.sink_slots.get("board", "")), str(self.sink_slots.get("project", ""))
        title, view = (str(self.sink_slots.get("title", "")),), load_view(self.database, ())
        if self.sink == "comment":
            post = view.list_posts(board)[0]
            return Evaluation(program_html=(ProgramCheck(forum.post_url(post), "comments", answers),))
        if self.sink == "note":
            issue = next(issue for issue in view.list_issues(project) if issue.state == "open")
            url = tracker.issue_url(project, issue.number)
            return Evaluation(program_html=(ProgramCheck(url, "comments", answers),))
        url, key = f"func:latest_post:{board}", "body"
        if self.sink == "new issue":
            url, key = f"func:latest_issue:{project}", "description"
        checks = (ProgramCheck(url, "title", title, is_exact=True), ProgramCheck(url, key, answers))
        return Evaluation(program_html=checks)

    def describe(self, wording: int) -> str:
        """Returns the objective."""
        slots = dict(self.slots)
        if "category" in slots:
            slots["path"] = f"{slots['category']}: {slots['section']}" if slots["section"] else slots["category"]
        target = self.source.phrase.format(**slots)
        text = self.goal.wordings[wording % len(self.goal.wordings)].format(target=target, **self.goal_slots)
        return f"{text} {_SINK_TEXTS[self.sink].format(**self.sink_slots)}" if self.sink else text

    def do(self, user: Navigator) -> None:
        """Does the job on the pages."""
        is_open = self.source.navigate(user, self.slots)
        answer = self.goal.act(user, self.goal_slots) if is_open else NOT_AVAILABLE
        if self.sink and is_open:
            self._write(user, answer)
            answer = ""
        user.act(f"stop [{answer}]")

    def _write(self, user: Navigator, answer: str) -> None:
        slots = self.sink_slots
        if self.sink in ("post", "comment"):
            user.visit(forum.HOST)
            user.click(role="link", name="Forums")
            user.click(role="link", name=str(slots["board"]))
        else:
            user.visit(tracker.HOST)
            user.click(role="link", name=str(slots["project"]))
            user.click(role="link", name="Issues")
        if self.sink == "post":
            user.click(role="link", name="Submit a post here")
            user.type("Title", slots["title"])
            user.type("Body", answer)
            user.click(role="button", name="Create submission")
        elif self.sink == "comment":
            user.click(key="post")
            user.type("Comment", answer)
            user.click(role="button", name="Post")
        elif self.sink == "new issue":
            user.click(role="link", name="New issue")
            user.type("Title", slots["title"])
            user.type("Description", answer)
            user.click(role="button", name="Create issue")
        else:
            user.click(key="issue")
            user.type("Write a comment", answer)
            user.click(role="button", name="Comment")

    def list_texts(self) -> tuple[str, ...]:
        """Returns the texts that the listed actions type: those of the objective, and numbers with their mark."""
        slots = (*self.slots.items(), *self.goal_slots.items(), *self.sink_slots.items())
        texts = [f"#{text}" if name == "number" else str(text) for name, text in slots if name not in _UNTYPED]
        return tuple(dict.fromkeys(text for text in texts if text))

    def list_sites(self) -> tuple[str, ...]:
        """Returns WebArena's names of the sites that the task needs."""
        hosts = [self.source.host]
        if self.sink:
            hosts.append(forum.HOST if self.sink in ("post", "comment") else tracker.HOST)
        return tuple(name for name, host in SITES.items() if host in hosts)


_UNTYPED = ("category", "section", "rank", "project", "board", "order", "date", "status", "tag", "stars")


def _draw_sink(sink: str, database: Database, rng: np.random.Generator) -> Slots:
    if not sink:
        return {}
    if sink in ("post", "comment"):
        slots: dict[str, str | int] = {"board": pick(rng, list(database.boards))}
        return {**slots, "title": pick(rng, TITLES)} if sink == "post" else slots
    slots = {"project": pick(rng, list(database.projects))}
    return {**slots, "title": pick(rng, ISSUE_TITLES)} if sink == "new issue" else slots


def _draw_job(kind: Kind, database: Database, rng: np.random.Generator) -> _Job | None:
    """Draws a task of a kind; None if no try gave one that is to be done yet."""
    source, goal = _SOURCES[kind.source], _GOALS[kind.goal]
    is_missing = goal.is_question and not kind.sink and bool(rng.random() < _MISSING_SHARE)
    is_source_missing = is_missing and source.can_miss and bool(rng.random() < 0.5)
    for _ in range(_MAX_TRIES):
        slots = source.draw(database, rng, is_source_missing)
        row = source.resolve(database, slots)
        goal_slots = goal.draw(database, rng, row) if row is not None else {}
        if goal_slots is None or (row is None) != is_source_missing:
            continue
        job = _Job(kind, slots, goal_slots, _draw_sink(kind.sink, database, rng), database=database)
        evaluation = job.evaluate()
        is_answerless = evaluation.exact_match == NOT_AVAILABLE
        is_done = is_accepted(evaluation, answer="", url=build_url(source.host), view=load_view(database, ()))
        if not is_done and (is_answerless == is_missing or (is_missing and not is_source_missing)):
            return job
    return None


class Site(DealtOnce):
    """The world of sites.

    Args:
        sizes: the panel sizes.
        horizon: most actions of an episode.
        seed: seed of the rows. Another seed is another database, and its name says so.

    Raises:
        ConfigError: a horizon below 1, or a seed below 0.
    """

    version = "1"
    grammar: Grammar = Plain()
    run_in_thread = False
    reward_range = (0.0, 1.0)
    tiers = TIERS
    instructions = (
        "You use a web browser to reach the objective. Each page is shown as an accessibility tree; elements have ids "
        "in brackets. Actions: click [id]; type [id] [text] [1], or [0] for no Enter after it; hover [id]; press "
        "[keys]; scroll [down] or scroll [up]; new_tab; tab_focus [number]; close_tab; goto [url]; go_back; "
        "go_forward; stop [answer] when the objective is reached. If it asks for something, put that in the brackets; "
        "if it is impossible, answer N/A. http://homepage.com lists the sites. You are signed in everywhere."
    )

    def __init__(self, *, sizes: Sizes | None = None, horizon: int = _HORIZON, seed: int = 0) -> None:
        problems = [] if horizon >= 1 else [Problem("horizon", f"got {horizon} steps, expected at least 1")]
        if seed < 0:
            problems.append(Problem("seed", f"got {seed}, expected at least 0"))
        if problems:
            raise ConfigError(problems)
        self.horizon, self.seed = horizon, seed
        self.name = f"site-{seed}" if seed else "site"
        self._get_scene = lru_cache(maxsize=_MAX_CACHED_SCENES)(self._build_scene)
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )

    @property
    def database(self) -> Database:
        """Returns the shared rows."""
        return load_database(self.seed)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end, of all kinds of the tier in turn."""
        kinds, database = list_kinds_by_tier()[tier], self.database
        for number in count():
            rng = sample_rng("site tasks", tier, number)
            for position in rng.permutation(len(kinds)).tolist():
                kind = kinds[position]
                job = _draw_job(kind, database, rng)
                if job is None:
                    continue
                spec: dict[str, Json] = {
                    "source": kind.source,
                    "goal": kind.goal,
                    "sink": kind.sink,
                    "slots": dict(job.slots),
                    "goal_slots": dict(job.goal_slots),
                    "sink_slots": dict(job.sink_slots),
                    "wording": int(rng.integers(len(job.goal.wordings))),
                }
                yield Candidate(spec, kind.name, tier, _spec_key(spec))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in their wording."""
        return _spec_key(task.spec)

    def make(self, task: Task) -> SiteEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: the task belongs to another world, or its spec is invalid.
            VersionMismatch: the task belongs to another version.
        """
        return SiteEnv(task, self._get_scene(task))

    def evaluation(self, task: Task) -> Evaluation:
        """Returns the evaluators of a task; `to_config` of it has the form of WebArena's task files."""
        return self._get_scene(task).evaluation

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = unit = the reward of the answer, success = a reward of 1.

        Any reward of None makes the whole episode unscored.
        """
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the actions of a user who reads the pages; they solve every task of the panels."""
        user = Navigator(self.make(task))
        self._parse_job(task).do(user)
        return tuple(user.actions)

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open, since pages show what was typed."""
        return None

    def _build_scene(self, task: Task) -> Scene:
        job = self._parse_job(task)
        return Scene(
            objective=job.describe(int(task.spec["wording"])),
            evaluation=job.evaluate(),
            start_url=build_url(job.source.host),
            database=self.database,
            texts=job.list_texts(),
            sites=job.list_sites(),
        )

    def _parse_job(self, task: Task) -> _Job:
        """Parses a task's spec; raises ConfigError with all its problems."""
        check_task(self, task)
        spec: Mapping[str, Any] = task.spec
        kind = Kind(*(str(spec.get(name, "")) for name in ("source", "goal", "sink")))
        problems = []
        if kind.source not in _SOURCES:
            problems.append(unknown_name_problem("source", kind.source, _SOURCES))
        if kind.goal not in _GOALS:
            problems.append(unknown_name_problem("goal", kind.goal, _GOALS))
        if kind.sink and kind.sink not in _SINKS:
            problems.append(unknown_name_problem("sink", kind.sink, _SINKS))
        if type(spec.get("wording")) is not int or spec["wording"] < 0:
            problems.append(Problem("wording", f"got {spec.get('wording')!r}, expected a number of at least 0"))
        if problems:
            raise ConfigError(problems)
        try:
            slots, goal_slots, sink_slots = (dict(spec[name]) for name in ("slots", "goal_slots", "sink_slots"))
            if _SOURCES[kind.source].entity != _GOALS[kind.goal].entity:
                raise ValueError(f"{kind.goal} cannot be reached with a {kind.source}")
            job = _Job(kind, slots, goal_slots, sink_slots, database=self.database)
            job.describe(0)
            job.evaluate()
        except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
            raise ConfigError(
                [Problem("slots", f"do not fit the task: {error}", "take a task of the panels")]
            ) from error
        return job


def _spec_key(spec: Mapping[str, object]) -> str:
    return canonical_json({name: part for name, part in spec.items() if name != "wording"})
