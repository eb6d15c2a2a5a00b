"""Who proposes actions in an environment: a policy that writes them, or the environment's own list."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evolvent.engine.asks import GREEDY, Answer, Ask, Continuation, Node, SampleAsk, Sampling, To, Wait
from evolvent.errors import ConfigError, EvolventError, InvalidAction, Problem, WorldError
from evolvent.search.records import Spent
from evolvent.search.scorers import Ending
from evolvent.trajectory import Generation, Value, sample_rng, sample_seed
from evolvent.worlds.base import Info, World

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["AskAll", "EnvState", "Language", "Listed", "Proposal", "Proposer", "Proposing"]

AskAll = Callable[[Sequence[Ask]], Generator[Sequence["Ask | To | Wait"], Sequence[Answer], list[Any]]]
Proposals = Generator[Sequence["Ask | To | Wait"], Sequence[Answer], "list[list[Proposal]]"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """An action that could be taken.

    Args:
        action: as the environment takes it. logprob: mean over its tokens, as `Child.logprob`.
        tokens: that were sampled for it. thought, generation, info: what a record of the step has beside it.
        mind: what the proposer knows after it. problem: why it cannot be taken.
    """

    action: Value
    logprob: float = 0.0
    tokens: int = 0
    thought: str | None = None
    generation: Generation | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    mind: Any = None
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class EnvState:
    """A moment of an episode.

    Args:
        observation, info: what the environment says there. snapshot: how to come back to it.
        rewards: of all steps so far. above: the state one step earlier. taken: the action that led from there to here.
        over: "world" or "horizon", as `Trajectory.ended_by`; empty: it goes on.
        seed: what the seeds of its samples derive from: the search's own and the actions so far.
    """

    observation: Value
    info: Info
    snapshot: object
    rewards: tuple[float | None, ...] = ()
    above: EnvState | None = None
    taken: Proposal | None = None
    over: str = ""
    seed: int = 0

    @property
    def earned(self) -> float:
        """The sum of the rewards; NaN where one was not scored."""
        return float(sum(float("nan") if reward is None else reward for reward in self.rewards))

    @property
    def mind(self) -> Any:
        """What the proposer knows; None at the root."""
        return None if self.taken is None else self.taken.mind


@dataclass(frozen=True, slots=True)
class Proposing:
    """A wish for actions in a state.

    Args:
        numbers: of the samples. greedy: the likeliest action alone. distinct: different ones are wanted, where that
            can be had without sampling.
        after: how many actions of earlier wishes these come after; they differ from those too where they are distinct.
    """

    state: EnvState
    numbers: Sequence[int]
    greedy: bool = False
    distinct: bool = True
    after: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """One a sample."""
        return tuple(sample_seed(self.state.seed, "action", number) for number in self.numbers)


class Proposer(Protocol):
    """What proposes actions."""

    def propose(self, wanted: Sequence[Proposing], ask: AskAll) -> Proposals:
        """Actions for each wish, equal ones again and again; all that is asked of an engine goes through `ask`.

        `ask` answers as `careful.Careful.asked` does.
        """
        ...

    def asks(self, wanted: Proposing) -> list[Ask]:
        """What a wish will be asked as: for its worst case."""
        ...

    def rest(self, state: EnvState, *, steps: int) -> Spent:
        """The most that one sample of the rest of the episode can cost, of so many steps."""
        ...

    def full(self, state: EnvState) -> bool:
        """Whether nothing can be proposed any more: then the episode ends there, by the horizon."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """What the environment lists as admissible, all of it as likely. Asks no model.

    Where more is listed than is wanted, which ones is drawn by the state's seed, and by the number of the first sample
    where a search begins anew.
    """

    def propose(self, wanted: Sequence[Proposing], ask: AskAll) -> Proposals:
        """Raises WorldError where nothing is listed."""
        yield from ()
        return [self._of(wish) for wish in wanted]

    def _of(self, wish: Proposing) -> list[Proposal]:
        listed = wish.state.info.get("admissible")
        if listed is None:
            raise WorldError(
                "a search among listed actions needs a list",
                value=sorted(wish.state.info),
                expected="admissible",
                hint="have a policy propose",
            )
        known = list(dict.fromkeys(map(str, listed)))
        if not known:
            return []
        if wish.greedy:
            chosen = known[:1]
        elif not wish.distinct:
            chosen = [known[int(sample_rng(seed).integers(len(known)))] for seed in wish.seeds]
        elif len(wish.numbers) >= len(known):
            chosen = known
        else:
            begun = wish.numbers[0] - wish.after  # above 0 in a tree of other samples
            order = sample_rng(wish.state.seed, "listed", *([begun] if begun else [])).permutation(len(known))
            chosen = [known[at] for at in order[wish.after :][: len(wish.numbers)]]
        return [Proposal(action, -float(np.log(len(known)))) for action in chosen]

    def asks(self, wanted: Proposing) -> list[Ask]:
        """None."""
        return []

    def rest(self, state: EnvState, *, steps: int) -> Spent:
        """Nothing."""
        return Spent()

    def full(self, state: EnvState) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class _Said:
    """A conversation up to the end of an action: as `agents.language.LanguageMind` keeps it."""

    node: Node
    length: int
    stopped: bool
    turns: int


@dataclass(frozen=True)
class Language:
    """A policy that writes actions, token by token as `agents.language.LanguageAgent` does.

    The conversation of every path is the agent's: the same prompts, the same grammar, an action that the grammar does
    not know handed to the world as it is. Where a context is full, the episode ends.

    Args:
        world: tells the instructions and the grammar. sampling, max_tokens, choose: as of the agent.
    Raises:
        ConfigError: max_tokens below 1.
    """

    policy: Policy
    world: World
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 32
    choose: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError([Problem("max_tokens", f"must be 1 or more, got {self.max_tokens}")])

    def propose(self, wanted: Sequence[Proposing], ask: AskAll) -> Proposals:
        """Sample all actions at once."""
        asks = [self._ask(wish) for wish in wanted]
        answers = yield from ask(asks)
        return [
            [self._proposal(wish.state, one, sample) for sample in samples]
            for wish, one, samples in zip(wanted, asks, answers, strict=True)
        ]

    def asks(self, wanted: Proposing) -> list[Ask]:
        """One, with all its samples."""
        return [self._ask(wanted)]

    def rest(self, state: EnvState, *, steps: int) -> Spent:
        """What observations will say is not known: the context bounds it."""
        length = 0 if state.mind is None else state.mind.length
        left = self.policy.context - length
        return Spent(min(steps * self.max_tokens, left), left + 1)  # the token that was written last is not fed yet

    def full(self, state: EnvState) -> bool:
        """Whether the context has no room for a token of the next action."""
        length = 0 if state.mind is None else state.mind.length
        return bool(length + len(self.reads(state)) >= self.policy.context)

    def reads(self, state: EnvState) -> list[int]:
        """The tokens between what was said last and the next action."""
        said: _Said | None = state.mind
        if said is None:
            return self.policy.dialect.open(self.world.instructions, str(state.observation))
        return self.policy.dialect.turn(str(state.observation), stopped=said.stopped)

    def path(self, state: EnvState) -> list[int]:
        """All tokens of the conversation up to the next action."""
        said: _Said | None = state.mind
        return [*([] if said is None else said.node.tokens()), *self.reads(state)]

    def heard(self, state: EnvState) -> int:
        """The tokens of the first observation of the episode or of the last, whichever has more."""
        first = state
        while first.above is not None:
            first = first.above
        said = {str(first.observation), str(state.observation)}
        return max(len(self.policy.dialect.turn(text, stopped=False)) for text in said)

    def ending(self, state: EnvState, *, ours: bool) -> Ending:
        """The place where a state's next action begins, to be scored there; `ours`: by the engine that writes."""
        said: _Said | None = state.mind
        tokens = tuple(self.reads(state))
        if ours or said is None:
            return Ending(None if said is None else said.node, tokens, (len(tokens),))
        path = tuple(self.path(state))
        return Ending(None, path, (len(path),))

    def _ask(self, wish: Proposing) -> SampleAsk:
        state, dialect = wish.state, self.policy.dialect
        said: _Said | None = state.mind
        node, length = (None, 0) if said is None else (said.node, said.length)
        tokens = self.reads(state)
        room = min(self.max_tokens, self.policy.context - length - len(tokens))
        sampling, seeds = (GREEDY, (0,)) if wish.greedy else (self.sampling, wish.seeds)
        return SampleAsk(node, tokens, room, dialect.stop_ids, (), sampling, seeds, self._choices(state))

    def _choices(self, state: EnvState) -> tuple[tuple[int, ...], ...] | None:
        listed = state.info.get("admissible") if self.choose else None
        return tuple(dict.fromkeys(tuple(self.policy.dialect.action(action)) for action in listed)) if listed else None

    def _proposal(self, state: EnvState, ask: SampleAsk, sample: Continuation | EvolventError) -> Proposal:
        if isinstance(sample, EvolventError):
            return Proposal("", problem=str(sample))
        if not len(sample.ids):
            return Proposal("", problem="an empty completion")
        said: _Said | None = state.mind
        turns, length = (0, 0) if said is None else (said.turns, said.length)
        read, new = len(ask.tokens), len(sample.ids)
        ids = np.concatenate([np.asarray(ask.tokens, np.int32), sample.ids])
        sampled = np.arange(read + new) >= read
        logprobs = np.concatenate([np.zeros(read, np.float32), sample.logprobs])
        generation = Generation(
            ids, sampled, logprobs, turns - 1 if turns else None, (), True, self.policy.version, sample.stop
        )
        mind = _Said(sample.node, length + read + new, sample.stop != "length", turns + 1)
        text, info = self.policy.dialect.text(sample.ids.tolist()), dict[str, Any]()
        action, thought = text, None
        try:
            parsed = self.world.grammar.parse(text)
            action, thought = parsed.action, parsed.thought
        except InvalidAction:
            info["unparsed"] = True
        if ask.choices is not None:
            info["choices"] = [list(choice) for choice in ask.choices]
        return Proposal(action, float(np.mean(sample.logprobs)), new, thought, generation, info, mind)
