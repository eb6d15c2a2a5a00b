"""The language agent: a conversation with the world, token-exact, over whatever engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from evolvent.agents.base import Acting, Decision, turn_of
from evolvent.agents.calling import Constrainer
from evolvent.agents.history import History, Refuse, Turn
from evolvent.engine.asks import Constraint, Continuation, Node, SampleAsk, Sampling
from evolvent.errors import ConfigError, InvalidAction
from evolvent.models.dialects import Dialect
from evolvent.models.policy import Policy
from evolvent.trajectory import Branch, Generation, Step, Task, Trajectory, Value
from evolvent.worlds.base import Info, World
from evolvent.worlds.grammar import Parsed

__all__ = ["LanguageAgent", "LanguageMind"]

_STRIDE, _MASK = 0x9E3779B97F4A7C15, (1 << 63) - 1


@dataclass(frozen=True)
class LanguageAgent:
    """Samples actions from a policy.

    Args:
        policy: whose dialect writes the conversation; its version marks the generations.
        sampling: the distribution of tokens.
        max_tokens: longest action.
        choose: sample among the world's admissible actions only, where it lists them; the step's info then has their
            tokens as "choices", so that a learner can compute with the same distribution.
        history: what to do when the context is full.
        constrain: what an action may be (`ValidCalls`: valid calls of the offered tools); None: anything. The info of a
            step that was held to it says "constrained". Policy gradients refuse such steps, imitation takes them.
    Raises:
        ConfigError: `choose` beside `constrain`.
    """

    policy: Policy
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 32
    choose: bool = False
    history: History = field(default_factory=Refuse)
    constrain: Constrainer | None = None

    def __post_init__(self) -> None:
        if self.choose and self.constrain is not None:
            raise ConfigError("actions are listed and constrained", hint="give choose or constrain")

    def begin(self, world: World, task: Task, *, seed: int) -> LanguageMind:
        return LanguageMind(self, world, seed, task=task)

    def resume(self, world: World, task: Task, *, seed: int, parent: Trajectory, branch: Branch) -> LanguageMind:
        """See `Resuming`: the first generation is a root that reads all that the parent read and wrote before it."""
        mind = LanguageMind(self, world, seed, task=task)
        mind.recall(parent, branch)
        return mind


class LanguageMind:
    """One conversation.

    `_node` is the prefix so far, `_turns` what was said. Of a conversation that another one began, `_recalled` turns
    were taken over; until the first ask, `_past` are the tokens of these and `_given` the first tokens of the action.
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
        self._given: tuple[int, ...] = ()

    def recall(self, parent: Trajectory, branch: Branch) -> None:
        """Take what another episode did up to a branch for one's own past."""
        for step in parent.steps[: branch.step]:
            turn = self._turn_of(step)
            self._past += [*self._read(turn.observation), *turn.action]
            self._turns.append(turn)
        self._recalled = len(self._turns)
        if branch.token:
            action = self._turn_of(parent.steps[branch.step]).action
            if branch.token >= len(action):
                raise ConfigError(
                    f"a branch beyond the action of step {branch.step} of {parent.id!r}",
                    value=branch.token,
                    expected=f"less than its {len(action)} tokens",
                )
            self._given = action[: branch.token]

    def _turn_of(self, step: Step) -> Turn:
        grammar = self._world.grammar
        return turn_of(step, self._dialect, render=lambda step: grammar.render(Parsed(str(step.action), step.thought)))

    def act(self, observation: Value, info: Info) -> Acting:
        observation = str(observation)
        tokens = self._tokens(observation)
        if tokens is None:
            return Decision("", ends="horizon", info={"context_full": True})
        agent, turn = self._agent, len(self._turns)
        choices = self._choices(info) if agent.choose else None
        constraint = self._constraint(info)
        ask = SampleAsk(
            self._node,
            tokens,
            min(max(1, agent.max_tokens - len(self._given)), self._context - self._length - len(tokens)),
            stop_ids=self._dialect.stop_ids,
            sampling=agent.sampling,
            seeds=((self._seed + turn * _STRIDE) & _MASK,),
            choices=choices,
            constraint=constraint,
        )
        ((continuation,),) = yield (ask,)
        decided = self._decided(observation, tokens, continuation)
        if constraint is not None:
            return replace(decided, info={**decided.info, "constrained": True})
        if choices is None:
            return decided
        return replace(decided, info={**decided.info, "choices": [list(choice) for choice in choices]})

    def _read(self, observation: str) -> list[int]:
        """The tokens between what was said last and the next action."""
        if not self._turns:
            return self._dialect.open(self._world.instructions, observation)
        return self._dialect.turn(observation, stopped=self._turns[-1].stopped)

    def _tokens(self, observation: str) -> list[int] | None:
        """The tokens to read next; a full context goes to the history policy and makes a new root."""
        tokens = [*self._past, *self._read(observation), *self._given]
        if self._length + len(tokens) < self._context:
            return tokens
        room = self._context - max(self._agent.max_tokens, len(self._given) + 1)  # something is written behind these
        shorter = self._agent.history(self._dialect, self._world.instructions, self._turns, observation, room)
        if shorter is None:
            return None
        self._node, self._length = None, 0
        return [*shorter, *self._given]

    def _choices(self, info: Info) -> tuple[tuple[int, ...], ...] | None:
        """What is left to write of each admissible action that begins as it is given."""
        admissible, given = info.get("admissible"), len(self._given)
        if not admissible:
            return None
        listed = dict.fromkeys(tuple(self._dialect.action(action)) for action in admissible)
        left = tuple(ids[given:] for ids in listed if ids[:given] == self._given)
        if not left:
            raise InvalidAction(
                "no admissible action begins as the branch does",
                value=self._dialect.text(self._given),
                expected="tokens of a listed action",
                hint="branch between steps",
            )
        return left

    def _constraint(self, info: Info) -> Constraint | None:
        """What may follow what is given of the action."""
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

    def _decided(self, observation: str, tokens: list[int], written: Continuation) -> Decision:
        count, new = len(tokens), len(written.ids)
        ids = np.empty(count + new, np.int32)
        ids[:count], ids[count:] = tokens, written.ids
        sampled = np.zeros(count + new, np.bool_)
        sampled[count:] = True
        logprobs = np.zeros(count + new, np.float32)
        logprobs[count:] = written.logprobs
        turn = len(self._turns) - self._recalled
        extends = None if self._node is None else turn - 1
        generation = Generation(ids, sampled, logprobs, extends, (), True, self._agent.policy.version, written.stop)
        self._node, self._length = written.node, self._length + count + new
        action = (*self._given, *written.ids.tolist())
        self._turns.append(Turn(observation, action, written.stop != "length"))
        self._past, self._given = [], ()
        text = self._dialect.text(action)
        info: dict[str, object] = {"new_root": True} if extends is None and turn else {}
        try:
            parsed = self._world.grammar.parse(text)
        except InvalidAction:
            return Decision(text, None, (generation,), info={**info, "unparsed": True})
        return Decision(parsed.action, parsed.thought, (generation,), info=info)
