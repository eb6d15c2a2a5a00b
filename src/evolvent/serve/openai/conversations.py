"""Which tokens a conversation is: messages of the OpenAI form become the turns of a policy's dialect.

The text of a message does not say which tokens were sampled for it. A client that names its conversation (one session
an episode) is therefore continued from the very tokens that were written in it; without a name, or where the client has
changed what was said, replies are written anew by the dialect.
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
from evolvent.models.dialects import Dialect
from evolvent.trajectory import canonical_json

__all__ = ["Conversations"]


@dataclass(frozen=True, slots=True)
class _Said:
    """All tokens of a conversation up to a reply's end, and whether its stop token is among them."""

    ids: NDArray[np.int32]
    stopped: bool


class Conversations:
    """The tokens of the newest replies, by session.

    Args:
        remembered: most tokens that are kept (the newest reply whatever its length). What had to go is written anew if
            it is continued.
    """

    def __init__(self, *, remembered: int = 1 << 23) -> None:
        self._remembered, self._held = remembered, 0
        self._known: OrderedDict[bytes, _Said] = OrderedDict()

    def read(self, messages: Sequence[Message], dialect: Dialect, session: str | None) -> list[int]:
        """All tokens up to where the next reply begins.

        Raises:
            ConfigError: messages that are no conversation: an optional system message, then user and assistant in
                turn, the user's last; or calls of tools.
            VocabularyMismatch: a word that the policy does not have.
        """
        system, turns = _split(messages)
        heard, replies = turns[::2], turns[1::2]
        keys = _keys(messages[: len(messages) - 1], session) if session else []
        for at in range(len(replies), 0, -1):
            said = self._recalled(keys[2 * (at - len(replies)) - 1]) if keys else None
            if said is not None:
                ids = [*said.ids.tolist(), *dialect.turn(heard[at], stopped=said.stopped)]
                break
        else:
            at, ids = 0, list(dialect.open(system, heard[0]))
        for reply, text in zip(replies[at:], heard[at + 1 :], strict=True):
            ids += [*dialect.action(reply), *dialect.turn(text, stopped=True)]
        return ids

    def continued(
        self, messages: Sequence[Message], session: str | None, after: Callable[[int, bool], list[int] | None]
    ) -> list[int] | None:
        """All tokens up to where the next reply begins, of a conversation whose turns a template writes.

        Args:
            after: the tokens after the reply that is the message of this number up to the next reply; its stop token
                has been written already, or not. None: nobody knows.
        Returns:
            None where no reply is known, or nobody knows what stands after it: it is to be written anew.
        """
        keys = _keys(messages, session) if session else []
        for at in reversed(range(len(keys))):
            said = self._recalled(keys[at]) if messages[at].role == "assistant" else None
            if said is not None:
                more = after(at, said.stopped)
                return None if more is None else [*said.ids.tolist(), *more]
        return None

    def note(
        self, messages: Sequence[Message], session: str, *, reply: Message, ids: Sequence[int], stopped: bool
    ) -> None:
        """Remember what was written as a reply to these messages.

        Args:
            reply: as the client was given it. ids: all tokens, those of the prompt first.
        """
        key = _keys([*messages, reply], session)[-1]
        before = self._known.pop(key, None)
        self._known[key] = _Said(np.array(ids, np.int32), stopped)
        self._held += len(ids) - (0 if before is None else len(before.ids))
        while self._held > self._remembered and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._held -= len(oldest.ids)

    def _recalled(self, key: bytes) -> _Said | None:
        said = self._known.get(key)
        if said is not None:
            self._known.move_to_end(key)
        return said


def _split(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """What the system says, and what user and assistant say in turn."""
    spoken = list(messages)
    system = spoken.pop(0).text if spoken and spoken[0].role in ("system", "developer") else ""
    roles = [message.role for message in spoken]
    expected = ["user", "assistant"] * (len(roles) // 2) + ["user"]
    if roles != expected or any(message.calls for message in messages):
        said = ", ".join(message.role for message in messages[:8]) or "nothing"
        hint = "an optional system message, then user and assistant in turn; no calls of tools"
        raise ConfigError([Problem("messages", f"cannot be continued: {said}{' ...' * (len(messages) > 8)}", hint)])
    return system, [message.text for message in spoken]


def _keys(messages: Sequence[Message], session: str | None) -> list[bytes]:
    """A digest for every prefix of the messages: of the session, and of all roles, texts and calls so far."""
    digest = hashlib.sha256(canonical_json(session).encode())
    keys = []
    for message in messages:
        calls = [[call.name, dict(call.arguments)] for call in message.calls]
        digest.update(canonical_json([message.role, message.text, calls]).encode())
        keys.append(digest.copy().digest())
    return keys
