"""The chat agent: a model behind an OpenAI-compatible endpoint acts in any world.

What is recorded is text, unless the endpoint returns token ids and log-probabilities (`Endpoint(tokens=True)`): then
every turn becomes a token-exact generation. Where the endpoint's template makes the next prompt from other tokens than
were written (it strips thoughts, or tokenises text anew), the turn is a new root; nothing is tokenised here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.agents.base import Acting, Decision
from evolvent.agents.history import History, Refuse, Turn
from evolvent.engine.asks import Sampling, Wait
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.replies import FINGERPRINT, Reply
from evolvent.errors import ConfigError, ContextOverflow, InvalidAction, Problem, TokensMissing, WeightsChanged
from evolvent.messages import Message
from evolvent.trajectory import Generation, Task, Value
from evolvent.worlds.base import Info, World
from evolvent.worlds.grammar import Grammar, Parsed

__all__ = ["ChatAgent", "format_hint"]

_STRIDE, _MASK = 0x9E3779B97F4A7C15, (1 << 63) - 1  # seeds of turns as the language agent draws them


@dataclass(frozen=True)
class ChatAgent:
    """Acts by asking an endpoint. What it says first is the world's instructions and how an action is written.

    Args:
        endpoint: which model, and whether token ids are demanded.
        sampling: the distribution of tokens. With ids demanded and an endpoint whose log-probabilities are not
            `processed`, it must be the model's own (temperature 1, everything kept): others would not be recorded.
        max_tokens: longest reply, its reasoning included.
        history: what to do when the endpoint says that the conversation is too long. It counts messages, not tokens.
        hint: told after the instructions; None: the form of an action, from the world's grammar; "": nothing.
        steady: end an episode (WeightsChanged) if the endpoint names another model or fingerprint than at its
            beginning; False: mark that in the step's info. None: end it where tokens are recorded, where the model's
            name changed, or where the fingerprint is one of ours; others change it for reasons of their own too.
    Raises:
        ConfigError: max_tokens below 1, or log-probabilities that would not be those of the sampling.
    """

    endpoint: Endpoint
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 512
    history: History = field(default_factory=Refuse)
    hint: str | None = None
    steady: bool | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.max_tokens < 1:
            problems.append(Problem("max_tokens", f"must be 1 or more, got {self.max_tokens}"))
        if self.endpoint.tokens and not self.endpoint.processed and self.sampling != Sampling():
            what = f"log-probabilities at temperature 1 are not those of {self.sampling}"
            problems.append(Problem("sampling", what, "sample at temperature 1, or ask for processed ones"))
        if problems:
            raise ConfigError(problems)

    def begin(self, world: World, task: Task, *, seed: int) -> _ChatMind:
        return _ChatMind(self, world, seed)


def format_hint(grammar: Grammar) -> str:
    """How to write an action, for a model that was not trained on the world: an example in the grammar's own form."""
    shown = grammar.render(Parsed("ACTION", "WHY"))
    if shown.strip() == "ACTION":
        return "Answer with one action and nothing else."
    return f"Answer in this form, with your own words for ACTION{' and WHY' if 'WHY' in shown else ''}:\n{shown}"


class _Pages:
    """A dialect whose tokens are whole messages, so that history policies cut conversations as they cut token texts."""

    name = "messages"
    stop_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._pages: list[Message] = []

    def _page(self, role: str, text: str) -> int:
        self._pages.append(Message(role, text))
        return len(self._pages) - 1

    def open(self, instructions: str, observation: str) -> list[int]:
        """The first messages: of the system (where there is anything to say), and of the world."""
        system = [self._page("system", instructions)] if instructions else []
        return [*system, self._page("user", observation)]

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        """What the world says next."""
        return [self._page("user", observation)]

    def action(self, text: str) -> list[int]:
        """What the model said."""
        return [self._page("assistant", text)]

    def text(self, ids: Iterable[int]) -> str:
        """What these messages say."""
        return "\n".join(self._pages[index].text for index in ids)

    def messages(self, ids: Iterable[int]) -> list[Message]:
        """The messages themselves."""
        return [self._pages[index] for index in ids]


class _ChatMind:
    """One conversation. `_said` are its messages so far, `_known` all tokens of the last turn."""

    def __init__(self, agent: ChatAgent, world: World, seed: int) -> None:
        self._agent, self._world, self._seed = agent, world, seed
        hint = format_hint(world.grammar) if agent.hint is None else agent.hint
        self._instructions = "\n\n".join(part for part in (world.instructions, hint) if part)
        self._session = secrets.token_hex(12)  # only a name: two runs of one seed share nothing at the endpoint
        self._pages = _Pages()
        self._said: list[int] = []
        self._turns: list[Turn] = []
        self._known: NDArray[np.int32] | None = None
        self._writer: tuple[str, str] | None = None

    def act(self, observation: Value, info: Info) -> Acting:
        text = str(observation)
        said = [*self._said, *self._pages.turn(text, stopped=True)] if self._turns else self._opened(text)
        cut = False
        while True:
            try:
                (reply,) = yield (self._wait(said),)
                break
            except ContextOverflow:
                shorter = self._shorter(text, len(said))
                if shorter is None:
                    return Decision("", ends="horizon", info={"context_full": True})
                said, cut = shorter, True
        return self._decided(text, said, reply, cut=cut)

    def _opened(self, observation: str) -> list[int]:
        return self._pages.open(self._instructions, observation)

    def _wait(self, said: list[int]) -> Wait:
        agent = self._agent
        seed = (self._seed + len(self._turns) * _STRIDE) & _MASK
        call = partial(
            agent.endpoint.chat,
            self._pages.messages(said),
            sampling=agent.sampling,
            max_tokens=agent.max_tokens,
            seed=seed,
            session=self._session,
        )
        return Wait(call, agent.endpoint.patience_s)

    def _shorter(self, observation: str, length: int) -> list[int] | None:
        """The conversation as the history policy cuts it, None where that gives up or cuts nothing."""
        room = length - 1
        cut = self._agent.history(self._pages, self._instructions, self._turns, observation, room)
        return cut if cut is not None and len(cut) <= room else None

    def _decided(self, observation: str, said: list[int], reply: Reply, *, cut: bool) -> Decision:
        marks: dict[str, Any] = {}
        if self._changed(reply):
            marks["weights_changed"] = True
        generations: tuple[Generation, ...] = ()
        if self._agent.endpoint.tokens:
            generation = self._generation(reply)
            generations = (generation,)
            cut = cut or (generation.extends is None and bool(self._turns))
        else:
            marks["tokens"] = {"prompt": reply.prompt_tokens, "completion": reply.completion_tokens}
        if cut:
            marks["new_root"] = True
        page = tuple(self._pages.action(reply.text))
        self._turns.append(Turn(observation, page, reply.stop == "stop"))
        self._said = [*said, *page]
        try:
            parsed = self._world.grammar.parse(reply.text)
        except InvalidAction:
            return Decision(reply.text, reply.thought, generations, info={**marks, "unparsed": True})
        if parsed.thought and reply.thought:
            marks["reasoning"] = reply.thought
        return Decision(parsed.action, parsed.thought or reply.thought, generations, info=marks)

    def _changed(self, reply: Reply) -> bool:
        """Whether somebody else writes than before. Raises WeightsChanged where that ends the episode."""
        writer = (reply.model, reply.fingerprint)
        before, self._writer = self._writer, writer
        if before is None or before == writer:
            return False
        agent = self._agent
        ours = FINGERPRINT.fullmatch(reply.fingerprint) is not None
        if agent.steady or (agent.steady is None and (agent.endpoint.tokens or before[0] != reply.model or ours)):
            raise WeightsChanged(
                f"the endpoint's weights changed after {len(self._turns)} turns of an episode",
                value=" ".join(writer),
                expected=" ".join(before),
                hint="steady=False marks it and goes on",
            )
        return True

    def _generation(self, reply: Reply) -> Generation:
        """The turn token by token. It extends the last one if the prompt begins with all that was known before."""
        tokens, known = reply.tokens, self._known
        if tokens is None:
            raise TokensMissing("a reply without token ids", value=reply.text[:80], hint="endpoints must return them")
        prompt = tokens.prompt
        extends = known is not None and len(prompt) > len(known) and np.array_equal(prompt[: len(known)], known)
        read = prompt[len(known) :] if extends and known is not None else prompt
        self._known = np.concatenate([prompt, tokens.ids])
        sampled = np.arange(len(read) + len(tokens.ids)) >= len(read)
        logprobs = np.concatenate([np.zeros(len(read), np.float32), tokens.logprobs])
        ids = np.concatenate([read, tokens.ids])
        last = len(self._turns) - 1 if extends else None
        return Generation(ids, sampled, logprobs, last, (), True, reply.version, reply.stop)
