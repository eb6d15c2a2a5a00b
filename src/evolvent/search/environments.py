"""Searches in environments: requests become proposals of actions, and each is tried from a snapshot.

The environment's value of a path is its return so far; an estimator supplies the rest of the return. One
environment serves a whole search: it is restored to a snapshot before every step.

One environment of a search: restored to a snapshot, stepped, and stored, at once or off the driver's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from evolvent.engine.asks import Answer, Ask, BlockingCall, Job, RoutedAsk
from evolvent.errors import ConfigError, EnvLost, EvolventError, Problem, ScoringError, StepTimeout, user_boundary
from evolvent.search.budgeted import request_in_parts
from evolvent.search.drive import fit_to_budget, run_search
from evolvent.search.isolation import IsolatedAsker, is_recoverable
from evolvent.search.meter import Meter, OverBudget, limits_tokens
from evolvent.search.proposers import EnvState, LanguageProposer, Proposal, ProposalRequest, Proposer
from evolvent.search.records import Budget, Child, EndedBy, ExpandRequest, Request, Response, Spent
from evolvent.search.scorers import BoundedScorer, Scorer
from evolvent.trajectory import Task, Value, sample_seed
from evolvent.worlds.base import DeferredClose, Env, Forkable, Info, Limits, World, unwrap_number

__all__ = [
    "BoundedEstimator",
    "EnvMoment",
    "EnvSession",
    "RolloutValue",
    "StateValue",
    "TextValue",
    "ValueEstimator",
    "search_env",
]

_FIRST_ROLLOUT = 1 << 20  # number of the first sample of rollouts, which differ from those of a node's children


@dataclass(frozen=True, slots=True)
class EnvMoment:
    """A moment of an environment: its output, and a snapshot to restore it; a snapshot of None: the episode is over."""

    observation: Value
    info: Info
    snapshot: object
    reward: float | None = 0.0
    terminated: bool = False
    truncated: bool = False


Stepping = Generator[Sequence["Ask | RoutedAsk | BlockingCall"], Sequence[Answer], EnvMoment]


class EnvSession:
    """One Env at a time for all moments of a search; an Env that hung is abandoned and replaced.

    Attributes:
        steps: environment steps so far.
    """

    def __init__(self, world: World, task: Task, limits: Limits) -> None:
        self._world, self._task, self._limits = world, task, limits
        self._held: DeferredClose | None = None
        self._turn = 0  # which Env: one that comes late, when it was given up, is closed
        self.steps = 0

    def begin(self, seed: int) -> Stepping:
        """Creates the environment and begins the episode.

        Raises:
            ConfigError: an Env that cannot be forked. EnvLost, StepTimeout: it failed.
        """
        return (yield from self._call_env(partial(_reset, seed=seed), "reset", self._limits.reset_s))

    def step(self, snapshot: object, action: Value) -> Stepping:
        """Restores a moment and steps once. Raises EnvLost or StepTimeout where that fails."""
        self.steps += 1
        call = partial(_restore_and_step, snapshot=snapshot, action=action)
        return (yield from self._call_env(call, "step", self._limits.step_s))

    def end(self) -> None:
        """Closes the environment, or leaves that to the call that still runs."""
        env_holder, self._held = self._held, None
        self._turn += 1
        if env_holder is not None:
            env_holder.end()

    def _call_env(self, call: Callable[[Env], EnvMoment], operation: str, timeout_s: float) -> Stepping:
        with user_boundary(EnvLost, f"world {self._world.name!r} failed in {operation}"):
            if not self._world.run_in_thread:
                return self._run(call, self._turn)
            try:
                (answer,) = yield (BlockingCall(partial(self._run, call, self._turn), timeout_s),)
            except StepTimeout:
                self.end()
                raise
            moment: EnvMoment = answer
            return moment

    def _run(self, call: Callable[[Env], EnvMoment], turn: int) -> EnvMoment:
        """Runs a call on the Env, which is created where there is none."""
        env_holder = self._held
        if env_holder is None or turn != self._turn:
            env_holder = DeferredClose(self._world.name, self._world.make(self._task))
            if turn != self._turn:
                env_holder.end()
                raise EnvLost("the environment was created after its deadline", value=self._world.name)
            self._held = env_holder
        env = env_holder.env
        if env is None:
            raise EnvLost("the environment is lost", value=self._world.name)
        return env_holder.run(partial(call, env))


def _reset(env: Env, *, seed: int) -> EnvMoment:
    if not isinstance(env, Forkable):
        raise ConfigError(
            "search needs environments that can be forked",
            value=type(env).__name__,
            expected="an Env with snapshot() and restore()",
        )
    observation, info = env.reset(seed=seed)
    _check_output(observation, info)
    return EnvMoment(observation, info, env.snapshot())


def _restore_and_step(env: Env, *, snapshot: object, action: Value) -> EnvMoment:
    if not isinstance(env, Forkable):
        raise EnvLost("the environment can no longer be forked", value=type(env).__name__)
    env.restore(snapshot)
    observation, reward, terminated, truncated, info = env.step(action)
    _check_output(observation, info)
    reward = unwrap_number(reward)
    if reward is not None and not math.isfinite(reward):
        raise EnvLost("reward is not finite", value=reward, expected="a number, or None for 'not scored'")
    over = bool(terminated or truncated)
    return EnvMoment(observation, info, None if over else env.snapshot(), reward, bool(terminated), bool(truncated))


def _check_output(observation: object, info: object) -> None:
    if not isinstance(observation, (str, np.ndarray)) or not isinstance(info, Mapping):
        raise EnvLost(
            "the observation is not text or an array, or the info is not a mapping",
            value=f"{type(observation).__name__}, {type(info).__name__}",
        )


Asks = Sequence["Ask | RoutedAsk | BlockingCall"]
T = TypeVar("T")


class ValueEstimator(Protocol):
    """An estimator of the future return of a state."""

    @property
    def model(self) -> str | None:
        """Returns the name of the engine that answers; None: the one that writes."""
        ...

    def values(self, states: Sequence[EnvState]) -> Job[list[float]]:
        """Returns one value per state, in rewards; NaN where there is none."""
        ...


@runtime_checkable
class BoundedEstimator(Protocol):
    """An estimator that bounds its costs beforehand, so that nothing is tried that could not be estimated."""

    def most(self, states: Sequence[EnvState], steps: Sequence[int], meter: Meter) -> Spent:
        """Returns the maximum cost of estimating states, each of them reached from the given state by so many steps.

        Future observations are unknown: they are assumed to be as long as the first or the last one.
        """
        ...


@dataclass(frozen=True, slots=True)
class StateValue:
    """A function of the state. It uses no model."""

    function: Callable[[EnvState], float]
    model: str | None = None

    def values(self, states: Sequence[EnvState]) -> Job[list[float]]:
        """Returns one function value per state."""
        yield from ()
        return [float(self.function(state)) for state in states]


@dataclass(frozen=True, slots=True)
class RolloutValue:
    """The mean return of rollouts from a state: the proposer plays the rest of the episode `k` times (Monte Carlo).

    Rollouts are played in the search's own environment, from the state's snapshot, and count in its budget. One that
    fails, or that the budget has no room for, is left out.

    Raises:
        ConfigError: k below 1.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError([Problem("k", f"got {self.k}, expected 1 or more")])


@dataclass(frozen=True, slots=True)
class TextValue:
    """A scorer of the conversation, queried where the next action begins, for example a value head.

    Args:
        includes_earned: its scores are of the whole episode, so the return so far is included and is subtracted.
    """

    language: LanguageProposer
    scorer: Scorer
    includes_earned: bool = False

    @property
    def model(self) -> str | None:
        """Returns the scorer's model."""
        return self.scorer.model

    def values(self, states: Sequence[EnvState]) -> Job[list[float]]:
        """Scores all states at once."""
        queries = [self.language.score_query(state, same_engine=self.model is None) for state in states]
        scores = yield from self.scorer.scores(queries)
        if [len(state_scores) for state_scores in scores] != [1] * len(states):
            raise ScoringError(
                "number of scores does not match the states", value=[len(state_scores) for state_scores in scores][:8]
            )
        return [
            state_scores[0] - (state.earned if self.includes_earned else 0.0)
            for state_scores, state in zip(scores, states, strict=True)
        ]

    def most(self, states: Sequence[EnvState], steps: Sequence[int], meter: Meter) -> Spent:
        """Returns the maximum cost, see `BoundedEstimator`; tokens that the writing engine has fed are not counted
        again.
        """
        spent, context = Spent(), self.language.policy.context
        paths = [self.language.path(state) for state in states]
        for state, path, count in zip(states, paths, steps, strict=True):
            observation_length = self.language.longest_observation(state)
            action = 1 if self.model is None else self.language.max_tokens  # the last token is still to be fed
            new = min(count * (action + observation_length), context - len(path))
            scorer_cost = (
                self.scorer.most(1, len(path) + new) if isinstance(self.scorer, BoundedScorer) else Spent(computed=1)
            )
            spent += Spent(computed=new) + scorer_cost
        return spent + Spent(computed=meter.count_unfed(paths, model=self.model))


def search_env(
    search: Callable[[EnvState], Generator[Request, Response, T]],
    *,
    world: World,
    task: Task,
    proposer: Proposer,
    estimate: ValueEstimator | RolloutValue | None = None,
    terminal: Literal["reward", "value"] = "reward",
    seed: int = 0,
    limits: Limits | None = None,
) -> Job[T]:
    """Runs a search in an episode of a task, as a job for the driver.

    The value of a state is the return so far plus the estimate of the rest; at the end of an episode it is the
    return. Equal actions, after the grammar, are one child. An action at which the environment fails is a child
    with a problem. A whole sample plays to the end of the episode.

    Args:
        search: made when the episode has begun, with its first state as root; a `Search`, or a forest.
        proposer: proposes the actions to try. estimate: of the future return, by a model, a function or rollouts; None:
            nothing more.
        terminal: "value": earned rewards are not used: a state's value is the estimate alone, of the whole
            episode's return, at its end too.
        seed: of the episode and of all samples.
    Raises:
        ConfigError: an environment that cannot be forked; "value" without an estimate. EnvLost, StepTimeout: it did
            not
        begin. StaleNode, WeightsChanged, TokensMissing: see `texts.search_text`. The errors of the search.
    """
    if terminal == "value" and (estimate is None or isinstance(estimate, RolloutValue)):
        raise ConfigError(
            "the search has neither rewards nor an estimate of them",
            value=terminal,
            expected="an estimate by a model or a function, or terminal = 'reward'",
        )
    limits = limits or Limits()
    session = EnvSession(world, task, limits)
    try:
        first = yield from session.begin(seed)
        root = EnvState(first.observation, first.info, first.snapshot, seed=sample_seed(seed, "env", task.id))
        if proposer.is_full(root):
            root = replace(root, over="horizon")
        horizon = world.horizon if limits.horizon is None else limits.horizon
        answerer = _EnvAnswerer(session, proposer, estimate, horizon=horizon, terminal=terminal)
        return (yield from run_search(search(root), answerer.answer))
    finally:
        session.end()


@dataclass(slots=True)
class _Path:
    """A sample in progress: its state, and the sums over its actions."""

    state: EnvState
    number: int
    actions: tuple[str, ...] = ()
    logprob: float = 0.0  # sum over tokens
    weight: int = 0
    tokens: int = 0
    count: int = 1
    problem: str = ""

    def to_child(self, expansion: ExpandRequest) -> Child:
        mean = self.logprob / self.weight if self.weight else 0.0
        return Child(
            self.state,
            " | ".join(self.actions),
            mean,
            terminal=bool(self.state.over),
            generated=self.tokens,
            count=self.count,
            kind=expansion.kind,
            problem=self.problem,
        )


class _EnvAnswerer:
    """Answers the requests of one search."""

    def __init__(
        self,
        session: EnvSession,
        proposer: Proposer,
        estimate: ValueEstimator | RolloutValue | None,
        *,
        horizon: int,
        terminal: str,
    ) -> None:
        self._stage, self._proposer, self._estimate = session, proposer, estimate
        self._horizon, self._terminal = horizon, terminal
        self._meter = Meter()
        self._careful = IsolatedAsker(self._meter)
        self._values: dict[EnvState, float] = {}
        self._problems: dict[EnvState, str] = {}
        self._short: EndedBy | None = None  # the limit for which samples were given up

    def answer(self, request: Request) -> Job[Response]:
        """Collects proposals, steps, values, and returns the response."""
        self._meter.spent, self._short = Spent(), None
        expansions = request.expand
        worst = [self._max_cost(expansion) if limits_tokens(request.left) else Spent() for expansion in expansions]
        (num_states, num_expansions), short = fit_to_budget(request, [Spent()] * len(request.evaluate), worst)
        proposed = yield from self._children(expansions[:num_expansions], request.left)
        new_states = [
            child.state
            for expansion, siblings in zip(expansions, proposed, strict=False)
            if expansion.valued
            for child in siblings
            if not child.problem
        ]
        estimate_limit = yield from self._estimate_states([*request.evaluate[:num_states], *new_states], request.left)
        children = [
            [self._with_value(child) if expansion.valued else child for child in siblings]
            for expansion, siblings in zip(expansions, proposed, strict=False)
        ]
        values = [self._value(state) for state in request.evaluate[:num_states]]
        return Response(
            [*children, *[None] * (len(expansions) - num_expansions)],
            [*values, *[None] * (len(request.evaluate) - num_states)],
            self._meter.spent,
            short or self._short or estimate_limit,
        )

    def _max_cost(self, expansion: ExpandRequest) -> Spent:
        """Returns the maximum cost of proposing, and of estimating one step on; for whole samples see also
        `_continuing`.
        """
        state: EnvState = expansion.state
        if state.over:
            return Spent()
        width = 1 if expansion.greedy else expansion.width
        step = self._meter.max_cost(self._proposer.build_asks(ProposalRequest(state, range(width), expansion.greedy)))
        if expansion.valued:
            step += self._max_estimate_cost([state] * width, [1] * width)
        if not expansion.to_end:
            return step
        rest = self._proposer.max_rest_cost(state, steps=self._horizon - len(state.rewards))
        return Spent(max(step.generated, width * rest.generated), max(step.computed, width * rest.computed))

    def _max_estimate_cost(self, states: Sequence[EnvState], steps: Sequence[int]) -> Spent:
        """Returns the maximum cost of estimating states that lie so many steps below the given ones."""
        estimate = self._estimate
        return estimate.most(states, steps, self._meter) if isinstance(estimate, BoundedEstimator) else Spent()

    def _children(
        self, expansions: Sequence[ExpandRequest], left: Budget
    ) -> Generator[Asks, Sequence[Answer], list[list[Child]]]:
        """Builds the children of all expansions; first actions are proposed at once, whole samples continue side by
        side.
        """
        ask = partial(self._careful.ask, left=left)
        open_expansions = [expansion for expansion in expansions if not expansion.state.over]
        proposal_requests = [
            ProposalRequest(
                expansion.state, _sample_numbers(expansion), expansion.greedy, not expansion.to_end, expansion.after
            )
            for expansion in open_expansions
        ]
        proposals_iterator = iter(
            (yield from self._proposer.propose(proposal_requests, ask)) if proposal_requests else ()
        )
        paths_by_expansion: list[list[_Path]] = []
        continuing: list[tuple[ExpandRequest, _Path]] = []
        for expansion in expansions:
            proposals = [] if expansion.state.over else next(proposals_iterator)
            paths = [
                _Path(expansion.state, number) for number, _ in zip(_sample_numbers(expansion), proposals, strict=False)
            ]
            if not expansion.to_end:
                paths, proposals = _merge_equal(expansion, proposals)
            for path, proposal in zip(paths, proposals, strict=True):
                yield from self._take_step(path, proposal)
            continuing += [(expansion, path) for path in paths if expansion.to_end]
            paths_by_expansion.append(paths)
        to_estimate = [
            (expansion, path) for expansion, path in continuing if expansion.valued and self._terminal == "value"
        ]
        while continuing := self._continuing(continuing, [path for _, path in to_estimate], left):
            proposal_requests = [
                ProposalRequest(path.state, [path.number], expansion.greedy, False) for expansion, path in continuing
            ]
            proposals_iterator = iter((yield from self._proposer.propose(proposal_requests, ask)))
            for (_, path), proposals in zip(continuing, proposals_iterator, strict=True):
                if proposals:
                    yield from self._take_step(path, proposals[0])
                else:
                    path.problem = "there is no action to take"
        return [_merge_paths(expansion, paths) for expansion, paths in zip(expansions, paths_by_expansion, strict=True)]

    def _continuing(
        self, candidates: Sequence[tuple[ExpandRequest, _Path]], to_estimate: Sequence[_Path], left: Budget
    ) -> list[tuple[ExpandRequest, _Path]]:
        """Returns the samples that continue: as many as leave budget to estimate `to_estimate`; the last are given
        up.
        """
        remaining = [(expansion, path) for expansion, path in candidates if not (path.problem or path.state.over)]
        while remaining and limits_tokens(left):
            steps = [
                ProposalRequest(path.state, [path.number], expansion.greedy, False) for expansion, path in remaining
            ]
            proposal_asks = [ask for step in steps for ask in self._proposer.build_asks(step)]
            ended = [path for path in to_estimate if not path.problem and not self._proposer.is_full(path.state)]
            more = self._meter.max_cost(proposal_asks) + self._max_estimate_cost(
                [path.state for path in ended], [0 if path.state.over else 1 for path in ended]
            )
            limit = left.over(self._meter.spent, more=more)
            if limit is None:
                break
            self._short = limit
            remaining.pop()[1].problem = "the budget had no room for the rest of it"
        return remaining

    def _take_step(self, path: _Path, proposal: Proposal) -> Generator[Asks, Sequence[Answer], None]:
        """Steps a path by one proposal; a failure is recorded in the path."""
        action, state = _action_text(proposal.action), path.state
        path.tokens += proposal.tokens
        path.actions = (*path.actions, action)
        path.problem = proposal.problem
        if proposal.problem:
            return
        try:
            moment = yield from self._stage.step(state.snapshot, proposal.action)
        except EvolventError as error:
            if not is_recoverable(error):
                raise
            path.problem = str(error)
            return
        rewards = (*state.rewards, moment.reward)
        at_horizon = moment.truncated or len(rewards) >= self._horizon
        ended_by = "world" if moment.terminated else "horizon" if at_horizon else ""
        path.state = EnvState(
            moment.observation,
            moment.info,
            moment.snapshot,
            rewards,
            state,
            proposal,
            ended_by,
            sample_seed(state.seed, action),
        )
        if not ended_by and self._proposer.is_full(path.state):
            path.state = replace(path.state, over="horizon")
        weight = proposal.tokens or 1
        path.logprob += proposal.logprob * weight
        path.weight += weight

    def _estimate_states(self, states: Sequence[EnvState], left: Budget) -> Job[EndedBy | None]:
        """Estimates states; one that fails does not stop the others. Returns the limit that some did not fit."""
        pending = [state for state in dict.fromkeys(states) if self._needs_estimate(state)]
        return (
            yield from request_in_parts(
                pending,
                partial(self._request_estimates, left=left),
                problems=self._problems,
                is_due=self._needs_estimate,
            )
        )

    def _needs_estimate(self, state: EnvState) -> bool:
        """Returns whether a state's value includes an estimate that is not known yet."""
        if self._estimate is None or state in self._values or state in self._problems:
            return False
        return not state.over or (self._terminal == "value" and not self._proposer.is_full(state))

    def _request_estimates(self, pending: Sequence[EnvState], left: Budget) -> Job[str]:
        """Asks for the estimates of some states; returns the reason of a failure, or ""."""
        estimate = self._estimate
        if estimate is None:
            return ""
        if isinstance(estimate, RolloutValue):
            yield from self._play_rollouts(pending, estimate.k, left)
            return ""
        try:
            values = yield from self._meter.run_scorer(estimate.values(pending), model=estimate.model, left=left)
        except EvolventError as error:
            if not is_recoverable(error):
                raise
            return str(error)
        if len(values) != len(pending):
            raise ScoringError(
                "number of estimates does not match the states", value=len(values), expected=len(pending)
            )
        self._values.update(zip(pending, map(float, values), strict=True))
        return ""

    def _play_rollouts(self, states: Sequence[EnvState], k: int, left: Budget) -> Job[None]:
        """Plays the rest of the episode `k` times from each state; stores the mean of what they still earn.

        Raises:
            OverBudget: the budget had no room for a single rollout of some state.
        """
        expansions = [ExpandRequest(state, k, to_end=True, valued=False, first=_FIRST_ROLLOUT) for state in states]
        first_asks = [
            ask
            for expansion in expansions
            for ask in self._proposer.build_asks(
                ProposalRequest(expansion.state, _sample_numbers(expansion), distinct=False)
            )
        ]
        first_limit = left.over(self._meter.spent, more=self._meter.max_cost(first_asks))
        if first_limit is not None:
            raise OverBudget(first_limit)
        limit_before, self._short = self._short, None
        rollouts = yield from self._children(expansions, left)
        limit, self._short = self._short, limit_before
        for state, siblings in zip(states, rollouts, strict=True):
            returns = [child.state.earned for child in siblings if not child.problem for _ in range(child.count)]
            scored_returns = [episode_return for episode_return in returns if not math.isnan(episode_return)]
            if scored_returns:
                self._values[state] = float(np.mean(scored_returns)) - state.earned
            elif limit is None:
                reasons = [child.problem for child in siblings if child.problem]
                self._problems[state] = reasons[0] if reasons else "no rollout was scored"
        if limit is not None and any(self._needs_estimate(state) for state in states):
            raise OverBudget(limit)

    def _value(self, state: EnvState) -> float | None:
        """Returns a state's value: NaN after a failed reward or estimate, None where it was not estimated."""
        if state in self._problems:
            return math.nan
        if self._needs_estimate(state):
            return None
        if self._terminal == "value":
            return self._values.get(state, math.nan)
        return state.earned + self._values.get(state, 0.0)

    def _with_value(self, child: Child) -> Child:
        if child.problem:
            return child
        if child.state in self._problems:
            return replace(child, problem=self._problems[child.state])
        if math.isnan(child.state.earned):
            return replace(child, problem="a reward on the way was not scored")
        return replace(child, value=self._value(child.state))


def _sample_numbers(expansion: ExpandRequest) -> range:
    return range(expansion.first, expansion.first + (1 if expansion.greedy else expansion.width))


def _action_text(action: Value) -> str:
    """Converts an action to text, to tell it from others."""
    return action if isinstance(action, str) else str(action.tolist())


def _merge_equal(expansion: ExpandRequest, proposals: Sequence[Proposal]) -> tuple[list[_Path], list[Proposal]]:
    """Merges equal actions; those that failed stay apart."""
    paths, distinct = dict[object, _Path](), list[Proposal]()
    for index, proposal in enumerate(proposals):
        key = index if proposal.problem else _action_text(proposal.action)
        if key in paths:
            paths[key].count += 1
            paths[key].tokens += proposal.tokens
        else:
            paths[key] = _Path(expansion.state, index)
            distinct.append(proposal)
    return list(paths.values()), distinct


def _merge_paths(expansion: ExpandRequest, paths: Sequence[_Path]) -> list[Child]:
    """Merges paths with the same actions and returns their children."""
    merged: dict[object, _Path] = {}
    for index, path in enumerate(paths):
        first = merged.setdefault(index if path.problem else path.actions, path)
        if first is not path:
            first.count += path.count
            first.tokens += path.tokens
    return [path.to_child(expansion) for path in merged.values()]
