"""Dialects, which convert a conversation with a world to tokens, one turn at a time and token-exact.

A dialect never tokenizes a conversation twice. It gives the tokens that open an episode, the tokens that stand
between one action and the next, and the tokens of an action. Text from worlds is encoded as plain text: control
tokens spelled out in an observation stay letters.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from evolvent.errors import ConfigError, VocabularyMismatch, unknown_name_problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Chat", "Dialect", "Lines", "Words", "dialect_for"]

_PIECES = re.compile(r"\w+|[^\w\s]")
_SYSTEM, _USER, _REPLY, _NEXT = "\ue000sys\ue000", "\ue000usr\ue000", "\ue000rep\ue000", "\ue000nxt\ue000"


class Dialect(Protocol):
    """A format that writes a conversation with a world as tokens.

    Attributes:
        name: how a saved policy names it.
        stop_ids: tokens that end an action.
    """

    name: str
    stop_ids: frozenset[int]

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
        """Decodes written tokens, without the stop token."""
        ...


class Words:
    """The embedded dialect: `<bos> <obs> o1 <act> a1 <eos> <obs> o2 <act> a2 <eos> ...`, whole words as tokens.

    Instructions are left out: the first observation says what is asked. Whatever a model writes can be read back: a
    control token among the words of an action reads as `?`.
    """

    name = "words"

    def __init__(self, tokenizer: Any) -> None:
        from evolvent.models.tiny import CONTROL_WORDS, NO_WORD, read_vocabulary

        self._ids = read_vocabulary(tokenizer)
        self._words = {index: NO_WORD if word in CONTROL_WORDS else word for word, index in self._ids.items()}
        self._bos, self._eos = self._ids["<bos>"], self._ids["<eos>"]
        self._obs, self._act = self._ids["<obs>"], self._ids["<act>"]
        self.stop_ids = frozenset([self._eos])
        self._encode = lru_cache(maxsize=8192)(self._encode_words)

    def _encode_words(self, text: str) -> tuple[int, ...]:
        try:
            return tuple([self._ids[word] for word in _PIECES.findall(text)])
        except KeyError as error:
            raise VocabularyMismatch(
                "a word that the policy's vocabulary does not have",
                value=f"{error.args[0]!r} in {text[:80]!r}",
                hint="build the policy for the worlds it is to act in, or use a model with an open vocabulary",
            ) from error

    def open(self, instructions: str, observation: str) -> list[int]:
        return [self._bos, self._obs, *self._encode(observation), self._act]

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        middle = [self._obs, *self._encode(observation), self._act]
        return middle if stopped else [self._eos, *middle]

    def action(self, text: str) -> list[int]:
        return [*self._encode(text), self._eos]

    def text(self, ids: Iterable[int]) -> str:
        return " ".join([self._words[int(index)] for index in ids if index != self._eos])


class _OpenVocabulary:
    """Encoding without control tokens, shared by the dialects over an open vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer: Any = tokenizer
        self._shown = str(getattr(tokenizer, "chat_template", None) or "")  # where control tokens are spelled

    def _encode_text(self, text: str) -> list[int]:
        """Encodes text from outside as letters alone, even where it spells control tokens."""
        letters = self._letter_tokenizer
        return self._encode_split(text) if letters is None else list(letters.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _letter_tokenizer(self) -> Any:
        """Returns the tokenizer that reads every mark of the template as letters; None: `_plain` does so already.

        `split_special_tokens` applies to tokens that are flagged as special alone. Many models flag `<tool_call>` or
        `</think>` otherwise, and some fine-tuned ones even the mark that ends a turn.
        """
        special_ids = set(self._tokenizer.all_special_ids)
        marks = [
            added_token
            for index, added_token in self._tokenizer.added_tokens_decoder.items()
            if not added_token.special
            and str(added_token).strip()
            and (str(added_token) in self._shown or index in special_ids)
        ]
        core = getattr(self._tokenizer, "backend_tokenizer", None)
        if not marks or core is None:
            return None
        core, marks = copy.deepcopy(core), copy.deepcopy(marks)
        for mark in marks:
            mark.special = True
        core.add_special_tokens(marks)
        core.no_truncation()
        core.no_padding()
        core.encode_special_tokens = True
        return core

    def _encode_split(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)) if text else []

    def _encode_template(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def _decode(self, ids: Iterable[int], stop: frozenset[int]) -> str:
        kept_ids = [int(index) for index in ids if int(index) not in stop]
        return str(self._tokenizer.decode(kept_ids, skip_special_tokens=False))


class Chat(_OpenVocabulary):
    """The model's own chat template. It is rendered once around placeholders, and cut into its fixed pieces.

    The pieces are encoded with control tokens, texts of worlds without, and actions stay the tokens that were
    sampled; so a turn always extends the tokens of the last one, and nothing is tokenized again.

    Raises:
        ConfigError: a tokenizer without chat template, or a template that drops or reorders turns.
    """

    name = "chat"

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer)
        with_system = self._render([("system", _SYSTEM), ("user", _USER)])
        conversation = self._render([("user", _USER), ("assistant", _REPLY), ("user", _NEXT)])
        self._shown += with_system + conversation
        self._before = self._split_at_marks(self._render([("user", _USER)]), (_USER,))
        self._system = self._split_at_marks(with_system, (_SYSTEM, _USER)) if _SYSTEM in with_system else None
        _, middle, after = self._split_at_marks(conversation, (_USER, _REPLY, _NEXT), keep=3)
        if not middle.startswith(self._before[1]):
            raise ConfigError("the chat template changes earlier turns", value=middle, expected=self._before[1])
        end_of_action, self._after = after, self._before[1]
        self._stop = self._stop_token(end_of_action)
        self.stop_ids = frozenset([self._stop])
        self._unstopped = self._encode_template(end_of_action)
        self._stopped = self._unstopped[self._unstopped.index(self._stop) + 1 :]

    def _render(self, turns: Sequence[tuple[str, str]]) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except (ValueError, TypeError) as error:
            raise ConfigError("the tokenizer's chat template cannot be used", value=str(error)) from error

    @staticmethod
    def _split_at_marks(text: str, marks: Sequence[str], *, keep: int | None = None) -> list[str]:
        pieces = []
        for mark in marks:
            before, match, text = text.partition(mark)
            if not match:
                raise ConfigError("the chat template drops a turn", value=text[:80], expected="every turn in order")
            pieces.append(before)
        pieces.append(text)
        return pieces if keep is None else pieces[:keep]

    def _stop_token(self, after_action: str) -> int:
        special = set(self._tokenizer.all_special_ids) | set(self._tokenizer.added_tokens_decoder)
        for index in self._encode_template(after_action):
            if index in special:
                return int(index)
        raise ConfigError("the chat template ends a reply with no control token", value=after_action)

    def open(self, instructions: str, observation: str) -> list[int]:
        if instructions and self._system is not None:
            start, between, end = self._system
            return [
                *self._encode_template(start),
                *self._encode_text(instructions),
                *self._encode_template(between),
                *self._encode_text(observation),
                *self._encode_template(end),
            ]
        first_message = f"{instructions}\n\n{observation}" if instructions else observation
        return [
            *self._encode_template(self._before[0]),
            *self._encode_text(first_message),
            *self._encode_template(self._before[1]),
        ]

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        head = self._stopped if stopped else self._unstopped
        return [*head, *self._encode_text(observation), *self._encode_template(self._after)]

    def action(self, text: str) -> list[int]:
        ids = self._encode_split(
            text
        )  # an action may hold marks of its model, such as those around a call, but ends once
        return [*(self._encode_text(text) if self._stop in ids else ids), self._stop]

    def text(self, ids: Iterable[int]) -> str:
        return self._decode(ids, self.stop_ids)


class Lines(_OpenVocabulary):
    """A dialect for base models without a chat template: `Observation:` and `Action:` lines; the end-of-text token
    stops.
    """

    name = "lines"

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer)
        eos = self._tokenizer.eos_token_id
        if eos is None:
            raise ConfigError("the tokenizer has no end-of-text token", hint="set eos_token, or give a chat template")
        self._eos = int(eos)
        self._bos = [int(self._tokenizer.bos_token_id)] if self._tokenizer.bos_token_id is not None else []
        self.stop_ids = frozenset([self._eos])

    def open(self, instructions: str, observation: str) -> list[int]:
        head = f"{instructions}\n\n" if instructions else ""
        return [*self._bos, *self._encode_text(f"{head}Observation: {observation}\nAction:")]

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        return [*([] if stopped else [self._eos]), *self._encode_text(f"\nObservation: {observation}\nAction:")]

    def action(self, text: str) -> list[int]:
        ids = self._encode_split(f" {text}")
        return [*(self._encode_text(f" {text}") if self._eos in ids else ids), self._eos]

    def text(self, ids: Iterable[int]) -> str:
        return self._decode(ids, self.stop_ids).strip()


_KINDS: dict[str, type[Words] | type[Chat] | type[Lines]] = {"words": Words, "chat": Chat, "lines": Lines}


def dialect_for(tokenizer: Any, name: str | None = None) -> Dialect:
    """Returns the dialect of a name, or the fitting one: the chat template where there is one, else lines.

    Raises:
        ConfigError: an unknown name, or a dialect that does not fit the tokenizer.
    """
    if name is None:
        name = "chat" if getattr(tokenizer, "chat_template", None) else "lines"
    if name not in _KINDS:
        raise ConfigError([unknown_name_problem("dialect", name, _KINDS)])
    return _KINDS[name](tokenizer)
