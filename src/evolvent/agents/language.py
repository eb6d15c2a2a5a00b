"""The language agent: a conversation with the world, token-exact, over whatever engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from evolvent.agents.base import Acting, Decision, recorded_turn
from evolvent.agents.calling import Constrainer
from evolvent.agents.history import History, Refuse, Turn
from evolvent.engine.asks import Constraint, Continuation, Node, SampleAsk, Sampling
from evolvent.errors import ConfigError, InvalidAction
from evolvent.models.dialects import Chat, Dialect, continue_conversation, open_conversation
from evolvent.models.policy import Policy
from evolvent.trajectory import Branch, Generation, Step, Task, Trajectory, Value
from evolvent.worlds.base import Info, Parsed, World

__all__ = ["LanguageAgent", "LanguageMind"]

_STRIDE, _MASK = 0x9E3779B97F4A7C15, (1 << 63) - 1


@dataclass(frozen=True)
class LanguageAgent:
    """Samples actions from a policy.

    Args:
        policy: whose dialect writes the conversation; its version marks the generations.
        sampling: the distribution of tokens.
        max_tokens: longest action.
        restrict_to_admissible: sample among the world's admissible actions only, where it lists them; the step's
            info then has their tokens as "choices", so that a learner can compute with the same distribution.
        history: the policy for full contexts.
        constrain: restricts actions (`ValidCalls`: valid calls of the offered tools); None: no restriction. The
            info of a constrained step says "constrained". Policy gradients refuse such steps, imitation takes them.
    Raises:
        ConfigError: `restrict_to_admissible` beside `constrain`.
    """

    policy: Policy
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 32
    restrict_to_admissible: bool = False
    history: History = field(default_factory=Refuse)
    constrain: Constrainer | None = None

    def __post_init__(self) -> None:
        if self.restrict_to_admissible and self.constrain is not None:
            raise ConfigError("choose and constrain are both set", hint="set only one of them")

    def begin(self, world: World, task: Task, *, seed: int) -> LanguageMind:
        return LanguageMind(self, world, seed, task=task)

    def resume(self, world: World, task: Task, *, seed: int, parent: Trajectory, branch: Branch) -> LanguageMind:
        """Returns a mind that resumes, see `SupportsResume`: its first generation is a root with the parent's tokens
        before it.
        """
        mind = LanguageMind(self, world, seed, task=task)
        mind.load_past(parent, branch)
        return mind


class LanguageMind:
    """One conversation.

    `_node` is the prefix so far, `_turns` are the past turns. Of a conversation that another mind began,
    `_recalled` turns were taken over; until the first ask, `_past` are the tokens of these and `_given` the first
    tokens of the action.
    """

    def __init__(self, agent: LanguageAgent, world: World, seed: int, *, task: Task | None = None) -> None:
        self._agent, self._world, self._seed, self._task = agent, world, seed, task
        self._dialect: Dialect = agent.policy.dialect
        self._context = agent.policy.context
        self._node: Node | None = None
        self._length = 0
        self._turns: list[Turn] = []
        self._recalled = 0
        self._past: list[int] = []
        self._read: list[int] = []  # all tokens up to `_node`
        self._given: tuple[int, ...] = ()

    def load_past(self, parent: Trajectory, branch: Branch) -> None:
        """Takes another episode's steps up to a branch as this mind's own past."""
        for step in parent.steps[: branch.step]:
            turn = self._recorded_turn(step)
            self._past += [*self._observation_tokens(turn.observation, {}), *turn.action]
            self._turns.append(turn)
        self._recalled = len(self._turns)
        if branch.token:
            action = self._recorded_turn(parent.steps[branch.step]).action
            if branch.token >= len(action):
                raise ConfigError(
                    f"branch token is beyond the action of step {branch.step} of trajectory {parent.id!r}",
                    value=branch.token,
                    expected=f"less than {len(action)}",
                )
            self._given = action[: branch.token]

    def _recorded_turn(self, step: Step) -> Turn:
        grammar = self._world.grammar
        return recorded_turn(
            step, self._dialect, render=lambda step: grammar.render(Parsed(str(step.action), step.thought))
        )

    def act(self, observation: Value, info: Info) -> Acting:
        observation = str(observation)
        tokens = self._next_tokens(observation, info)
        if tokens is None:
            return Decision("", ends="horizon", info={"context_full": True})
        agent, turn = self._agent, len(self._turns)
        choices = self._choices(info) if agent.restrict_to_admissible else None
        constraint = self._constraint(info)
        ask = SampleAsk(
            self._node,
            tokens,
            min(max(1, agent.max_tokens - len(self._given)), self._context - self._length - len(tokens)),
            stop_ids=self._dialect.stop_ids,
            stop_strings=self._dialect.stop_strings,
            sampling=agent.sampling,
            seeds=((self._seed + turn * _STRIDE) & _MASK,),
            choices=choices,
            constraint=constraint,
        )
        ((continuation,),) = yield (ask,)
        decision = self._decide(observation, tokens, continuation)
        if constraint is not None:
            return replace(decision, info={**decision.info, "constrained": True})
        if choices is None:
            return decision
        return replace(decision, info={**decision.info, "choices": [list(choice) for choice in choices]})

    def _observation_tokens(self, observation: str, info: Info) -> list[int]:
        """Returns the tokens between the previous turn and the next action."""
        if not self._turns:
            return open_conversation(self._dialect, self._world.instructions, observation, info)
        return continue_conversation(self._dialect, observation, info, stopped=self._turns[-1].stopped)

    def _next_tokens(self, observation: str, info: Info) -> list[int] | None:
        """Returns the tokens to read next; a full context goes to the history policy and makes a new root."""
        tokens = [*self._past, *self._observation_tokens(observation, info), *self._given]
        if isinstance(self._dialect, Chat) and self._dialect.renders_past and self._turns:
            tokens = self._rendered_tokens(self._dialect, observation)
        if self._length + len(tokens) < self._context:
            return tokens
        max_length = self._context - max(
            self._agent.max_tokens, len(self._given) + 1
        )  # something is written behind these
        shortened = self._agent.history(self._dialect, self._world.instructions, self._turns, observation, max_length)
        if shortened is None:
            return None
        self._node, self._length, self._read = None, 0, []
        return [*shortened, *self._given]

    def _rendered_tokens(self, dialect: Chat, observation: str) -> list[int]:
        """Returns the tokens to read next where the template renders the past: a new root, unless it extends what was
        read.
        """
        past = [(turn.observation, turn.action) for turn in self._turns]
        tokens = [*dialect.rendered_prompt(self._world.instructions, past, observation), *self._given]
        if self._node is not None and tokens[: self._length] == self._read:
            return tokens[self._length :]
        self._node, self._length, self._read = None, 0, []
        return tokens

    def _choices(self, info: Info) -> tuple[tuple[int, ...], ...] | None:
        """Returns the remaining tokens of each admissible action that begins with the given tokens."""
        admissible, prefix_length = info.get("admissible"), len(self._given)
        if not admissible:
            return None
        listed = dict.fromkeys(tuple(self._dialect.action(action)) for action in admissible)
        suffixes = tuple(ids[prefix_length:] for ids in listed if ids[:prefix_length] == self._given)
        if not suffixes:
            raise InvalidAction(
                "no admissible action begins as the branch does",
                value=self._dialect.text(self._given),
                expected="tokens of a listed action",
                hint="branch between steps",
            )
        return suffixes

    def _constraint(self, info: Info) -> Constraint | None:
        """Returns the constraint after the given tokens of the action."""
        if self._agent.constrain is None or self._task is None:
            return None
        constraint = self._agent.constrain(self._world, self._task, info)
        if constraint is None:
            return None
        for token in self._given:
            if not constraint.allowed()[token]:
                raise InvalidAction(
                    "no valid calls begin as the branch does",
                    value=self._dialect.text(self._given),
                    hint="branch between steps",
                )
            constraint.advance(token)
        return constraint

    def _decide(self, observation: str, tokens: list[int], continuation: Continuation) -> Decision:
        count, new = len(tokens), len(continuation.ids)
        ids = np.empty(count + new, np.int32)
        ids[:count], ids[count:] = tokens, continuation.ids
        sampled = np.zeros(count + new, np.bool_)
        sampled[count:] = True
        logprobs = np.zeros(count + new, np.float32)
        logprobs[count:] = continuation.logprobs
        turn = len(self._turns) - self._recalled
        extends = None if self._node is None else turn - 1
        generation = Generation(
            ids,
            sampled,
            logprobs,
            extends,
            policy_version=self._agent.policy.version,
            stop=continuation.stop,
            model_logprobs=continuation.pad_model_logprobs(count),
        )
        self._node, self._length = continuation.node, self._length + count + new
        action = (*self._given, *continuation.ids.tolist())
        self._turns.append(Turn(observation, action, continuation.stop != "length"))
        self._past, self._given = [], ()
        self._read += [*tokens, *continuation.ids.tolist()]
        reply = self._dialect.read_reply(action)
        info: dict[str, object] = {"new_root": True} if extends is None and turn else {}
        try:
            parsed = self._world.grammar.parse(reply.text)
        except InvalidAction:
            text = reply.text or self._dialect.text(action)
            return Decision(text, reply.thought, (generation,), info={**info, "unparsed": True})
        return Decision(parsed.action, parsed.thought or reply.thought, (generation,), info=info)
