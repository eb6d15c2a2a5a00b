"""Playing with a search: each start is searched from, the ends it came to become one answer, and the world scores that.

Worlds of one question are searched in the text of the response (spans or tokens) or in solutions by rStar's kinds of
actions, other worlds turn by turn from snapshots; several trees of a problem are one forest. Whatever the search may
look at, what it decided for is scored by a fresh episode of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evolvent.belief.stopping import Detector
from evolvent.engine.asks import Engine, Sampling, Work
from evolvent.engine.driver import drive
from evolvent.errors import ConfigError, ErrorRecord, EvolventError, Problem, unknown
from evolvent.search.aggregate import Answer, Same
from evolvent.search.environments import Estimate, StateValue, TextValue, over_env
from evolvent.search.export import tree_row
from evolvent.search.forest import Decision, Forest, Growing, decide, forest, told
from evolvent.search.proposers import EnvState, Language
from evolvent.search.records import Spent
from evolvent.search.rstar_prompts import Solution, answer_of
from evolvent.search.scorers import Rollouts, Scorer
from evolvent.search.settings import Begin, ForestConfig, SearchConfig
from evolvent.search.solutions import SolutionState, begin_solution, over_solutions
from evolvent.search.solving import check_solver, completer, key_of, response, solution_trajectory, unsolvable
from evolvent.search.stopping import Stop
from evolvent.search.texts import over_text
from evolvent.search.trajectories import env_trajectory, text_trajectory
from evolvent.search.verdicts import Verdict, called, graded, question_of
from evolvent.search.writing import TextState, Writing, begin_text
from evolvent.trajectory import Start, Trajectory, sample_seed, trajectory_name
from evolvent.worlds.base import World
from evolvent.worlds.deferred_close import Limits

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
        tree: the one that the answer is from, as `search.export.tree_row` has it; empty where it is not asked for.
        forest: all trees of the problem like that, where they are several.
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
    forest: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Player:
    """Who searches.

    Args:
        policy: who writes. engine: of the policy; `engine.several.Several` where the scorer has a model of its own.
        scorer: of spans, or of the places where an agent is to act; None: nobody judges.
        stop: when it has votes enough, or simulations before a move; None: when it has all.
        judge: who completes masked solutions for rStar's discriminator, and its name among the engines; None: nobody
            but the policy.
    """

    policy: Policy
    engine: Engine
    scorer: Scorer | None = None
    stop: Detector | None = None
    judge: tuple[Policy, str] | None = None


@dataclass(frozen=True)
class _Play:
    """All that the searches of a call have in common."""

    how: SearchConfig
    policy: Policy
    scorer: Scorer | None
    seed: int
    name: Callable[[Start], str]
    stop: Detector | None
    judge: tuple[Policy, str] | None

    def begin(self, answer: Answer, same: Same | None = None) -> Begin:
        """The search, with the answers that its votes are for."""
        return self.how.begin(stop=None if self.stop is None else Stop(self.stop, answer, same))

    def grow(self, begin: Begin, root: Any, own: int) -> Growing:
        """All trees of a problem, within its budget; usually one."""
        return forest(begin, root, self.how.budget, trees=_trees(self.how), seed=own)


def level_of(world: World, how: SearchConfig) -> str:
    """What an action is: "span" or "token" of a world's one response, "turn", or one of rStar's in a "solution"."""
    if _solves(how):
        return "solution"
    if how.level == "auto":
        return "span" if world.horizon == 1 else "turn"
    return how.level


def _solves(how: SearchConfig) -> bool:
    return isinstance(how, ForestConfig) and how.solves


def _trees(how: SearchConfig) -> int:
    return how.trees if isinstance(how, ForestConfig) else 1


def check_search(worlds: Mapping[str, World], how: SearchConfig, *, judged: bool, stopped: bool = False) -> None:
    """Refuse what cannot be searched so, before anything is played.

    Args:
        judged: whether there is somebody to judge. stopped: whether a detector is to end it early.
    Raises:
        ConfigError: all of it at once.
    """
    problems = how.unstoppable() if stopped else []
    if stopped and _trees(how) > 1:
        problems.append(Problem("stop", "a detector looks at the votes of one tree", "forest = 1"))
    if how.value == "none" and how.method not in _PLAIN and not _solves(how):
        problems.append(Problem("value", f"'none', and {how.method} needs values", "'judge', 'rollouts' or 'reward'"))
    if how.judged and not judged:
        problems.append(Problem("value", "'judge', and there is none", "give a judge, or value = 'rollouts'"))
    for name, world in worlds.items():
        level = level_of(world, how)
        problems += how.lonely(level) if isinstance(how, ForestConfig) else []
        if level == "solution":
            problems += unsolvable(name, world, how.level)
        elif level != "turn" and world.horizon > 1:
            problems.append(Problem("level", f"{name!r} has episodes of several turns", "level = 'turn'"))
        if level == "token" and how.generated is not None:
            problems.append(
                Problem(
                    "generated",
                    f"{name!r} is searched by tokens, none of which is sampled",
                    "limit 'computed' or 'expansions'",
                )
            )
        least, trees = _least(how, level), _trees(how)
        if how.generated is not None and level != "token" and how.generated // trees < least:
            shared = f", shared by {trees} trees" if trees > 1 else ""
            what = f"a budget of {how.generated}{shared}, and one ask may take {least} tokens"
            problems.append(Problem("generated", what, "a larger budget, or a smaller max_tokens or span_tokens"))
        if level == "solution":
            continue  # it asks for no values
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
    if isinstance(how, ForestConfig) and how.solves:
        return how.rstar.votes * how.max_tokens
    if level == "span" and how.method in ("greedy", "samples", "best_of_n"):
        return how.max_tokens
    return min(how.span_tokens, how.max_tokens) * (1 if how.method in ("greedy", "samples", "best_of_n") else how.width)


def searching(
    worlds: Mapping[str, World],
    starts: Sequence[Start],
    how: SearchConfig,
    *,
    player: Player,
    seed: int = 0,
    slots: int = 64,
    name: Callable[[Start], str] = trajectory_name,
    trees: int = 0,
) -> Generator[Searched, None, None]:
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
    if _solves(how):
        check_solver(player.policy)
    play = _Play(how, player.policy, player.scorer, seed, name, player.stop, player.judge)
    works = (_searched(worlds[start.task.world], start, play, tree=at < trees) for at, start in enumerate(starts))
    with closing(drive(works, player.engine, slots=slots, threads=max(32, slots))) as finished:
        for done in finished:
            start = starts[done.index]
            yield done.value if done.value is not None else _failed(start, name(start), done.error)


def _failed(start: Start, name: str, error: Exception | None) -> Searched:
    said = error or EvolventError("a search ended without a result")
    record = ErrorRecord(type(said).__name__, str(said))
    return Searched(
        start,
        Trajectory(name, start.task, (), ended_by="error", error=record, sample=start.sample, group=start.task.id),
    )


def _searched(world: World, start: Start, play: _Play, *, tree: bool) -> Work[Searched]:
    way = {"turn": _turns, "solution": _solved}.get(level_of(world, play.how), _text)
    searched, grown, at = yield from way(world, start, play)
    title = str(searched.trajectory.steps[0].observation) if searched.trajectory.steps else start.task.id
    kept = [tree_row(result, title=title) for result in grown.trees] if tree else []
    notes = grown.trees[0].notes
    return replace(
        searched,
        spent=grown.spent,
        ended_by=grown.ended_by,
        tree=kept[at.tree] if kept else {},
        dropped=sum(len(result.dropped) for result in grown.trees),
        forest=tuple(kept) if len(grown.trees) > 1 else (),
        stopped=str(notes.get("stopped", "")),
        spared=int(notes.get("spared", 0)),
    )


# ------------------------------------------------------------------ the text of a response


Found = tuple[Searched, Forest, Decision]


def _text(world: World, start: Start, play: _Play) -> Work[Found]:
    how, policy, task, level = play.how, play.policy, start.task, level_of(world, play.how)
    own = sample_seed(play.seed, task.id, start.sample)
    observation = yield from called(world, partial(question_of, world, task))
    prompt = policy.dialect.open(world.instructions, observation)
    writing = Writing.of(
        policy,
        max_tokens=how.max_tokens,
        level=level,
        separators=how.separators,
        span_tokens=how.span_tokens,
        sampling=Sampling(how.temperature, how.top_k, how.top_p),
        reduce=how.reduce,
    )
    scorer = play.scorer
    if how.value == "rollouts":
        slow = Limits().step_s if world.blocking else None
        scorer = Rollouts(
            lambda text: graded(world, task, text).score.unit, how.rollouts, writing, len(prompt), own, slow
        )
    same = getattr(world, "same", None)
    begin = play.begin(lambda state: graded(world, task, state.text).answer, same)
    search = play.grow(begin, begin_text(prompt, seed=own), own)
    grown = yield from over_text(search, writing=writing, scorer=scorer if how.value != "none" else None)
    verdicts: list[dict[int, Verdict]] = []
    for result in grown.trees:
        read: dict[int, Verdict] = {}
        for node in dict.fromkeys(result.finished):
            read[node] = yield from called(world, partial(graded, world, task, result.tree.states[node].text))
        verdicts.append(read)
    at, searched = _decided(grown, verdicts, start, play, same=same)
    state: TextState = grown.trees[at.tree].tree.states[at.node]
    if not state.written:  # the budget had no room for a first span
        return replace(searched, trajectory=_nothing(world, start, play, observation)), grown, at
    if at.node not in verdicts[at.tree]:
        verdicts[at.tree][at.node] = yield from called(world, partial(graded, world, task, state.text))
    trajectory = text_trajectory(
        state,
        task,
        name=play.name(start),
        observation=observation,
        score=verdicts[at.tree][at.node].score,
        sample=start.sample,
    )
    return replace(searched, trajectory=trajectory), grown, at


def _nothing(world: World, start: Start, play: _Play, observation: Any, info: Any = ()) -> Trajectory:
    """An episode in which nothing was done, because the budget had no room for it."""
    return Trajectory(
        play.name(start),
        start.task,
        (),
        observation,
        "horizon",
        world.score([], dict(info)),
        start.sample,
        group=start.task.id,
    )


# ------------------------------------------------------------------ a solution


def _solved(world: World, start: Start, play: _Play) -> Work[Found]:
    """rStar: a solution in its own prompts, put together as a response of the world."""
    how, task = play.how, start.task
    if not isinstance(how, ForestConfig):
        raise EvolventError("rstar without its settings", value=type(how).__name__)
    own = sample_seed(play.seed, task.id, start.sample)
    observation = yield from called(world, partial(question_of, world, task))
    who = completer(play.policy, how)
    judge = who
    if how.rstar.discriminator == "judge" and play.judge is not None:
        judge = completer(play.judge[0], how, model=play.judge[1])

    def verdict(solution: Solution) -> Verdict:
        found = graded(world, task, response(world, solution))
        return found if answer_of(solution) is not None else replace(found, answer=None)

    def answer(state: SolutionState) -> str | None:
        said = answer_of(state.solution)
        if said is None:
            return None
        return key_of(world, said) if world.blocking else verdict(state.solution).answer

    same = getattr(world, "same", None)
    begin = how.rstar.begin(answer, None if world.blocking else same)
    search = play.grow(begin, begin_solution(observation, seed=own), own)
    grown = yield from over_solutions(search, encode=who.encode, writing=who.writing, judge=judge)
    verdicts: list[dict[int, Verdict]] = []
    for result in grown.trees:
        read: dict[int, Verdict] = {}
        for node in (node for node in range(len(result.tree)) if result.tree.terminal[node]):
            read[node] = yield from called(world, partial(verdict, result.tree.states[node].solution))
        verdicts.append(read)
    at, searched = _decided(grown, verdicts, start, play, same=same)
    state: SolutionState = grown.trees[at.tree].tree.states[at.node]
    if state.generation is None:
        return replace(searched, trajectory=_nothing(world, start, play, observation)), grown, at
    if at.node not in verdicts[at.tree]:
        verdicts[at.tree][at.node] = yield from called(world, partial(verdict, state.solution))
    trajectory = solution_trajectory(
        state,
        task,
        said=response(world, state.solution),
        name=play.name(start),
        observation=observation,
        score=verdicts[at.tree][at.node].score,
        sample=start.sample,
    )
    return replace(searched, trajectory=trajectory), grown, at


# ------------------------------------------------------------------ turn by turn


def _turns(world: World, start: Start, play: _Play) -> Work[Found]:
    how, task = play.how, start.task
    own = sample_seed(play.seed, task.id, start.sample)
    language = Language(play.policy, world, Sampling(how.temperature, how.top_k, how.top_p), how.span_tokens)
    estimate: Estimate | None = None
    if how.value == "judge" and play.scorer is not None:
        estimate = TextValue(language, play.scorer, whole=how.terminal == "reward")  # as `reward.states` trains it
    elif how.value == "reward":
        estimate = StateValue(lambda state: 0.0)
    begin = play.begin(lambda state: _played(world, state).answer)
    grown = yield from over_env(
        lambda root: play.grow(begin, root, own),
        world=world,
        task=task,
        proposer=language,
        estimate=estimate,
        terminal="reward" if estimate is None or how.value == "reward" else how.terminal,
        seed=own,
    )
    verdicts = [
        {node: _played(world, result.tree.states[node]) for node in dict.fromkeys(result.finished)}
        for result in grown.trees
    ]
    at, searched = _decided(grown, verdicts, start, play)
    state: EnvState = grown.trees[at.tree].tree.states[at.node]
    if not state.rewards:
        none = _nothing(world, start, play, state.observation, state.info)
        return replace(searched, trajectory=none), grown, at
    trajectory = env_trajectory(state, world, task, name=play.name(start), sample=start.sample)
    return replace(searched, trajectory=trajectory), grown, at


def _played(world: World, state: EnvState) -> Verdict:
    actions = []
    at: EnvState | None = state
    while at is not None and at.taken is not None:
        actions.append(str(at.taken.action))
        at = at.above
    return Verdict(world.score(list(state.rewards), state.info), " | ".join(reversed(actions)))


# ------------------------------------------------------------------ deciding


def _decided(
    grown: Forest, verdicts: Sequence[Mapping[int, Verdict]], start: Start, play: _Play, *, same: Same | None = None
) -> tuple[Decision, Searched]:
    """Where the answer is, and what is told of all ends; without an end the likeliest unfinished path."""
    how = play.how
    judged = how.value != "none" and how.method not in _PLAIN
    rule, span = how.rule if judged else "majority", how.reduce if how.score != "outcome" else "outcome"
    if _solves(how):
        rule, span = "vote", "last"  # by the rewards of the ends
    answers = [{node: verdict.answer for node, verdict in read.items()} for read in verdicts]
    between = how.between if isinstance(how, ForestConfig) and len(grown.trees) > 1 else "ends"
    at = decide(grown.trees, answers, rule=rule, span=span, between=between, same=same)
    right = [verdict.score.success for read in verdicts for verdict in read.values()]
    passed = True if True in right else None if None in right else False
    return at, Searched(start, _NOTHING, answers=told(at, same=same), passed=passed)


_NOTHING: Any = None  # what a search decided for is put in when its trajectory is made
