"""Dialects, which convert a conversation with a world to tokens, one turn at a time and token-exact.

A dialect never tokenizes a conversation twice. It gives the tokens that open an episode, the tokens that stand
between one action and the next, and the tokens of an action. Text from worlds is encoded as plain text: control
tokens spelled out in an observation stay letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from evolvent.errors import ConfigError, SampleInvalid, VocabularyMismatch, unknown_name_problem
from evolvent.messages import Instructions, Message, Tool
from evolvent.models.chat_template import ChatTemplate, ConversationTokens, ReplyText
from evolvent.models.text_encoder import Piece, TextEncoder
from evolvent.trajectory import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "Chat",
    "Dialect",
    "HistoryMode",
    "Lines",
    "Words",
    "continue_conversation",
    "dialect_for",
    "example_turns",
    "open_conversation",
    "read_messages",
]

HistoryMode = Literal["append", "template"]

_PIECES = re.compile(r"\w+|[^\w\s]")


class Dialect(Protocol):
    """A format that writes a conversation with a world as tokens.

    Attributes:
        name: how a saved policy names it.
        stop_ids: tokens that end an action.
        stop_strings: texts that end an action.
    """

    name: str
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]

    def open(self, instructions: str, observation: str) -> list[int]:
        """Returns all tokens of a new root, up to where the first action begins."""
        ...

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        """Returns the tokens between an action and the next; `stopped`: the action's stop token was written already."""
        ...

    def action(self, text: str) -> list[int]:
        """Returns the tokens of an action, its stop token last."""
        ...

    def text(self, ids: Iterable[int]) -> str:
        """Decodes written tokens, thoughts included, without what ends them."""
        ...

    def read_reply(self, ids: Iterable[int]) -> ReplyText:
        """Reads a reply back from its tokens: the thought that it begins with, and the text."""
        ...


def example_turns(instructions: str, observation: str) -> tuple[list[tuple[str, str]], str]:
    """Returns the example turns of instructions, and the text that the first reply answers."""
    return instructions.open_with(observation) if isinstance(instructions, Instructions) else ([], observation)


class Words:
    """The embedded dialect: `<bos> <obs> o1 <act> a1 <eos> <obs> o2 <act> a2 <eos> ...`, whole words as tokens.

    Instructions are left out: the first observation says what is asked. Whatever a model writes can be read back: a
    control token among the words of an action reads as `?`.
    """

    name = "words"

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from evolvent.models.tiny import CONTROL_WORDS, NO_WORD, read_vocabulary

        self._ids = read_vocabulary(tokenizer)
        self._words = {index: NO_WORD if word in CONTROL_WORDS else word for word, index in self._ids.items()}
        self._bos, self._eos = self._ids["<bos>"], self._ids["<eos>"]
        self._obs, self._act = self._ids["<obs>"], self._ids["<act>"]
        self.stop_ids = frozenset([self._eos])
        self.stop_strings: tuple[str, ...] = ()
        self._encode = lru_cache(maxsize=8192)(self._encode_words)

    def _encode_words(self, text: str) -> tuple[int, ...]:
        try:
            return tuple([self._ids[word] for word in _PIECES.findall(text)])
        except KeyError as error:
            raise VocabularyMismatch(
                "a word is missing from the policy's vocabulary",
                value=f"{error.args[0]!r} in {text[:80]!r}",
                hint="build the policy for the worlds in which it acts, or use a model with an open vocabulary",
            ) from error

    def open(self, instructions: str, observation: str) -> list[int]:
        examples, text = example_turns(instructions, observation)
        turns = [index for example in examples for index in self._encode_example(*example)]
        return [self._bos, *turns, self._obs, *self._encode(text), self._act]

    def _encode_example(self, observation: str, action: str) -> list[int]:
        return [*self.turn(observation, stopped=True), *self.action(action)]

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        middle = [self._obs, *self._encode(observation), self._act]
        return middle if stopped else [self._eos, *middle]

    def action(self, text: str) -> list[int]:
        return [*self._encode(text), self._eos]

    def text(self, ids: Iterable[int]) -> str:
        return " ".join([self._words[int(index)] for index in ids if index != self._eos])

    def read_reply(self, ids: Iterable[int]) -> ReplyText:
        return ReplyText(None, self.text(ids))


class Chat:
    """The chat template of the model's tokenizer, see `ChatTemplate`.

    A turn always extends the tokens of the last one: sampled replies stay the tokens that were sampled.

    Args:
        tokenizer: of Hugging Face, with a chat template.
        history: "append": past replies stay as they were sampled, thoughts included; log-probabilities are then those
            of the sampler, and every token is computed once. "template": every turn is a new root, with the past as
            the template renders it. Both are the same for templates that leave the past unchanged.
        end_ids: further tokens that end a reply, such as those of the model's generation_config.
    Attributes:
        template: the analyzed template. history: as given.
    Raises:
        ConfigError: a tokenizer without chat template, or a template that drops or reorders turns.
    """

    name = "chat"

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, history: HistoryMode = "append", end_ids: Iterable[int] = ()
    ) -> None:
        if history not in get_args(HistoryMode):
            raise ConfigError([unknown_name_problem("history", history, get_args(HistoryMode))])
        self.template, self.history = ChatTemplate(tokenizer, end_ids=end_ids), history
        self.stop_ids, self.stop_strings = self.template.stop_ids, self.template.stop_strings

    def open(self, instructions: str, observation: str) -> list[int]:
        return self.template.prompt(_opening(instructions, observation))

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        return self.template.between(observation, stopped=stopped)

    def open_messages(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Returns the tokens of a conversation with its tools, up to where the next reply begins.

        Raises:
            SampleInvalid: the template refuses the messages, or does not show tools.
        """
        return self.template.prompt(messages, tools)

    def turn_messages(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Returns the tokens of messages between a reply and the next; raises SampleInvalid as `open_messages`."""
        return self.template.between_messages(messages, stopped=stopped)

    def action(self, text: str) -> list[int]:
        return self.template.reply(text)

    def text(self, ids: Iterable[int]) -> str:
        return self.template.strip_frame(self.template.decode(ids))

    def read_reply(self, ids: Iterable[int]) -> ReplyText:
        return self.template.read_reply(ids)

    @property
    def changes_past(self) -> bool:
        """Returns whether the template renders past replies otherwise than they were written."""
        return not (self.template.extends and self.template.keeps_thoughts)

    @property
    def renders_past(self) -> bool:
        """Returns whether every turn is rendered anew, because the template changes the past."""
        return self.history == "template" and self.changes_past

    def rendered_prompt(
        self, instructions: str, past: Sequence[tuple[str, Sequence[int]]], observation: str
    ) -> list[int]:
        """Returns the prompt of a conversation with its past as the template renders it.

        Args:
            past: observations, and the token ids of the replies to them.
        """
        messages = list[Message]()
        for text, ids in past:
            if self.template.takes_thoughts:
                reply = self.template.read_reply(ids)
                extra = {"reasoning_content": reply.thought} if reply.thought else {}
                messages += [Message("user", text), Message("assistant", reply.text, extra=extra)]
            else:  # the template decides what stays of the text
                messages += [Message("user", text), Message("assistant", self.text(ids))]
        *opening, first = _opening(instructions, past[0][0] if past else observation)
        if messages:
            return self.template.prompt([*opening, first, *messages[1:], Message("user", observation)])
        return self.template.prompt([*opening, first])

    def conversations(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[ConversationTokens]:
        """Returns a conversation as tokens: one sequence, or with history "template" one for every reply.

        Raises:
            SampleInvalid: the template refuses the conversation, or drops a turn.
        """
        if self.renders_past:
            return self.template.exchanges(messages, tools)
        return [self.template.conversation(messages, tools)]


def read_messages(info: JsonObject) -> tuple[list[Message], list[Tool]]:
    """Returns the messages and tools that an Env's info holds in OpenAI's form (`worlds/prompts`).

    >>> read_messages({"messages": [{"role": "user", "content": "Hi"}]})[0][0].text
    'Hi'
    """
    messages = [Message.of_openai(row) for row in info.get("messages") or ()]
    return messages, [Tool.of_openai(row) for row in info.get("tools") or ()]


def open_conversation(dialect: Dialect, instructions: str, observation: str, info: JsonObject) -> list[int]:
    """Returns the tokens that open an episode: by the chat template where the info holds messages, else by text.

    A template that does not show tools, or renders the past otherwise, gets the observation, which says the same.
    """
    if info.get("messages") and isinstance(dialect, Chat) and not dialect.renders_past:
        messages, tools = read_messages(info)
        with suppress(SampleInvalid):
            return dialect.open_messages(messages, tools)
    return dialect.open("" if info.get("messages") else instructions, observation)


def continue_conversation(dialect: Dialect, observation: str, info: JsonObject, *, stopped: bool) -> list[int]:
    """Returns the tokens between an action and the next: results of tools by the chat template, else a user's text."""
    if info.get("messages") and isinstance(dialect, Chat) and not dialect.renders_past:
        with suppress(SampleInvalid):
            return dialect.turn_messages(read_messages(info)[0], stopped=stopped)
    return dialect.turn(observation, stopped=stopped)


def _opening(instructions: str, observation: str) -> list[Message]:
    """Returns the messages before the first reply; the last of them is the first observation."""
    examples, text = example_turns(instructions, observation)
    messages = [Message("system", str(instructions))] if instructions else []
    for example_text, reply in examples:
        messages += [Message("user", example_text), Message("assistant", reply)]
    return [*messages, Message("user", text)]


class Lines:
    """A dialect for base models without a chat template: `Observation:` and `Action:` lines.

    The tokenizer's end-of-text token ends an action, and so do `end_ids`.
    """

    name = "lines"

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, end_ids: Iterable[int] = ()) -> None:
        self._tokenizer: Any = tokenizer
        eos = self._tokenizer.eos_token_id
        if eos is None:
            raise ConfigError(
                "the tokenizer has no end-of-text token", hint="set its eos_token, or give it a chat template"
            )
        self._encoder = TextEncoder(tokenizer, str(tokenizer.eos_token))
        self._eos, self._eos_text = int(eos), str(tokenizer.eos_token)
        self._bos_text = str(tokenizer.bos_token) if tokenizer.bos_token_id is not None else ""
        self.stop_ids = frozenset([self._eos, *(int(index) for index in end_ids if 0 <= int(index) < len(tokenizer))])
        self.stop_strings: tuple[str, ...] = ()

    def _encode_behind(self, context: str, pieces: Sequence[Piece]) -> list[int]:
        return self._encoder.encode([Piece(context), *pieces]).after(len(context))

    def open(self, instructions: str, observation: str) -> list[int]:
        examples, first_text = example_turns(instructions, observation)
        texts = [*(text for text, _ in examples), first_text]
        head = f"{instructions}\n\n" if instructions else ""
        text = Piece(f"{head}Observation: {texts[0]}\nAction:", is_content=True)
        ids = self._encoder.encode([Piece(self._bos_text), text]).ids
        for (_, reply), next_text in zip(examples, texts[1:], strict=True):
            ids = [*ids, *self.action(reply), *self.turn(next_text, stopped=True)]
        return ids

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        text = Piece(f"\nObservation: {observation}\nAction:", is_content=True)
        ids = self._encode_behind(self._eos_text, [text])
        return ids if stopped else [self._eos, *ids]

    def action(self, text: str) -> list[int]:
        is_forged = any(mark in text for mark in (self._eos_text,))
        return [*self._encode_behind("Action:", [Piece(f" {text}", is_forged)]), self._eos]

    def text(self, ids: Iterable[int]) -> str:
        kept_ids = [int(index) for index in ids if int(index) not in self.stop_ids]
        return str(self._tokenizer.decode(kept_ids, skip_special_tokens=False)).strip()

    def read_reply(self, ids: Iterable[int]) -> ReplyText:
        return ReplyText(None, self.text(ids))


_NAMES = ("words", "chat", "lines")


def dialect_for(
    tokenizer: PreTrainedTokenizerBase,
    name: str | None = None,
    *,
    history: HistoryMode = "append",
    end_ids: Iterable[int] = (),
) -> Dialect:
    """Returns the dialect of a name, or the fitting one: the chat template where there is one, else lines.

    Args:
        history: of the dialect chat, see `Chat`.
        end_ids: further tokens that end a reply, such as those of the model's generation_config.
    Raises:
        ConfigError: an unknown name, or a dialect that does not fit the tokenizer.
    """
    if name is None:
        name = "chat" if getattr(tokenizer, "chat_template", None) else "lines"
    if name == "words":
        return Words(tokenizer)
    if name == "chat":
        return Chat(tokenizer, history=history, end_ids=end_ids)
    if name == "lines":
        return Lines(tokenizer, end_ids=end_ids)
    raise ConfigError([unknown_name_problem("dialect", name, _NAMES)])
