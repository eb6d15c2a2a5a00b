"""Playing with a search: each start is searched, its ends are combined to one answer, and the world scores
that answer.

Worlds of one question are searched in the text of the response (spans or tokens) or in solutions by rStar's
kinds of actions, other worlds turn by turn from snapshots; several trees of a problem form a forest. Whatever a
search reads on its way, a fresh episode of the world scores the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evolvent.belief.stopping import Detector
from evolvent.engine.asks import Engine, Job, Sampling
from evolvent.engine.driver import run_jobs
from evolvent.errors import ConfigError, ErrorRecord, EvolventError, Problem, unknown_name_problem
from evolvent.models.dialects import Dialect, open_conversation
from evolvent.search.aggregate import Answer, Same
from evolvent.search.environments import RolloutValue, StateValue, TextValue, ValueEstimator, search_env
from evolvent.search.export import tree_row
from evolvent.search.forest import Decision, Forest, Growing, answer_rows, decide, grow_forest
from evolvent.search.proposers import EnvState, LanguageProposer, history_problems
from evolvent.search.records import Spent
from evolvent.search.rstar_prompts import Solution, read_answer
from evolvent.search.scorers import RolloutScorer, Scorer
from evolvent.search.settings import Begin, ForestConfig, SearchConfig
from evolvent.search.solutions import SolutionState, begin_solution, search_solutions
from evolvent.search.solving import (
    answer_key,
    check_solver,
    format_response,
    make_completer,
    solution_trajectory,
    solver_problems,
)
from evolvent.search.stopping import Stop
from evolvent.search.texts import search_text
from evolvent.search.trajectories import env_trajectory, text_trajectory
from evolvent.search.verdicts import ResponseGrade, call_world, graded, read_opening, read_question
from evolvent.search.writing import TextState, Writing, begin_text
from evolvent.trajectory import JsonObject, Start, Trajectory, sample_seed, trajectory_name
from evolvent.worlds.base import Limits, World

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["ResponseGrade", "SearchOutcome", "SearchPlayer", "check_search", "graded", "level_of", "search_starts"]


_METHODS_WITHOUT_VALUES = ("greedy", "samples", "sampled_tree")  # they ask for no values


@dataclass(frozen=True)
class SearchOutcome:
    """The result of a search.

    Args:
        start: The start.
        trajectory: The chosen trajectory, scored by its world.
        spent, ended_by: Cost of the search, and the reason of its end.
        dropped: Number of children that could not be used.
        answers: Answers of the ends: {"answer", "weight", "count"}, in order of first appearance.
        passed: Whether any end was right; None: unknown.
        stopped: Reason of an early end by a detector; empty: none.
        spared: Number of votes, or simulations of moves, that were saved.
        tree: The tree of the answer, as in `search.export.tree_row`; empty where it was not requested.
        forest: All trees of the problem in that form, where there are several.
    """

    start: Start
    trajectory: Trajectory
    spent: Spent = field(default_factory=Spent)
    ended_by: str = "done"
    dropped: int = 0
    answers: tuple[JsonObject, ...] = ()
    passed: bool | None = None
    stopped: str = ""
    spared: int = 0
    tree: JsonObject = field(default_factory=dict)
    forest: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True)
class SearchPlayer:
    """The models of a search.

    Args:
        policy: The policy that writes.
        engine: Engine of the policy; `engine.driver.MultiModelEngine` where the scorer has another model.
        scorer: Scorer of spans, or of states where an agent acts; None: no values by a model.
        stop: Detector that ends a vote, or the simulations before a move, early; None: no early end.
        discriminator: Policy that completes masked solutions for rStar's discriminator, and its name among the
            engines; None: the policy itself.
    """

    policy: Policy
    engine: Engine
    scorer: Scorer | None = None
    stop: Detector | None = None
    discriminator: tuple[Policy, str] | None = None


@dataclass(frozen=True)
class _SearchContext:
    """Values that all searches of a call share."""

    config: SearchConfig
    policy: Policy
    scorer: Scorer | None
    seed: int
    name: Callable[[Start], str]
    stop: Detector | None
    discriminator: tuple[Policy, str] | None

    def begin_search(self, answer: Answer, same: Same | None = None) -> Begin:
        """Builds the search, with the answers that its votes are for."""
        return self.config.begin(stop=None if self.stop is None else Stop(self.stop, answer, same))

    def grow_forest(self, begin: Begin, root: Any, problem_seed: int) -> Growing:
        """Builds all trees of a problem, within its budget; usually one."""
        return grow_forest(begin, root, self.config.budget, trees=_num_trees(self.config), seed=problem_seed)


def level_of(world: World, search: SearchConfig) -> str:
    """Returns the unit of an action: "span" or "token" of a world's one response, "turn", or rStar's "solution"."""
    if _is_rstar(search):
        return "solution"
    if search.level == "auto":
        return "span" if world.horizon == 1 else "turn"
    return search.level


def _is_rstar(search: SearchConfig) -> bool:
    return isinstance(search, ForestConfig) and search.uses_rstar


def _num_trees(search: SearchConfig) -> int:
    return search.trees if isinstance(search, ForestConfig) else 1


def check_search(
    worlds: Mapping[str, World],
    search: SearchConfig,
    *,
    has_scorer: bool,
    has_detector: bool = False,
    dialect: Dialect | None = None,
) -> None:
    """Raises an error for impossible searches before anything is played.

    Args:
        worlds: Worlds by name.
        search: Settings of the search.
        has_scorer: Whether there is a value model.
        has_detector: Whether a detector may end the search early.
        dialect: Dialect of the policy that writes; None: not checked.
    Raises:
        ConfigError: lists all problems.
    """
    problems = search.stopping_problems() if has_detector else []
    if has_detector and _num_trees(search) > 1:
        problems.append(Problem("stop", "a detector needs the votes of a single tree", "set forest to 1"))
    if search.value == "none" and search.method not in _METHODS_WITHOUT_VALUES and not _is_rstar(search):
        problems.append(
            Problem(
                "value", f"got 'none', but {search.method} needs values", "set value to 'judge', 'rollouts' or 'reward'"
            )
        )
    if search.uses_judge and not has_scorer:
        problems.append(Problem("value", "got 'judge', but no judge is set", "set a judge, or set value to 'rollouts'"))
    for name, world in worlds.items():
        level = level_of(world, search)
        problems += history_problems(dialect) if dialect is not None and level == "turn" else []
        problems += search.forest_problems(level) if isinstance(search, ForestConfig) else []
        if level == "solution":
            problems += solver_problems(name, world, search.level)
        elif level != "turn" and world.horizon > 1:
            problems.append(Problem("level", f"world {name!r} has episodes of several turns", "set level to 'turn'"))
        if level == "token" and search.generated is not None:
            problems.append(
                Problem(
                    "generated",
                    f"the search of world {name!r} does not sample tokens",
                    "limit 'computed' or 'expansions' instead",
                )
            )
        min_tokens, trees = _min_request_tokens(search, level), _num_trees(search)
        if search.generated is not None and level != "token" and search.generated // trees < min_tokens:
            shared = f", shared by {trees} trees" if trees > 1 else ""
            problem = f"got a budget of {search.generated}{shared}, but a single request may take {min_tokens} tokens"
            problems.append(Problem("generated", problem, "raise the budget, or lower max_tokens or span_tokens"))
        if level == "solution":
            continue  # it asks for no values
        if level != "turn" and has_detector and world.run_in_thread:
            problems.append(Problem("stop", f"reading answers of world {name!r} takes too long during sampling"))
        if level != "turn" and search.value == "reward":
            problems.append(
                Problem("value", f"got 'reward', but world {name!r} pays only at the end", "use 'rollouts'")
            )
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _min_request_tokens(search: SearchConfig, level: str) -> int:
    """Returns the maximum tokens of the smallest request of a search; below that nothing would ever be sampled."""
    if isinstance(search, ForestConfig) and search.uses_rstar:
        return search.rstar.votes * search.max_tokens
    if level == "span" and search.method in ("greedy", "samples", "best_of_n"):
        return search.max_tokens
    return min(search.span_tokens, search.max_tokens) * (
        1 if search.method in ("greedy", "samples", "best_of_n") else search.width
    )


def search_starts(
    worlds: Mapping[str, World],
    starts: Sequence[Start],
    search: SearchConfig,
    *,
    player: SearchPlayer,
    seed: int = 0,
    slots: int = 64,
    name: Callable[[Start], str] = trajectory_name,
    trees: int = 0,
) -> Generator[SearchOutcome, None, None]:
    """Searches from every start; yields the outcomes in order of completion.

    The outcome of a search depends on its start, the settings and the seed, and not on other searches. A search
    that fails ends in a trajectory with an error and no score; the others go on.

    Args:
        worlds: Worlds by name, as the tasks name them.
        starts: The starts.
        search: Settings of the search.
        player: Models of the search.
        seed: Seed of all searches.
        slots: Number of simultaneous searches.
        name: Returns the id of the trajectory of a start.
        trees: Number of first starts whose trees are recorded.
    Raises:
        ConfigError: see `check_search`; a task of a missing world.
    """
    missing = sorted({start.task.world for start in starts} - set(worlds))
    if missing:
        raise ConfigError([unknown_name_problem("world", world, worlds, location="task") for world in missing])
    check_search(
        worlds,
        search,
        has_scorer=player.scorer is not None,
        has_detector=player.stop is not None,
        dialect=player.policy.dialect,
    )
    if _is_rstar(search):
        check_solver(player.policy)
    context = _SearchContext(search, player.policy, player.scorer, seed, name, player.stop, player.discriminator)
    jobs = (
        _search_start(worlds[start.task.world], start, context, tree=index < trees)
        for index, start in enumerate(starts)
    )
    with closing(run_jobs(jobs, player.engine, slots=slots, threads=max(32, slots))) as finished:
        for finished_job in finished:
            start = starts[finished_job.index]
            yield (
                finished_job.value
                if finished_job.value is not None
                else _make_failure(start, name(start), finished_job.error)
            )


def _make_failure(start: Start, name: str, error: Exception | None) -> SearchOutcome:
    cause = error or EvolventError("a search ended without a result")
    record = ErrorRecord(type(cause).__name__, str(cause))
    return SearchOutcome(
        start,
        Trajectory(name, start.task, (), ended_by="error", error=record, sample=start.sample, group=start.task.id),
    )


def _search_start(world: World, start: Start, context: _SearchContext, *, tree: bool) -> Job[SearchOutcome]:
    search_level = {"turn": _search_turns, "solution": _search_solution}.get(
        level_of(world, context.config), _search_text
    )
    outcome, grown_forest, decision = yield from search_level(world, start, context)
    title = str(outcome.trajectory.steps[0].observation) if outcome.trajectory.steps else start.task.id
    tree_rows = [tree_row(result, title=title) for result in grown_forest.trees] if tree else []
    notes = grown_forest.trees[0].notes
    return replace(
        outcome,
        spent=grown_forest.spent,
        ended_by=grown_forest.ended_by,
        tree=tree_rows[decision.tree] if tree_rows else {},
        dropped=sum(len(result.dropped) for result in grown_forest.trees),
        forest=tuple(tree_rows) if len(grown_forest.trees) > 1 else (),
        stopped=str(notes.get("stopped", "")),
        spared=int(notes.get("spared", 0)),
    )


# ------------------------------------------------------------------ the text of a response


SearchOutput = tuple[SearchOutcome, Forest, Decision]


def _search_text(world: World, start: Start, context: _SearchContext) -> Job[SearchOutput]:
    config, policy, task, level = context.config, context.policy, start.task, level_of(world, context.config)
    problem_seed = sample_seed(context.seed, task.id, start.sample)
    observation, info = yield from call_world(world, partial(read_opening, world, task))
    prompt = open_conversation(policy.dialect, world.instructions, observation, info)
    writing = Writing.for_policy(
        policy,
        max_tokens=config.max_tokens,
        level=level,
        separators=config.separators,
        span_tokens=config.span_tokens,
        sampling=Sampling(config.temperature, config.top_k, config.top_p),
        reduce=config.reduce,
    )
    scorer = context.scorer
    if config.value == "rollouts":
        slow = Limits().step_s if world.run_in_thread else None
        scorer = RolloutScorer(
            lambda text: graded(world, task, text).score.unit, config.rollouts, writing, len(prompt), problem_seed, slow
        )
    same = getattr(world, "same", None)
    begin = context.begin_search(lambda state: graded(world, task, state.text).answer, same)
    search = context.grow_forest(begin, begin_text(prompt, seed=problem_seed), problem_seed)
    grown_forest = yield from search_text(search, writing=writing, scorer=scorer if config.value != "none" else None)
    verdicts: list[dict[int, ResponseGrade]] = []
    for result in grown_forest.trees:
        tree_verdicts: dict[int, ResponseGrade] = {}
        for node in dict.fromkeys(result.finished):
            tree_verdicts[node] = yield from call_world(
                world, partial(graded, world, task, result.tree.states[node].text)
            )
        verdicts.append(tree_verdicts)
    decision, outcome = _decide(grown_forest, verdicts, start, context, same=same)
    state: TextState = grown_forest.trees[decision.tree].tree.states[decision.node]
    if not state.written:  # the budget had no room for a first span
        return replace(outcome, trajectory=_empty_episode(world, start, context, observation)), grown_forest, decision
    if decision.node not in verdicts[decision.tree]:
        verdicts[decision.tree][decision.node] = yield from call_world(world, partial(graded, world, task, state.text))
    trajectory = text_trajectory(
        state,
        task,
        name=context.name(start),
        observation=observation,
        score=verdicts[decision.tree][decision.node].score,
        sample=start.sample,
    )
    return replace(outcome, trajectory=trajectory), grown_forest, decision


def _empty_episode(world: World, start: Start, context: _SearchContext, observation: Any, info: Any = ()) -> Trajectory:
    """Returns an episode without actions, because the budget did not suffice for one."""
    return Trajectory(
        context.name(start),
        start.task,
        (),
        observation,
        "horizon",
        world.score([], dict(info)),
        start.sample,
        group=start.task.id,
    )


# ------------------------------------------------------------------ a solution


def _search_solution(world: World, start: Start, context: _SearchContext) -> Job[SearchOutput]:
    """Searches by rStar: a solution in its own prompts, assembled to a response of the world."""
    config, task = context.config, start.task
    if not isinstance(config, ForestConfig):
        raise EvolventError("rstar has no settings", value=type(config).__name__)
    problem_seed = sample_seed(context.seed, task.id, start.sample)
    observation = yield from call_world(world, partial(read_question, world, task))
    policy_completer = make_completer(context.policy, config)
    discriminator = policy_completer
    if config.rstar.discriminator == "judge" and context.discriminator is not None:
        discriminator = make_completer(context.discriminator[0], config, model=context.discriminator[1])

    def grade_solution(solution: Solution) -> ResponseGrade:
        grade = graded(world, task, format_response(world, solution))
        return grade if read_answer(solution) is not None else replace(grade, answer=None)

    def answer(state: SolutionState) -> str | None:
        stated_answer = read_answer(state.solution)
        if stated_answer is None:
            return None
        return answer_key(world, stated_answer) if world.run_in_thread else grade_solution(state.solution).answer

    same = getattr(world, "same", None)
    begin = config.rstar.begin(answer, None if world.run_in_thread else same)
    search = context.grow_forest(begin, begin_solution(observation, seed=problem_seed), problem_seed)
    grown_forest = yield from search_solutions(
        search, encode=policy_completer.encode, writing=policy_completer.writing, judge=discriminator
    )
    verdicts: list[dict[int, ResponseGrade]] = []
    for result in grown_forest.trees:
        tree_verdicts: dict[int, ResponseGrade] = {}
        for node in (node for node in range(len(result.tree)) if result.tree.terminal[node]):
            tree_verdicts[node] = yield from call_world(
                world, partial(grade_solution, result.tree.states[node].solution)
            )
        verdicts.append(tree_verdicts)
    decision, outcome = _decide(grown_forest, verdicts, start, context, same=same)
    state: SolutionState = grown_forest.trees[decision.tree].tree.states[decision.node]
    if state.generation is None:
        return replace(outcome, trajectory=_empty_episode(world, start, context, observation)), grown_forest, decision
    if decision.node not in verdicts[decision.tree]:
        verdicts[decision.tree][decision.node] = yield from call_world(world, partial(grade_solution, state.solution))
    trajectory = solution_trajectory(
        state,
        task,
        response=format_response(world, state.solution),
        name=context.name(start),
        observation=observation,
        score=verdicts[decision.tree][decision.node].score,
        sample=start.sample,
    )
    return replace(outcome, trajectory=trajectory), grown_forest, decision


# ------------------------------------------------------------------ turn by turn


def _search_turns(world: World, start: Start, context: _SearchContext) -> Job[SearchOutput]:
    config, task = context.config, start.task
    problem_seed = sample_seed(context.seed, task.id, start.sample)
    language = LanguageProposer(
        context.policy, world, Sampling(config.temperature, config.top_k, config.top_p), config.span_tokens
    )
    estimate: ValueEstimator | RolloutValue | None = None
    if config.value == "judge" and context.scorer is not None:
        estimate = TextValue(
            language, context.scorer, includes_earned=config.terminal == "reward"
        )  # as `reward.states` trains it
    elif config.value == "reward":
        estimate = StateValue(lambda state: 0.0)
    elif config.value == "rollouts":
        estimate = RolloutValue(config.rollouts)
    begin = context.begin_search(lambda state: _grade_state(world, state).answer)
    grown_forest = yield from search_env(
        lambda root: context.grow_forest(begin, root, problem_seed),
        world=world,
        task=task,
        proposer=language,
        estimate=estimate,
        terminal=config.terminal if config.value == "judge" else "reward",
        seed=problem_seed,
    )
    verdicts = [
        {node: _grade_state(world, result.tree.states[node]) for node in dict.fromkeys(result.finished)}
        for result in grown_forest.trees
    ]
    decision, outcome = _decide(grown_forest, verdicts, start, context)
    state: EnvState = grown_forest.trees[decision.tree].tree.states[decision.node]
    if not state.rewards:
        none = _empty_episode(world, start, context, state.observation, state.info)
        return replace(outcome, trajectory=none), grown_forest, decision
    trajectory = env_trajectory(state, world, task, name=context.name(start), sample=start.sample)
    return replace(outcome, trajectory=trajectory), grown_forest, decision


def _grade_state(world: World, state: EnvState) -> ResponseGrade:
    actions = []
    current: EnvState | None = state
    while current is not None and current.proposal is not None:
        actions.append(str(current.proposal.action))
        current = current.above
    return ResponseGrade(world.score(list(state.rewards), state.info), " | ".join(reversed(actions)))


# ------------------------------------------------------------------ deciding


def _decide(
    grown_forest: Forest,
    verdicts: Sequence[Mapping[int, ResponseGrade]],
    start: Start,
    context: _SearchContext,
    *,
    same: Same | None = None,
) -> tuple[Decision, SearchOutcome]:
    """Chooses the answer and summarizes all ends; without an end the likeliest unfinished path."""
    config = context.config
    uses_values = config.value != "none" and config.method not in _METHODS_WITHOUT_VALUES
    rule, span = config.rule if uses_values else "majority", config.reduce if config.score != "outcome" else "outcome"
    if _is_rstar(config):
        rule, span = "vote", "last"  # by the rewards of the ends
    answers = [{node: verdict.answer for node, verdict in tree_verdicts.items()} for tree_verdicts in verdicts]
    between = config.between if isinstance(config, ForestConfig) and len(grown_forest.trees) > 1 else "ends"
    decision = decide(grown_forest.trees, answers, rule=rule, span=span, between=between, same=same)
    successes = [verdict.score.success for tree_verdicts in verdicts for verdict in tree_verdicts.values()]
    passed = True if True in successes else None if None in successes else False
    return decision, SearchOutcome(start, _NO_TRAJECTORY, answers=answer_rows(decision, same=same), passed=passed)


_NO_TRAJECTORY: Any = None  # what a search decided for is put in when its trajectory is made
