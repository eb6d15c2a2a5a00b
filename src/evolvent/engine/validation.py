"""Validation of asks before they are queued, so that an invalid ask is refused at once."""

from __future__ import annotations

from typing import Any

from evolvent.engine.asks import Ask, SampleAsk
from evolvent.engine.trie import Prefix, Trie
from evolvent.errors import ConfigError, ContextOverflow, StaleNode, VocabularyMismatch

__all__ = ["validate_ask"]


def validate_ask(ask: Ask, trie: Trie | None, *, context: int, vocabulary: int) -> list[int]:
    """Checks an ask and returns its tokens as a list.

    Args:
        trie: whose nodes are accepted (None: the engine has no trie and checks its nodes itself).

    Raises:
        StaleNode: a node of another engine or policy version. ContextOverflow: a prompt longer than the context, or
        one that leaves no room to sample. VocabularyMismatch: a token id, of the text or of a choice, that the
            model
        does not have. ConfigError: nothing to continue, no seeds, no tokens to sample, a constraint beside choices,
            or
        one that allows nothing.
    """
    node: Any = ask.node
    if trie is not None and node is not None and (not isinstance(node, Prefix) or node.segment.trie is not trie):
        raise StaleNode(
            "a node of another engine or of an older policy version",
            value=repr(node),
            expected=f"a node of this engine at version {trie.version}",
            hint="begin again from the tokens",
        )
    tokens = ask.tokens if isinstance(ask.tokens, list) else [int(token) for token in ask.tokens]
    _check_vocabulary(tokens, vocabulary)
    length = (0 if node is None else node.length) + len(tokens)
    if not length:
        raise ConfigError("an ask needs tokens or a node", value=ask, expected="at least one token to look back on")
    sampling = isinstance(ask, SampleAsk)
    if length > context - sampling:
        raise ContextOverflow(
            "a prompt longer than the context",
            value=f"{length} tokens",
            expected=f"at most {context - sampling} of {context}",
            hint="shorten it, or choose a history policy",
        )
    _check_vocabulary([token for choice in getattr(ask, "choices", None) or () for token in choice], vocabulary)
    if isinstance(ask, SampleAsk) and (ask.max_tokens < 1 or not ask.seeds):
        raise ConfigError(
            "nothing to sample",
            value=f"max_tokens {ask.max_tokens}, {len(ask.seeds)} seeds",
            expected="at least one token and one seed",
        )
    if isinstance(ask, SampleAsk) and ask.constraint is not None:
        if ask.choices is not None:
            raise ConfigError("an ask has choices and a constraint", hint="give one of them")
        if not ask.constraint.allowed()[:vocabulary].any():
            raise ConfigError(
                "a constraint that allows no token",
                value=ask.constraint.fault,
                hint="a constraint is a state: after a whole text nothing may follow",
            )
    return tokens


def _check_vocabulary(tokens: list[int], vocabulary: int) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        unknown_ids = [token for token in tokens if not 0 <= token < vocabulary]
        raise VocabularyMismatch(
            "token ids that the model does not have", value=unknown_ids[:5], expected=f"0 to {vocabulary - 1}"
        )
