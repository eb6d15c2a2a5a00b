"""Playing with a search: each start is searched from, the ends it came to become one answer, and the world scores that.

Worlds of one question are searched in the text of the response (spans or tokens), other worlds turn by turn from
snapshots. Whatever the search may look at, what it decided for is scored by a fresh episode of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evolvent.belief.stopping import Detector
from evolvent.engine.asks import Engine, Sampling, Wait, Work
from evolvent.engine.driver import drive
from evolvent.errors import ConfigError, EnvLost, ErrorRecord, EvolventError, Problem, ScoringError, boundary, unknown
from evolvent.search.aggregate import Answer, Choice, Same, aggregate, samples_of
from evolvent.search.environments import Estimate, StateValue, TextValue, over_env
from evolvent.search.export import tree_row
from evolvent.search.proposers import EnvState, Language
from evolvent.search.records import SearchResult, Spent
from evolvent.search.scorers import Rollouts, Scorer
from evolvent.search.settings import Begin, SearchConfig
from evolvent.search.stopping import Stop
from evolvent.search.texts import over_text
from evolvent.search.trajectories import env_trajectory, text_trajectory
from evolvent.search.writing import TextState, Writing, begin_text
from evolvent.trajectory import Score, Start, Task, Trajectory, sample_rng, sample_seed, trajectory_name, unscored
from evolvent.worlds.base import World
from evolvent.worlds.held import Limits

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["Player", "Searched", "Verdict", "check_search", "graded", "level_of", "searching"]


_PLAIN = ("greedy", "samples", "sampled_tree")  # they ask for no values


@dataclass(frozen=True)
class Searched:
    """What came of a search.

    Args:
        start: where it began. trajectory: what it decided for, scored by its world.
        spent, ended_by: of the search. dropped: children that could not be used.
        answers: what the ends came to: {"answer", "weight", "count"}, the first seen first.
        passed: whether any end was right; None: that could not be said.
        stopped: why a detector ended it early; empty: none did. spared: votes, or simulations of moves, not made.
        tree: as `search.export.tree_row` has it; empty where trees are not asked for.
    """

    start: Start
    trajectory: Trajectory
    spent: Spent = field(default_factory=Spent)
    ended_by: str = "done"
    dropped: int = 0
    answers: tuple[Mapping[str, Any], ...] = ()
    passed: bool | None = None
    stopped: str = ""
    spared: int = 0
    tree: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a world says of an end: its score, and how it read the answer."""

    score: Score
    answer: str | None


@dataclass(frozen=True)
class Player:
    """Who searches.

    Args:
        policy: who writes. engine: of the policy; `engine.several.Several` where the scorer has a model of its own.
        scorer: of spans, or of the places where an agent is to act; None: nobody judges.
        stop: when it has votes enough, or simulations before a move; None: when it has all.
    """

    policy: Policy
    engine: Engine
    scorer: Scorer | None = None
    stop: Detector | None = None


@dataclass(frozen=True)
class _Play:
    """All that the searches of a call have in common."""

    how: SearchConfig
    policy: Policy
    scorer: Scorer | None
    seed: int
    name: Callable[[Start], str]
    stop: Detector | None

    def begin(self, answer: Answer, same: Same | None = None) -> Begin:
        """The search, with the answers that its votes are for."""
        return self.how.begin(stop=None if self.stop is None else Stop(self.stop, answer, same))


def level_of(world: World, how: SearchConfig) -> str:
    """What an action is in a world: "span" or "token" of its one response, or "turn"."""
    if how.level == "auto":
        return "span" if world.horizon == 1 else "turn"
    return how.level


def check_search(worlds: Mapping[str, World], how: SearchConfig, *, judged: bool, stopped: bool = False) -> None:
    """Refuse what cannot be searched so, before anything is played.

    Args:
        judged: whether there is somebody to judge. stopped: whether a detector is to end it early.
    Raises:
        ConfigError: all of it at once.
    """
    problems = how.unstoppable() if stopped else []
    if how.value == "none" and how.method not in _PLAIN:
        problems.append(Problem("value", f"'none', and {how.method} needs values", "'judge', 'rollouts' or 'reward'"))
    if how.judged and not judged:
        problems.append(Problem("value", "'judge', and there is none", "give a judge, or value = 'rollouts'"))
    for name, world in worlds.items():
        level = level_of(world, how)
        if level != "turn" and world.horizon > 1:
            problems.append(Problem("level", f"{name!r} has episodes of several turns", "level = 'turn'"))
        if level == "token" and how.generated is not None:
            problems.append(Problem("generated", f"{name!r} is searched by tokens, none of which is sampled",
                                    "limit 'computed' or 'expansions'"))  # fmt: skip
        least = _least(how, level)
        if how.generated is not None and level != "token" and how.generated < least:
            what = f"a budget of {how.generated}, and one ask may take {least} tokens"
            problems.append(Problem("generated", what, "a larger budget, or a smaller max_tokens or span_tokens"))
        if level == "turn" and how.value == "rollouts":
            problems.append(Problem("value", f"'rollouts' in {name!r}, which is played turn by turn", "use a judge"))
        if level != "turn" and stopped and world.blocking:
            problems.append(Problem("stop", f"answers of {name!r} take too long to be read while it samples"))
        if level != "turn" and how.value == "reward":
            problems.append(Problem("value", f"'reward' in {name!r}, which pays at its end alone", "use 'rollouts'"))
    if problems:
        raise ConfigError(problems)


def _least(how: SearchConfig, level: str) -> int:
    """Tokens that the smallest ask of a search may take; below that nothing would ever be sampled."""
    if level == "span" and how.method in ("greedy", "samples", "best_of_n"):
        return how.max_tokens
    return min(how.span_tokens, how.max_tokens) * (1 if how.method in ("greedy", "samples", "best_of_n") else how.width)


def searching(
    worlds: Mapping[str, World], starts: Sequence[Start], how: SearchConfig, *, player: Player, seed: int = 0,
    slots: int = 64, name: Callable[[Start], str] = trajectory_name, trees: int = 0,
) -> Generator[Searched, None, None]:  # fmt: skip
    """Search from every start; yields what came of it in order of completion.

    What a search comes to depends on its start, the settings and the seed, and not on what is searched beside it. A
    search that fails ends in a trajectory with an error, not scored; the others go on.

    Args:
        worlds: by name, as the tasks name them.
        slots: searches that are under way at once. trees: of the first so many starts the trees are told.
    Raises:
        ConfigError: see `check_search`; a task of a world that was not handed in.
    """
    missing = sorted({start.task.world for start in starts} - set(worlds))
    if missing:
        raise ConfigError([unknown("world", world, worlds, where="task") for world in missing])
    check_search(worlds, how, judged=player.scorer is not None, stopped=player.stop is not None)
    play = _Play(how, player.policy, player.scorer, seed, name, player.stop)
    works = (_searched(worlds[start.task.world], start, play, tree=at < trees) for at, start in enumerate(starts))
    with closing(drive(works, player.engine, slots=slots, threads=max(32, slots))) as finished:
        for done in finished:
            start = starts[done.index]
            yield done.value if done.value is not None else _failed(start, name(start), done.error)


def _failed(start: Start, name: str, error: Exception | None) -> Searched:
    said = error or EvolventError("a search ended without a result")
    record = ErrorRecord(type(said).__name__, str(said))
    return Searched(start, Trajectory(name, start.task, (), ended_by="error", error=record, sample=start.sample,
                                      group=start.task.id))  # fmt: skip


def _searched(world: World, start: Start, play: _Play, *, tree: bool) -> Work[Searched]:
    level = level_of(world, play.how)
    searched: Searched
    result: SearchResult
    if level == "turn":
        searched, result = yield from _turns(world, start, play)
    else:
        searched, result = yield from _text(world, start, play, level)
    title = str(searched.trajectory.steps[0].observation) if searched.trajectory.steps else start.task.id
    kept = tree_row(result, title=title) if tree else {}
    notes = result.notes
    return replace(searched, spent=result.spent, ended_by=result.ended_by, dropped=len(result.dropped), tree=kept,
                   stopped=str(notes.get("stopped", "")), spared=int(notes.get("spared", 0)))  # fmt: skip


# ------------------------------------------------------------------ the text of a response


def _text(world: World, start: Start, play: _Play, level: str) -> Work[tuple[Searched, SearchResult]]:
    how, policy, task = play.how, play.policy, start.task
    own = sample_seed(play.seed, task.id, start.sample)
    observation = yield from _called(world, partial(_asked, world, start))
    prompt = policy.dialect.open(world.instructions, observation)
    writing = Writing.of(
        policy, max_tokens=how.max_tokens, level=level, separators=how.separators, span_tokens=how.span_tokens,
        sampling=Sampling(how.temperature, how.top_k, how.top_p), reduce=how.reduce,
    )  # fmt: skip
    scorer = play.scorer
    if how.value == "rollouts":
        slow = Limits().step_s if world.blocking else None
        scorer = Rollouts(
            lambda text: graded(world, task, text).score.unit, how.rollouts, writing, len(prompt), own, slow
        )
    same = getattr(world, "same", None)
    begin = play.begin(lambda state: graded(world, task, state.text).answer, same)
    search = begin(begin_text(prompt, seed=own), how.budget, sample_rng(own, "search"))
    result = yield from over_text(search, writing=writing, scorer=scorer if how.value != "none" else None)
    verdicts: dict[int, Verdict] = {}
    for node in dict.fromkeys(result.finished):
        verdicts[node] = yield from _called(world, partial(graded, world, task, result.tree.states[node].text))
    node, searched = _decided(result, verdicts, start, play, same=same)
    state: TextState = result.tree.states[node]
    if not state.written:  # the budget had no room for a first span
        none = Trajectory(play.name(start), task, (), observation, "horizon", world.score([], {}), start.sample,
                          group=task.id)  # fmt: skip
        return replace(searched, trajectory=none), result
    if node not in verdicts:
        verdicts[node] = yield from _called(world, partial(graded, world, task, state.text))
    trajectory = text_trajectory(state, task, name=play.name(start), observation=observation,
                                 score=verdicts[node].score, sample=start.sample)  # fmt: skip
    return replace(searched, trajectory=trajectory), result


def _asked(world: World, start: Start) -> str:
    env = world.make(start.task)
    try:
        observation, _ = env.reset()
        return str(observation)
    finally:
        env.close()


def graded(world: World, task: Task, said: str) -> Verdict:
    """What a fresh episode of a task says of a response of one turn; not scored where it cannot be graded."""
    env = world.make(task)
    try:
        env.reset()
        try:
            action = world.grammar.parse(said).action
        except EvolventError:
            action = said
        try:
            _, reward, _, _, info = env.step(action)
        except ScoringError:
            return Verdict(unscored(), None)
        answer = info.get("answer", said)
        return Verdict(world.score([reward], info), None if answer is None else str(answer))
    finally:
        env.close()


def _called(world: World, call: Callable[[], Any]) -> Generator[Sequence[Any], Sequence[Any], Any]:
    """A call of a world, off the driver's thread where it may block."""
    with boundary(EnvLost, f"world {world.name!r} failed"):
        if not world.blocking:
            return call()
        (answer,) = yield (Wait(call, Limits().step_s),)
        return answer


# ------------------------------------------------------------------ turn by turn


def _turns(world: World, start: Start, play: _Play) -> Work[tuple[Searched, SearchResult]]:
    how, task = play.how, start.task
    own = sample_seed(play.seed, task.id, start.sample)
    language = Language(play.policy, world, Sampling(how.temperature, how.top_k, how.top_p), how.span_tokens)
    estimate: Estimate | None = None
    if how.value == "judge" and play.scorer is not None:
        estimate = TextValue(language, play.scorer, whole=how.terminal == "reward")  # as `reward.states` trains it
    elif how.value == "reward":
        estimate = StateValue(lambda state: 0.0)
    begin = play.begin(lambda state: _played(world, state).answer)
    result = yield from over_env(
        lambda root: begin(root, how.budget, sample_rng(own, "search")), world=world, task=task, proposer=language,
        estimate=estimate, terminal="reward" if estimate is None or how.value == "reward" else how.terminal, seed=own,
    )  # fmt: skip
    verdicts = {node: _played(world, result.tree.states[node]) for node in dict.fromkeys(result.finished)}
    node, searched = _decided(result, verdicts, start, play)
    state: EnvState = result.tree.states[node]
    if not state.rewards:
        none = Trajectory(play.name(start), task, (), state.observation, "horizon", world.score([], state.info),
                          start.sample, group=task.id)  # fmt: skip
        return replace(searched, trajectory=none), result
    trajectory = env_trajectory(state, world, task, name=play.name(start), sample=start.sample)
    return replace(searched, trajectory=trajectory), result


def _played(world: World, state: EnvState) -> Verdict:
    actions = []
    at: EnvState | None = state
    while at is not None and at.taken is not None:
        actions.append(str(at.taken.action))
        at = at.above
    return Verdict(world.score(list(state.rewards), state.info), " | ".join(reversed(actions)))


# ------------------------------------------------------------------ deciding


def _decided(
    result: SearchResult, verdicts: Mapping[int, Verdict], start: Start, play: _Play, *, same: Same | None = None
) -> tuple[int, Searched]:  # fmt: skip
    """The node of the answer, and what is told of all ends; without an end the likeliest unfinished path."""
    how = play.how
    judged = how.value != "none" and how.method not in _PLAIN
    samples = samples_of(result, lambda state: None)
    nodes = [sample.place[1] if sample.place else 0 for sample in samples]
    samples = [replace(sample, answer=verdicts[node].answer) for sample, node in zip(samples, nodes, strict=True)]
    rule, span = how.rule if judged else "majority", how.reduce if how.score != "outcome" else "outcome"
    choice: Choice = aggregate(samples, span=span, rule=rule, same=same)
    counts: dict[Any, int] = {}
    for sample in samples:
        counts[sample.answer] = counts.get(sample.answer, 0) + sample.count
    told = tuple({"answer": answer, "weight": weight, "count": counts.get(answer, 0)}
                 for answer, weight in zip(choice.answers, choice.weights, strict=True))  # fmt: skip
    right = [verdict.score.success for verdict in verdicts.values()]
    passed = True if True in right else None if None in right else False
    searched = Searched(start, _NOTHING, answers=told, passed=passed)
    return (nodes[choice.chosen] if choice.chosen is not None else _furthest(result)), searched


def _furthest(result: SearchResult) -> int:
    """The unfinished path of highest value, or else the deepest; the root where there is none."""
    tree = result.tree
    best, worth = 0, (-float("inf"), -1)
    for node in tree.leaves():
        value = float(tree.value[node])
        own = (value if value == value else -float("inf"), int(tree.depth[node]))
        if node and own > worth:
            best, worth = node, own
    return best


_NOTHING: Any = None  # what a search decided for is put in when its trajectory is made
