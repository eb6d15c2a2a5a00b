"""Proposers of actions in an environment: a policy that writes them, or the environment's own list."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from evolvent.engine.asks import GREEDY, Answer, Ask, BlockingCall, Continuation, Node, RoutedAsk, SampleAsk, Sampling
from evolvent.errors import ConfigError, EvolventError, InvalidAction, Problem, WorldError
from evolvent.models.dialects import Chat, Dialect, continue_conversation, open_conversation
from evolvent.search.records import Spent
from evolvent.search.scorers import Ending
from evolvent.trajectory import Generation, JsonObject, Value, sample_rng, sample_seed
from evolvent.worlds.base import Info, World

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = [
    "AskAll",
    "EnvState",
    "LanguageProposer",
    "ListedProposer",
    "Mind",
    "Proposal",
    "ProposalRequest",
    "Proposer",
]

Mind: TypeAlias = Any
"""The state of a proposer after an action: each proposer has its own class."""
AskAll = Callable[
    [Sequence[Ask]], Generator[Sequence["Ask | RoutedAsk | BlockingCall"], Sequence[Answer], list[Answer]]
]
Proposals = Generator[Sequence["Ask | RoutedAsk | BlockingCall"], Sequence[Answer], "list[list[Proposal]]"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """An action that could be taken.

    Args:
        action: as the environment takes it. logprob: mean over its tokens, as `Child.logprob`.
        tokens: that were sampled for it. thought, generation, info: additional fields of the step's record.
        mind: the proposer's state after it. problem: the reason why it cannot be taken.
    """

    action: Value
    logprob: float = 0.0
    tokens: int = 0
    thought: str | None = None
    generation: Generation | None = None
    info: JsonObject = field(default_factory=dict)
    mind: Mind = None
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class EnvState:
    """A state of an episode.

    Args:
        observation, info: the environment's output there. snapshot: restores the environment.
        rewards: of all steps so far. above: the state one step earlier. proposal: the action that led from there to
            here.
        over: "world" or "horizon", as `Trajectory.ended_by`; empty: it goes on.
        seed: the base of its samples' seeds: the search's own and the actions so far.
    """

    observation: Value
    info: Info
    snapshot: object
    rewards: tuple[float | None, ...] = ()
    above: EnvState | None = None
    proposal: Proposal | None = None
    over: str = ""
    seed: int = 0

    @property
    def earned(self) -> float:
        """Returns the sum of the rewards; NaN where one was not scored."""
        return float(sum(float("nan") if reward is None else reward for reward in self.rewards))

    @property
    def mind(self) -> Mind:
        """Returns the proposer's state; None at the root."""
        return None if self.proposal is None else self.proposal.mind


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """A request for actions in a state.

    Args:
        numbers: of the samples. greedy: the likeliest action alone. distinct: different actions are requested,
            where that is possible without sampling.
        after: how many actions of earlier requests these come after; with `distinct` they differ from those too.
    """

    state: EnvState
    numbers: Sequence[int]
    greedy: bool = False
    distinct: bool = True
    after: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """Returns one seed per sample."""
        return tuple(sample_seed(self.state.seed, "action", number) for number in self.numbers)


class Proposer(Protocol):
    """A proposer of actions."""

    def propose(self, requests: Sequence[ProposalRequest], ask: AskAll) -> Proposals:
        """Returns actions for each request, equal ones again and again; all asks to an engine go through `ask`.

        `ask` answers as `isolation.IsolatedAsker.ask` does.
        """
        ...

    def build_asks(self, request: ProposalRequest) -> list[Ask]:
        """Returns the asks of a request, to compute its maximum cost."""
        ...

    def max_rest_cost(self, state: EnvState, *, steps: int) -> Spent:
        """Returns the maximum cost of one sample of the rest of the episode, of so many steps."""
        ...

    def is_full(self, state: EnvState) -> bool:
        """Returns whether nothing can be proposed any more: then the episode ends there, by the horizon."""
        ...


@dataclass(frozen=True, slots=True)
class ListedProposer:
    """The environment's admissible actions, all of them equally likely. It uses no model.

    Where the list is longer than the request, the actions are sampled by the state's seed, and by the number of the
    first sample where a search begins anew.
    """

    def propose(self, requests: Sequence[ProposalRequest], ask: AskAll) -> Proposals:
        """Returns the listed actions. Raises WorldError where nothing is listed."""
        yield from ()
        return [self._select(request) for request in requests]

    def _select(self, request: ProposalRequest) -> list[Proposal]:
        listed = request.state.info.get("admissible")
        if listed is None:
            raise WorldError(
                "the world does not list its admissible actions",
                value=sorted(request.state.info),
                expected="admissible",
                hint="let a policy propose actions",
            )
        actions = list(dict.fromkeys(map(str, listed)))
        if not actions:
            return []
        if request.greedy:
            selected = actions[:1]
        elif not request.distinct:
            selected = [actions[int(sample_rng(seed).integers(len(actions)))] for seed in request.seeds]
        elif len(request.numbers) >= len(actions):
            selected = actions
        else:
            tree_start = request.numbers[0] - request.after  # above 0 in a tree of other samples
            order = sample_rng(request.state.seed, "listed", *([tree_start] if tree_start else [])).permutation(
                len(actions)
            )
            selected = [actions[index] for index in order[request.after :][: len(request.numbers)]]
        return [Proposal(action, -float(np.log(len(actions)))) for action in selected]

    def build_asks(self, request: ProposalRequest) -> list[Ask]:
        """Returns no asks."""
        return []

    def max_rest_cost(self, state: EnvState, *, steps: int) -> Spent:
        """Returns a cost of nothing."""
        return Spent()

    def is_full(self, state: EnvState) -> bool:
        """Returns False."""
        return False


@dataclass(frozen=True, slots=True)
class _ConversationState:
    """A conversation up to the end of an action: as `agents.language.LanguageMind` keeps it."""

    node: Node
    length: int
    stopped: bool
    turns: int


def history_problems(dialect: Dialect) -> list[Problem]:
    """Returns the problem of a search over turns whose prompts would not keep the tokens of earlier turns."""
    if not (isinstance(dialect, Chat) and dialect.renders_past):
        return []
    message = f"searches over turns keep the tokens of earlier turns, but history is {dialect.history!r}"
    return [Problem("history", message, "set history to 'append'")]


@dataclass(frozen=True)
class LanguageProposer:
    """A policy that writes actions, token by token as `agents.language.LanguageAgent` does.

    The conversation of every path is the agent's: the same prompts, the same grammar, and unparsable actions are
    passed to the world unchanged. Where a context is full, the episode ends.

    Args:
        world: gives the instructions and the grammar. sampling, max_tokens, restrict_to_admissible: as of the
            agent.
    Raises:
        ConfigError: max_tokens below 1, or a policy whose history is "template" and whose template changes the past.
    """

    policy: Policy
    world: World
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 32
    restrict_to_admissible: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError([Problem("max_tokens", f"got {self.max_tokens}, expected 1 or more")])
        problems = history_problems(self.policy.dialect)
        if problems:
            raise ConfigError(problems)

    def propose(self, requests: Sequence[ProposalRequest], ask: AskAll) -> Proposals:
        """Samples all actions at once."""
        asks = [self._build_ask(request) for request in requests]
        answers = yield from ask(asks)
        return [
            [self._proposal(request.state, single_ask, sample) for sample in samples]
            for request, single_ask, samples in zip(requests, asks, answers, strict=True)
        ]

    def build_asks(self, request: ProposalRequest) -> list[Ask]:
        """Returns one ask, with all its samples."""
        return [self._build_ask(request)]

    def max_rest_cost(self, state: EnvState, *, steps: int) -> Spent:
        """Returns the maximum cost, which the context bounds, since future observations are unknown."""
        length = 0 if state.mind is None else state.mind.length
        left = self.policy.context - length
        return Spent(min(steps * self.max_tokens, left), left + 1)  # the token that was written last is not fed yet

    def is_full(self, state: EnvState) -> bool:
        """Returns whether the context has no space for a token of the next action."""
        length = 0 if state.mind is None else state.mind.length
        return bool(length + len(self.next_tokens(state)) >= self.policy.context)

    def next_tokens(self, state: EnvState) -> list[int]:
        """Returns the tokens between the previous action and the next."""
        conversation: _ConversationState | None = state.mind
        if conversation is None:
            instructions = self.world.instructions
            return open_conversation(self.policy.dialect, instructions, str(state.observation), state.info)
        observation, stopped = str(state.observation), conversation.stopped
        return continue_conversation(self.policy.dialect, observation, state.info, stopped=stopped)

    def path(self, state: EnvState) -> list[int]:
        """Returns all tokens of the conversation up to the next action."""
        conversation: _ConversationState | None = state.mind
        return [*([] if conversation is None else conversation.node.tokens()), *self.next_tokens(state)]

    def longest_observation(self, state: EnvState) -> int:
        """Returns the length of the episode's first or last observation in tokens, whichever is longer."""
        first = state
        while first.above is not None:
            first = first.above
        observations = {str(first.observation), str(state.observation)}
        return max(len(self.policy.dialect.turn(text, stopped=False)) for text in observations)

    def score_query(self, state: EnvState, *, same_engine: bool) -> Ending:
        """Returns the query for a score where a state's next action begins; `same_engine`: by the engine that
        writes.
        """
        conversation: _ConversationState | None = state.mind
        tokens = tuple(self.next_tokens(state))
        if same_engine or conversation is None:
            return Ending(None if conversation is None else conversation.node, tokens, (len(tokens),))
        path = tuple(self.path(state))
        return Ending(None, path, (len(path),))

    def _build_ask(self, request: ProposalRequest) -> SampleAsk:
        state, dialect = request.state, self.policy.dialect
        conversation: _ConversationState | None = state.mind
        node, length = (None, 0) if conversation is None else (conversation.node, conversation.length)
        tokens = self.next_tokens(state)
        max_new_tokens = min(self.max_tokens, self.policy.context - length - len(tokens))
        sampling, seeds = (GREEDY, (0,)) if request.greedy else (self.sampling, request.seeds)
        return SampleAsk(
            node, tokens, max_new_tokens, dialect.stop_ids, dialect.stop_strings, sampling, seeds, self._choices(state)
        )

    def _choices(self, state: EnvState) -> tuple[tuple[int, ...], ...] | None:
        listed = state.info.get("admissible") if self.restrict_to_admissible else None
        return tuple(dict.fromkeys(tuple(self.policy.dialect.action(action)) for action in listed)) if listed else None

    def _proposal(self, state: EnvState, ask: SampleAsk, sample: Continuation | EvolventError) -> Proposal:
        if isinstance(sample, EvolventError):
            return Proposal("", problem=str(sample))
        if not len(sample.ids):
            return Proposal("", problem="the completion is empty")
        conversation: _ConversationState | None = state.mind
        turns, length = (0, 0) if conversation is None else (conversation.turns, conversation.length)
        num_read, num_new = len(ask.tokens), len(sample.ids)
        ids = np.concatenate([np.asarray(ask.tokens, np.int32), sample.ids])
        sampled = np.arange(num_read + num_new) >= num_read
        logprobs = np.concatenate([np.zeros(num_read, np.float32), sample.logprobs])
        generation = Generation(
            ids,
            sampled,
            logprobs,
            turns - 1 if turns else None,
            policy_version=self.policy.version,
            stop=sample.stop,
            model_logprobs=sample.pad_model_logprobs(num_read),
        )
        mind = _ConversationState(sample.node, length + num_read + num_new, sample.stop != "length", turns + 1)
        reply, info = self.policy.dialect.read_reply(sample.ids.tolist()), dict[str, Any]()
        action, thought = reply.text, reply.thought
        try:
            parsed = self.world.grammar.parse(reply.text)
            action, thought = parsed.action, parsed.thought or reply.thought
        except InvalidAction:
            info["unparsed"] = True
        if ask.choices is not None:
            info["choices"] = [list(choice) for choice in ask.choices]
        return Proposal(action, float(np.mean(sample.logprobs)), num_new, thought, generation, info, mind)
