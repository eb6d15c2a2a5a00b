"""Searches in environments: wishes become proposals of actions, and each is tried from a snapshot.

The environment's value of a path is what it earned; what is still to be earned is estimated by whoever is handed in.
One environment serves a whole search: it is brought back to a moment before every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeVar, runtime_checkable

from evolvent.engine.asks import Answer, Ask, To, Wait, Work
from evolvent.errors import ConfigError, EvolventError, ScoringError
from evolvent.search.budgeted import partwise
from evolvent.search.drive import answered, fitting
from evolvent.search.isolation import Careful, passing
from evolvent.search.meter import Meter, limited
from evolvent.search.proposers import EnvState, Language, Proposal, Proposer, Proposing
from evolvent.search.records import Budget, Child, EndedBy, Expand, Found, Spent, Wanted
from evolvent.search.scorers import Bounded, Scorer
from evolvent.search.stage import Stage
from evolvent.trajectory import Task, Value, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.deferred_close import Limits

__all__ = ["Estimate", "Foreseen", "StateValue", "TextValue", "over_env"]

Asks = Sequence["Ask | To | Wait"]
T = TypeVar("T")


class Estimate(Protocol):
    """What is still to be earned in a state."""

    @property
    def model(self) -> str | None:
        """Which engine of several answers; None: the one that writes."""
        ...

    def values(self, states: Sequence[EnvState]) -> Work[list[float]]:
        """One value a state, in rewards; NaN where there is none."""
        ...


@runtime_checkable
class Foreseen(Protocol):
    """An estimate that says beforehand what it may ask, so that nothing is tried that could not be estimated."""

    def most(self, states: Sequence[EnvState], steps: Sequence[int], meter: Meter) -> Spent:
        """The most that estimating states costs, each of them reached from the state named here by so many steps.

        What observations will say is not known: they are taken to be as long as the first or the last one.
        """
        ...


@dataclass(frozen=True, slots=True)
class StateValue:
    """A function of the state. Asks no model."""

    function: Callable[[EnvState], float]
    model: str | None = None

    def values(self, states: Sequence[EnvState]) -> Work[list[float]]:
        """One call a state."""
        yield from ()
        return [float(self.function(state)) for state in states]


@dataclass(frozen=True, slots=True)
class TextValue:
    """A scorer of the conversation, asked where the next action begins: a value head, say.

    Args:
        whole: its scores are of the whole episode, so what was earned is in them already and is taken off.
    """

    language: Language
    scorer: Scorer
    whole: bool = False

    @property
    def model(self) -> str | None:
        """The scorer's."""
        return self.scorer.model

    def values(self, states: Sequence[EnvState]) -> Work[list[float]]:
        """All states at once."""
        asked = [self.language.ending(state, ours=self.model is None) for state in states]
        found = yield from self.scorer.scores(asked)
        if [len(own) for own in found] != [1] * len(states):
            raise ScoringError("a scorer gave not one score for each state", value=[len(own) for own in found][:8])
        return [own[0] - (state.earned if self.whole else 0.0) for own, state in zip(found, states, strict=True)]

    def most(self, states: Sequence[EnvState], steps: Sequence[int], meter: Meter) -> Spent:
        """See `Foreseen`. What the engine that writes has fed for an action is not counted again."""
        spent, context = Spent(), self.language.policy.context
        paths = [self.language.path(state) for state in states]
        for state, path, count in zip(states, paths, steps, strict=True):
            heard = self.language.heard(state)
            action = 1 if self.model is None else self.language.max_tokens  # the last token is still to be fed
            new = min(count * (action + heard), context - len(path))
            own = self.scorer.most(1, len(path) + new) if isinstance(self.scorer, Bounded) else Spent(computed=1)
            spent += Spent(computed=new) + own
        return spent + Spent(computed=meter.unknown(paths, model=self.model))


def over_env(
    search: Callable[[EnvState], Generator[Wanted, Found, T]],
    *,
    world: World,
    task: Task,
    proposer: Proposer,
    estimate: Estimate | None = None,
    terminal: Literal["reward", "value"] = "reward",
    seed: int = 0,
    limits: Limits | None = None,
) -> Work[T]:
    """A search in an episode of a task, as a work for the driver.

    The value of a state is what was earned so far plus the estimate of the rest; at the end of an episode it is what
    was earned. Equal actions, after the grammar, are one child. What the environment fails at is a child with a
    problem. A whole sample plays to the end of the episode.

    Args:
        search: made when the episode has begun, with its first state as root; a `Search`, or a forest.
        proposer: which actions are tried. estimate: of what is still to be earned; None: nothing more.
        terminal: "value": nothing that was earned is told: a state's value is the estimate alone, of the whole
            episode's return, at its end too.
        seed: of the episode and of all samples.
    Raises:
        ConfigError: an environment that cannot be forked; "value" without an estimate. EnvLost, StepTimeout: it did not
        begin. StaleNode, WeightsChanged, TokensMissing: see `texts.over_text`. What the search raises.
    """
    if terminal == "value" and estimate is None:
        raise ConfigError(
            "a search that is told nothing that was earned, and nobody to estimate",
            value=terminal,
            expected="an estimate, or terminal = 'reward'",
        )
    limits = limits or Limits()
    stage = Stage(world, task, limits)
    try:
        first = yield from stage.begin(seed)
        root = EnvState(first.observation, first.info, first.snapshot, seed=sample_seed(seed, "env", task.id))
        if proposer.full(root):
            root = replace(root, over="horizon")
        horizon = world.horizon if limits.horizon is None else limits.horizon
        wishes = _Wishes(stage, proposer, estimate, horizon=horizon, terminal=terminal)
        return (yield from answered(search(root), wishes.answer))
    finally:
        stage.end()


@dataclass(slots=True)
class _Path:
    """A sample on its way: where it is, and what its actions add up to."""

    state: EnvState
    number: int
    actions: tuple[str, ...] = ()
    logprob: float = 0.0  # sum over tokens
    weight: int = 0
    tokens: int = 0
    count: int = 1
    problem: str = ""

    def child(self, wish: Expand) -> Child:
        mean = self.logprob / self.weight if self.weight else 0.0
        return Child(
            self.state,
            " | ".join(self.actions),
            mean,
            terminal=bool(self.state.over),
            generated=self.tokens,
            count=self.count,
            kind=wish.kind,
            problem=self.problem,
        )


class _Wishes:
    """Answers the wishes of one search."""

    def __init__(
        self, stage: Stage, proposer: Proposer, estimate: Estimate | None, *, horizon: int, terminal: str
    ) -> None:
        self._stage, self._proposer, self._estimate = stage, proposer, estimate
        self._horizon, self._terminal = horizon, terminal
        self._meter = Meter()
        self._careful = Careful(self._meter)
        self._values: dict[EnvState, float] = {}
        self._problems: dict[EnvState, str] = {}
        self._short: EndedBy | None = None  # the limit for which samples were given up

    def answer(self, wanted: Wanted) -> Work[Found]:
        """Propose, step, value, and tell."""
        self._meter.spent, self._short = Spent(), None
        wishes = wanted.expand
        worst = [self._worst(wish) if limited(wanted.left) else Spent() for wish in wishes]
        (states, begun), short = fitting(wanted, [Spent()] * len(wanted.evaluate), worst)
        made = yield from self._children(wishes[:begun], wanted.left)
        new = [
            child.state
            for wish, own in zip(wishes, made, strict=False)
            if wish.valued
            for child in own
            if not child.problem
        ]
        told = yield from self._estimated([*wanted.evaluate[:states], *new], wanted.left)
        children = [
            [self._valued(child) if wish.valued else child for child in own]
            for wish, own in zip(wishes, made, strict=False)
        ]
        values = [self._value(state) for state in wanted.evaluate[:states]]
        return Found(
            [*children, *[None] * (len(wishes) - begun)],
            [*values, *[None] * (len(wanted.evaluate) - states)],
            self._meter.spent,
            short or self._short or told,
        )

    def _worst(self, wish: Expand) -> Spent:
        """The most that proposing costs, and estimating what is one step on; of whole samples see also `_on`."""
        state: EnvState = wish.state
        if state.over:
            return Spent()
        width = 1 if wish.greedy else wish.width
        step = self._meter.worst(self._proposer.asks(Proposing(state, range(width), wish.greedy)))
        if wish.valued:
            step += self._foreseen([state] * width, [1] * width)
        if not wish.whole:
            return step
        one = self._proposer.rest(state, steps=self._horizon - len(state.rewards))
        return Spent(max(step.generated, width * one.generated), max(step.computed, width * one.computed))

    def _foreseen(self, states: Sequence[EnvState], steps: Sequence[int]) -> Spent:
        """The most that estimating what is so many steps below some states costs."""
        estimate = self._estimate
        return estimate.most(states, steps, self._meter) if isinstance(estimate, Foreseen) else Spent()

    def _children(self, wishes: Sequence[Expand], left: Budget) -> Generator[Asks, Sequence[Answer], list[list[Child]]]:
        """The children of all wishes. What they begin with is proposed at once; whole samples go on side by side."""
        ask = partial(self._careful.asked, left=left)
        open_ = [wish for wish in wishes if not wish.state.over]
        asked = [Proposing(wish.state, _numbers(wish), wish.greedy, not wish.whole, wish.after) for wish in open_]
        proposed = iter((yield from self._proposer.propose(asked, ask)) if asked else ())
        found: list[list[_Path]] = []
        going: list[tuple[Expand, _Path]] = []
        for wish in wishes:
            proposals = [] if wish.state.over else next(proposed)
            paths = [_Path(wish.state, number) for number, _ in zip(_numbers(wish), proposals, strict=False)]
            if not wish.whole:
                paths, proposals = _merged(wish, proposals)
            for path, proposal in zip(paths, proposals, strict=True):
                yield from self._take(path, proposal)
            going += [(wish, path) for path in paths if wish.whole]
            found.append(paths)
        whole = [(wish, path) for wish, path in going if wish.valued and self._terminal == "value"]
        while going := self._on(going, [path for _, path in whole], left):
            asked = [Proposing(path.state, [path.number], wish.greedy, False) for wish, path in going]
            proposed = iter((yield from self._proposer.propose(asked, ask)))
            for (_, path), proposals in zip(going, proposed, strict=True):
                if proposals:
                    yield from self._take(path, proposals[0])
                else:
                    path.problem = "there is no action to take"
        return [_children(wish, paths) for wish, paths in zip(wishes, found, strict=True)]

    def _on(
        self, going: Sequence[tuple[Expand, _Path]], whole: Sequence[_Path], left: Budget
    ) -> list[tuple[Expand, _Path]]:
        """The samples that go on: as many as leave room to estimate what `whole` has made; the last are given up."""
        on = [(wish, path) for wish, path in going if not (path.problem or path.state.over)]
        while on and limited(left):
            steps = [Proposing(path.state, [path.number], wish.greedy, False) for wish, path in on]
            asks = [ask for step in steps for ask in self._proposer.asks(step)]
            made = [path for path in whole if not path.problem and not self._proposer.full(path.state)]
            more = self._meter.worst(asks) + self._foreseen(
                [path.state for path in made], [0 if path.state.over else 1 for path in made]
            )
            limit = left.over(self._meter.spent, more=more)
            if limit is None:
                break
            self._short = limit
            on.pop()[1].problem = "the budget had no room for the rest of it"
        return on

    def _take(self, path: _Path, proposal: Proposal) -> Generator[Asks, Sequence[Answer], None]:
        """One step of a path; what fails is noted there."""
        action, state = _name(proposal.action), path.state
        path.tokens += proposal.tokens
        path.actions = (*path.actions, action)
        path.problem = proposal.problem
        if proposal.problem:
            return
        try:
            moved = yield from self._stage.step(state.snapshot, proposal.action)
        except EvolventError as error:
            if not passing(error):
                raise
            path.problem = str(error)
            return
        rewards = (*state.rewards, moved.reward)
        late = moved.truncated or len(rewards) >= self._horizon
        over = "world" if moved.terminated else "horizon" if late else ""
        path.state = EnvState(
            moved.observation,
            moved.info,
            moved.snapshot,
            rewards,
            state,
            proposal,
            over,
            sample_seed(state.seed, action),
        )
        if not over and self._proposer.full(path.state):
            path.state = replace(path.state, over="horizon")
        weight = proposal.tokens or 1
        path.logprob += proposal.logprob * weight
        path.weight += weight

    def _estimated(self, states: Sequence[EnvState], left: Budget) -> Work[EndedBy | None]:
        """Have states estimated; one that fails does not stop the others. Returns the limit that some did not fit."""
        due = [state for state in dict.fromkeys(states) if self._open(state)]
        return (yield from partwise(due, partial(self._told, left=left), problems=self._problems, is_due=self._open))

    def _open(self, state: EnvState) -> bool:
        """Whether an estimate is a part of the state's value, and not known."""
        if self._estimate is None or state in self._values or state in self._problems:
            return False
        return not state.over or (self._terminal == "value" and not self._proposer.full(state))

    def _told(self, due: Sequence[EnvState], left: Budget) -> Work[str]:
        """Ask for the estimates of some states; returns why that failed, empty: it did not."""
        estimate = self._estimate
        if estimate is None:
            return ""
        try:
            found = yield from self._meter.scored(estimate.values(due), model=estimate.model, left=left)
        except EvolventError as error:
            if not passing(error):
                raise
            return str(error)
        if len(found) != len(due):
            raise ScoringError("not one estimate for each state", value=len(found), expected=len(due))
        self._values.update(zip(due, map(float, found), strict=True))
        return ""

    def _value(self, state: EnvState) -> float | None:
        """NaN where a reward was not scored, or the estimate failed; None where the state was not estimated."""
        if state in self._problems:
            return math.nan
        if self._open(state):
            return None
        if self._terminal == "value":
            return self._values.get(state, math.nan)
        return state.earned + self._values.get(state, 0.0)

    def _valued(self, child: Child) -> Child:
        if child.problem:
            return child
        if child.state in self._problems:
            return replace(child, problem=self._problems[child.state])
        if math.isnan(child.state.earned):
            return replace(child, problem="a reward on the way was not scored")
        return replace(child, value=self._value(child.state))


def _numbers(wish: Expand) -> range:
    return range(wish.first, wish.first + (1 if wish.greedy else wish.width))


def _name(action: Value) -> str:
    """An action as text, to tell it from others."""
    return action if isinstance(action, str) else str(action.tolist())


def _merged(wish: Expand, proposals: Sequence[Proposal]) -> tuple[list[_Path], list[Proposal]]:
    """Equal actions are taken once; those that failed stay apart."""
    paths, kept = dict[object, _Path](), list[Proposal]()
    for at, proposal in enumerate(proposals):
        key = at if proposal.problem else _name(proposal.action)
        if key in paths:
            paths[key].count += 1
            paths[key].tokens += proposal.tokens
        else:
            paths[key] = _Path(wish.state, at)
            kept.append(proposal)
    return list(paths.values()), kept


def _children(wish: Expand, paths: Sequence[_Path]) -> list[Child]:
    """The children that paths lead to; those with the same actions are one."""
    found: dict[object, _Path] = {}
    for at, path in enumerate(paths):
        same = found.setdefault(at if path.problem else path.actions, path)
        if same is not path:
            same.count += path.count
            same.tokens += path.tokens
    return [path.child(wish) for path in found.values()]
