"""The language agent: a conversation with the world, token-exact, over whatever engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from evolvent.agents.base import Acting, Decision
from evolvent.agents.history import History, Refuse, Turn
from evolvent.engine.asks import Continuation, Node, SampleAsk, Sampling
from evolvent.errors import InvalidAction
from evolvent.models.dialects import Dialect
from evolvent.models.policy import Policy
from evolvent.trajectory import Generation, Task, Value
from evolvent.worlds.base import Info, World

__all__ = ["LanguageAgent"]

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
    """

    policy: Policy
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 32
    choose: bool = False
    history: History = field(default_factory=Refuse)

    def begin(self, world: World, task: Task, *, seed: int) -> _LanguageMind:
        return _LanguageMind(self, world, seed)


class _LanguageMind:
    """One conversation. `_node` is the prefix so far, `_last` the index of the generation that wrote its end."""

    def __init__(self, agent: LanguageAgent, world: World, seed: int) -> None:
        self._agent, self._world, self._seed = agent, world, seed
        self._dialect: Dialect = agent.policy.dialect
        self._context = agent.policy.context
        self._node: Node | None = None
        self._length = 0
        self._turns: list[Turn] = []

    def act(self, observation: Value, info: Info) -> Acting:
        observation = str(observation)
        tokens = self._tokens(observation)
        if tokens is None:
            return Decision("", ends="horizon", info={"context_full": True})
        agent, turn = self._agent, len(self._turns)
        choices = self._choices(info) if agent.choose else None
        ask = SampleAsk(
            self._node,
            tokens,
            min(agent.max_tokens, self._context - self._length - len(tokens)),
            stop_ids=self._dialect.stop_ids,
            sampling=agent.sampling,
            seeds=((self._seed + turn * _STRIDE) & _MASK,),
            choices=choices,
        )
        ((continuation,),) = yield (ask,)
        decided = self._decided(observation, tokens, continuation)
        if choices is None:
            return decided
        return replace(decided, info={**decided.info, "choices": [list(choice) for choice in choices]})

    def _tokens(self, observation: str) -> list[int] | None:
        """The tokens to read next; a full context goes to the history policy and makes a new root."""
        instructions = self._world.instructions
        if self._node is None:
            tokens: list[int] | None = self._dialect.open(instructions, observation)
        else:
            tokens = self._dialect.turn(observation, stopped=self._turns[-1].stopped)
        if tokens is not None and self._length + len(tokens) < self._context:
            return tokens
        room = self._context - self._agent.max_tokens
        tokens = self._agent.history(self._dialect, instructions, self._turns, observation, room)
        if tokens is not None:
            self._node, self._length = None, 0
        return tokens

    def _choices(self, info: Info) -> tuple[tuple[int, ...], ...] | None:
        admissible = info.get("admissible")
        if not admissible:
            return None
        return tuple(dict.fromkeys(tuple(self._dialect.action(action)) for action in admissible))

    def _decided(self, observation: str, tokens: list[int], written: Continuation) -> Decision:
        count, new = len(tokens), len(written.ids)
        ids = np.empty(count + new, np.int32)
        ids[:count], ids[count:] = tokens, written.ids
        sampled = np.zeros(count + new, np.bool_)
        sampled[count:] = True
        logprobs = np.zeros(count + new, np.float32)
        logprobs[count:] = written.logprobs
        turn = len(self._turns)
        extends = None if self._node is None else turn - 1
        generation = Generation(ids, sampled, logprobs, extends, (), True, self._agent.policy.version, written.stop)
        self._node, self._length = written.node, self._length + count + new
        self._turns.append(Turn(observation, tuple(written.ids.tolist()), written.stop != "length"))
        text = self._dialect.text(written.ids)
        info: dict[str, object] = {"new_root": True} if extends is None and turn else {}
        try:
            parsed = self._world.grammar.parse(text)
        except InvalidAction:
            return Decision(text, None, (generation,), info={**info, "unparsed": True})
        return Decision(parsed.action, parsed.thought, (generation,), info=info)
