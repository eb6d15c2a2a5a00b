"""The tokens of conversations: messages of the OpenAI form become the turns of a policy's dialect.

The text of a message does not determine the tokens that were sampled for it. A client that names its conversation (one
session an episode) therefore continues from the sampled tokens themselves; without a name, or if the client has changed
earlier messages, replies are tokenized again by the dialect.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.messages import Message
from evolvent.models.dialects import Chat, Dialect
from evolvent.trajectory import canonical_json

__all__ = ["ConversationCache", "prefix_digests"]


@dataclass(frozen=True, slots=True)
class _ReplyTokens:
    """All tokens of a conversation up to a reply's end, and whether its stop token is among them."""

    ids: NDArray[np.int32]
    stopped: bool


class ConversationCache:
    """The tokens of the newest replies, by session.

    Args:
        max_tokens: maximum number of tokens that are kept (the newest reply whatever its length). Evicted replies are
            tokenized again if they are continued.
    """

    def __init__(self, *, max_tokens: int = 1 << 23) -> None:
        self._remembered, self._held = max_tokens, 0
        self._known: OrderedDict[bytes, _ReplyTokens] = OrderedDict()

    def encode_prompt(self, messages: Sequence[Message], dialect: Dialect, session: str | None) -> list[int]:
        """Returns all tokens up to the start of the next reply.

        Replies of this session keep the tokens that were sampled. A conversation without such replies is what the
        model's chat template renders, and so is every one where the policy's history is "template".

        Raises:
            ConfigError: messages that are not a conversation (an optional system message, then user and assistant in
                turn, the user's last), or calls of tools.
            VocabularyMismatch: a word that the policy does not have.
        """
        system, turns = _split_messages(messages)
        user_texts, replies = turns[::2], turns[1::2]
        keeps_tokens = not (isinstance(dialect, Chat) and dialect.renders_past)
        keys = prefix_digests(messages[: len(messages) - 1], session) if session and keeps_tokens else []
        for position in range(len(replies), 0, -1):
            reply_tokens = self._lookup(keys[2 * (position - len(replies)) - 1]) if keys else None
            if reply_tokens is not None:
                ids = [*reply_tokens.ids.tolist(), *dialect.turn(user_texts[position], stopped=reply_tokens.stopped)]
                break
        else:
            if isinstance(dialect, Chat):
                return dialect.template.prompt(messages)
            position, ids = 0, list(dialect.open(system, user_texts[0]))
        for reply, text in zip(replies[position:], user_texts[position + 1 :], strict=True):
            ids += [*dialect.action(reply), *dialect.turn(text, stopped=True)]
        return ids

    def continue_templated(
        self, messages: Sequence[Message], session: str | None, tokens_after: Callable[[int, bool], list[int] | None]
    ) -> list[int] | None:
        """Returns all tokens up to the start of the next reply, for a conversation whose turns a template writes.

        Args:
            tokens_after: returns the tokens between the reply with this message index and the next reply; the flag says
                whether its stop token has been written already. None: unknown.
        Returns:
            None if no reply is known, or the tokens after it are unknown: the prompt must be tokenized again.
        """
        keys = prefix_digests(messages, session) if session else []
        for position in reversed(range(len(keys))):
            reply_tokens = self._lookup(keys[position]) if messages[position].role == "assistant" else None
            if reply_tokens is not None:
                following = tokens_after(position, reply_tokens.stopped)
                return None if following is None else [*reply_tokens.ids.tolist(), *following]
        return None

    def store_reply(
        self, messages: Sequence[Message], session: str, *, reply: Message, ids: Sequence[int], stopped: bool
    ) -> None:
        """Stores the tokens of a reply to these messages.

        Args:
            reply: the reply as the client received it.
            ids: all token ids, those of the prompt first.
        """
        key = prefix_digests([*messages, reply], session)[-1]
        replaced = self._known.pop(key, None)
        self._known[key] = _ReplyTokens(np.array(ids, np.int32), stopped)
        self._held += len(ids) - (0 if replaced is None else len(replaced.ids))
        while self._held > self._remembered and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._held -= len(oldest.ids)

    def _lookup(self, key: bytes) -> _ReplyTokens | None:
        reply_tokens = self._known.get(key)
        if reply_tokens is not None:
            self._known.move_to_end(key)
        return reply_tokens


def _split_messages(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """Returns the system text, and the texts of user and assistant in turn."""
    turns = list(messages)
    system = turns.pop(0).text if turns and turns[0].role == "system" else ""
    roles = [message.role for message in turns]
    expected = ["user", "assistant"] * (len(roles) // 2) + ["user"]
    if roles != expected or any(message.calls for message in messages):
        shown_roles = ", ".join(message.role for message in messages[:8]) or "nothing"
        hint = "send an optional system message, then user and assistant in turn, without tool calls"
        raise ConfigError(
            [Problem("messages", f"cannot be continued: {shown_roles}{' ...' * (len(messages) > 8)}", hint)]
        )
    return system, [message.text for message in turns]


def prefix_digests(messages: Sequence[Message], session: str | None) -> list[bytes]:
    """Returns a digest for every prefix of the messages: of the session, and of all roles, texts and calls so far."""
    digest = hashlib.sha256(canonical_json(session).encode())
    keys = []
    for message in messages:
        calls = [[call.name, dict(call.arguments)] for call in message.calls]
        digest.update(canonical_json([message.role, message.text, calls]).encode())
        keys.append(digest.copy().digest())
    return keys
