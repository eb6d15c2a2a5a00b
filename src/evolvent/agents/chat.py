"""The chat agent: a model behind an OpenAI-compatible endpoint acts in any world.

Records are text, unless the endpoint returns token ids and log-probabilities (`Endpoint(tokens=True)`): then
every turn becomes a token-exact generation. Where the endpoint's template makes the next prompt from other
tokens than were written (it strips thoughts, or tokenizes text anew), the turn is a new root; nothing is
tokenized here.
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
from evolvent.engine.asks import BlockingCall, Sampling
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.replies import FINGERPRINT, Reply
from evolvent.errors import ConfigError, ContextOverflow, InvalidAction, Problem, TokensMissing, WeightsChanged
from evolvent.messages import Instructions, Message
from evolvent.models.chat_template import ReplyText
from evolvent.models.dialects import example_turns, read_messages
from evolvent.trajectory import Generation, Task, Value
from evolvent.worlds.base import Grammar, Info, Parsed, World

__all__ = ["ChatAgent", "format_hint"]

_STRIDE, _MASK = 0x9E3779B97F4A7C15, (1 << 63) - 1  # seeds of turns as the language agent draws them


@dataclass(frozen=True)
class ChatAgent:
    """Acts by asking an endpoint. Its first message holds the world's instructions and the format of an action.

    Args:
        endpoint: which model, and whether token ids are demanded.
        sampling: the distribution of tokens. With ids demanded and an endpoint whose log-probabilities are not
            `processed`, it must be the model's own (temperature 1, everything kept): others would not be recorded.
        max_tokens: longest reply, its reasoning included.
        history: the policy for conversations that the endpoint reports as too long. It counts messages, not tokens.
        hint: text after the instructions; None: the form of an action, from the world's grammar; "": nothing.
        steady: end an episode (WeightsChanged) if the endpoint names another model or fingerprint than at its
            beginning; False: mark that in the step's info. None: end it where tokens are recorded, where the
            model's name changed, or where the fingerprint is one of ours; others change it for reasons of their own
            too.
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
            problems.append(Problem("max_tokens", f"got {self.max_tokens}, expected 1 or more"))
        if self.endpoint.tokens and not self.endpoint.processed and self.sampling != Sampling():
            message = f"log-probabilities at temperature 1 do not match {self.sampling}"
            problems.append(
                Problem("sampling", message, "set temperature to 1, or request processed log-probabilities")
            )
        if problems:
            raise ConfigError(problems)

    def begin(self, world: World, task: Task, *, seed: int) -> _ChatMind:
        return _ChatMind(self, world, seed)


def format_hint(grammar: Grammar) -> str:
    """Explains the form of an action to an untrained model, by an example in the grammar's own form."""
    example = grammar.render(Parsed("ACTION", "WHY"))
    if example.strip() == "ACTION":
        return "Answer with one action and nothing else."
    return f"Answer in this form, with your own words for ACTION{' and WHY' if 'WHY' in example else ''}:\n{example}"


class _MessageDialect:
    """A dialect whose tokens are whole messages, so that history policies can cut conversations as they cut token
    texts.
    """

    name = "messages"
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._pages: list[Message] = []

    def _add_message(self, role: str, text: str) -> int:
        self._pages.append(Message(role, text))
        return len(self._pages) - 1

    def open(self, instructions: str, observation: str) -> list[int]:
        """Returns the first messages: the system message (unless it is empty) and the first observation."""
        examples, observation = example_turns(instructions, observation)
        system = [self._add_message("system", str(instructions))] if instructions else []
        for text, reply in examples:
            system += [self._add_message("user", text), self._add_message("assistant", reply)]
        return [*system, self._add_message("user", observation)]

    def open_messages(self, messages: Iterable[Message]) -> list[int]:
        """Returns the messages of a conversation that begins with several."""
        return [self._add_message(message.role, message.text) for message in messages]

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        """Returns the message of the next observation."""
        return [self._add_message("user", observation)]

    def action(self, text: str) -> list[int]:
        """Returns the message of the model's reply."""
        return [self._add_message("assistant", text)]

    def text(self, ids: Iterable[int]) -> str:
        """Joins the texts of these messages."""
        return "\n".join(self._pages[index].text for index in ids)

    def read_reply(self, ids: Iterable[int]) -> ReplyText:
        """Returns the text of a reply."""
        return ReplyText(None, self.text(ids))

    def messages(self, ids: Iterable[int]) -> list[Message]:
        """Returns the messages themselves."""
        return [self._pages[index] for index in ids]


class _ChatMind:
    """One conversation. `_said` holds its messages so far, `_known` all tokens of the last turn."""

    def __init__(self, agent: ChatAgent, world: World, seed: int) -> None:
        self._agent, self._world, self._seed = agent, world, seed
        hint = getattr(world, "reply_hint", None) if agent.hint is None else agent.hint
        hint = format_hint(world.grammar) if hint is None else hint
        self._instructions: str = "\n\n".join(part for part in (world.instructions, hint) if part)
        if isinstance(world.instructions, Instructions):
            self._instructions = Instructions(
                self._instructions, world.instructions.examples, world.instructions.closing
            )
        self._session = secrets.token_hex(12)  # only a name: two runs of one seed share nothing at the endpoint
        self._pages = _MessageDialect()
        self._said: list[int] = []
        self._turns: list[Turn] = []
        self._known: NDArray[np.int32] | None = None
        self._writer: tuple[str, str] | None = None

    def act(self, observation: Value, info: Info) -> Acting:
        text = str(observation)
        message_ids = [*self._said, *self._pages.turn(text, stopped=True)] if self._turns else self._open(text, info)
        cut = False
        while True:
            try:
                (reply,) = yield (self._request(message_ids),)
                break
            except ContextOverflow:
                shorter = self._shorten(text, len(message_ids))
                if shorter is None:
                    return Decision("", ends="horizon", info={"context_full": True})
                message_ids, cut = shorter, True
        return self._decide(text, message_ids, reply, cut=cut)

    def _open(self, observation: str, info: Info | None = None) -> list[int]:
        if info and info.get("messages") and not info.get("tools"):
            return self._pages.open_messages(read_messages(info)[0])
        return self._pages.open(self._instructions, observation)

    def _request(self, message_ids: list[int]) -> BlockingCall:
        agent = self._agent
        seed = (self._seed + len(self._turns) * _STRIDE) & _MASK
        call = partial(
            agent.endpoint.chat,
            self._pages.messages(message_ids),
            sampling=agent.sampling,
            max_tokens=agent.max_tokens,
            seed=seed,
            session=self._session,
        )
        return BlockingCall(call, agent.endpoint.call_timeout_s)

    def _shorten(self, observation: str, length: int) -> list[int] | None:
        """Returns the conversation shortened by the history policy; None where it gives up or shortens nothing."""
        max_messages = length - 1
        shortened = self._agent.history(self._pages, self._instructions, self._turns, observation, max_messages)
        return shortened if shortened is not None and len(shortened) <= max_messages else None

    def _decide(self, observation: str, message_ids: list[int], reply: Reply, *, cut: bool) -> Decision:
        marks: dict[str, Any] = {}
        if self._check_writer(reply):
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
        self._said = [*message_ids, *page]
        try:
            parsed = self._world.grammar.parse(reply.text)
        except InvalidAction:
            return Decision(reply.text, reply.thought, generations, info={**marks, "unparsed": True})
        if parsed.thought and reply.thought:
            marks["reasoning"] = reply.thought
        return Decision(parsed.action, parsed.thought or reply.thought, generations, info=marks)

    def _check_writer(self, reply: Reply) -> bool:
        """Returns whether another model or fingerprint wrote this reply. Raises WeightsChanged where that ends the
        episode.
        """
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
                hint="steady=False marks the episode and continues",
            )
        return True

    def _generation(self, reply: Reply) -> Generation:
        """Converts the turn to a generation. It extends the previous one if the prompt begins with all known tokens."""
        tokens, known_ids = reply.tokens, self._known
        if tokens is None:
            raise TokensMissing(
                "the reply has no token ids", value=reply.text[:80], hint="use an endpoint that returns token ids"
            )
        prompt = tokens.prompt
        extends = (
            known_ids is not None
            and len(prompt) > len(known_ids)
            and np.array_equal(prompt[: len(known_ids)], known_ids)
        )
        read_ids = prompt[len(known_ids) :] if extends and known_ids is not None else prompt
        self._known = np.concatenate([prompt, tokens.ids])
        sampled = np.arange(len(read_ids) + len(tokens.ids)) >= len(read_ids)
        logprobs = np.concatenate([np.zeros(len(read_ids), np.float32), tokens.logprobs])
        ids = np.concatenate([read_ids, tokens.ids])
        last = len(self._turns) - 1 if extends else None
        return Generation(ids, sampled, logprobs, last, (), True, reply.version, reply.stop)
