"""Constrained decoding: restricts the next tokens so that an answer becomes calls that parse and fit their
schemas.

The automaton is llguidance's (microsoft/llguidance, MIT): a grammar over bytes is matched against the trie of a
tokenizer's tokens. Any fast tokenizer of Hugging Face has such bytes; a vocabulary of whole words gets them
here, the word and a space. `GrammarConstraint` implements the engine's `Constraint` (`engine/asks.py`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, MissingExtra, SampleInvalid, VocabularyMismatch
from evolvent.messages import CallSample, Tool
from evolvent.models.call_grammars import CallForm, Grammar, build_grammar
from evolvent.models.call_schemas import AnswerLimits, close_exclusive_bounds
from evolvent.models.grammar_limits import MAX_ROW_ITEMS, check_schemas, compile_grammar
from evolvent.models.policy import Policy
from evolvent.models.toolchat import ChatTools
from evolvent.models.toolprompt import Compact, FourBlocks, ToolPrompt
from evolvent.trajectory import JsonObject, canonical_json

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from transformers import PreTrainedTokenizerBase

__all__ = ["CallConstraints", "GrammarConstraint"]

_TAGS = ("<tool_call>", "</tool_call>")
_MAX_GRAMMARS = 256  # grammars kept ready; the requests of a panel share few sets of tools


class GrammarConstraint:
    """The state of one text in a grammar: the tokens that may follow those written so far.

    Args:
        matcher: at the beginning, or wherever the text is.
        size: of the tokenizer's vocabulary.
    """

    def __init__(self, matcher: LLMatcher, size: int) -> None:
        self._matcher, self._size = matcher, size
        self._allowed: NDArray[np.bool_] | None = None

    def copy(self) -> GrammarConstraint:
        """Returns an independent copy of the same state."""
        copied = GrammarConstraint(self._matcher.deep_copy(), self._size)
        copied._allowed = self._allowed
        return copied

    def allowed(self) -> NDArray[np.bool_]:
        """Returns the mask of the tokens that may follow, `[V]`. Read only.

        The stop tokens are among them where the text may end.
        """
        if self._allowed is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._allowed = np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)
            if self._matcher.is_error():
                self._allowed = np.zeros(self._size, np.bool_)
        return self._allowed

    def advance(self, token: int) -> None:
        """Takes an allowed token; after any other token nothing is allowed."""
        self._matcher.consume_token(int(token))
        self._allowed = None

    @property
    def fault(self) -> str:
        """Returns the reason why the grammar could not be followed further; empty: nothing is wrong."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""


class CallConstraints:
    """Builds the constraints of a policy's answers to requests with tools.

    Args:
        policy: its tokenizer (of Hugging Face, fast) and the stop tokens of its dialect are used.
        limits: how much an answer may hold where schemas leave it open.
    Raises:
        MissingExtra: llguidance is not installed. ConfigError: a tokenizer that is not fast.
    """

    def __init__(self, policy: Policy, *, limits: AnswerLimits | None = None) -> None:
        try:
            import llguidance  # noqa: F401
        except ImportError as error:
            raise MissingExtra("constrained", "decoding constrained to valid calls") from error
        self.limits = limits or AnswerLimits()
        self._spaced = policy.dialect.name == "words"
        make_tokenizer = _spaced_tokenizer if self._spaced else _byte_tokenizer
        added = {} if self._spaced else policy.tokenizer.added_tokens_decoder
        self._marks = {
            str(added_token): int(index)
            for index, added_token in added.items()
            if added_token.special and str(added_token) in _TAGS
        }
        self._tokenizer, self._words = make_tokenizer(policy.tokenizer, sorted(policy.dialect.stop_ids))
        self._known: OrderedDict[str, GrammarConstraint] = OrderedDict()
        self._lock = Lock()

    def for_tools(
        self,
        tools: Sequence[Tool],
        *,
        form: CallForm,
        abstain: str | None = "[]",
        fenced: bool = False,
        answer_schema: JsonObject | None = None,
    ) -> GrammarConstraint:
        """Returns the constraint of an answer to a request with these tools, at its beginning.

        Args:
            form: how calls are written. A vocabulary of whole words has "words" alone.
            abstain, fenced, answer_schema: see `call_grammars.build_grammar`.
        Raises:
            SampleInvalid: tools, or schemas, that no constraint can be made of, or that are beyond a bound of
                `grammar_limits`; it says which and why.
            VocabularyMismatch: a name with a word that the policy does not know. ConfigError: see `grammar`.
        """
        if answer_schema is not None and self._spaced:
            raise ConfigError("a policy over whole words cannot write JSON", expected="a policy over pieces of words")
        rows = [[tool.name, dict(tool.parameters)] for tool in tools]
        try:
            key = canonical_json([rows, form, abstain, fenced, answer_schema])
        except (TypeError, ValueError, RecursionError) as error:
            raise SampleInvalid("the schemas of the tools are not JSON", value=str(error)) from error

        def build() -> GrammarConstraint:
            schemas = [tool.parameters for tool in tools] + ([] if answer_schema is None else [answer_schema])
            needs_trial = check_schemas(schemas)
            call_grammar = build_grammar(
                tools,
                form=form,
                limits=self.limits,
                abstain=abstain,
                fenced=fenced,
                spaced=self._spaced,
                marks=self._marks,
                answer_schema=answer_schema,
            )
            return self._build_constraint(call_grammar, needs_trial=needs_trial)

        return self._get_constraint(key, build)

    def for_schema(self, schema: JsonObject) -> GrammarConstraint:
        """Returns the constraint of an answer that is JSON of a schema, on one line with single spaces.

        Raises:
            SampleInvalid: a schema that no constraint can be made of. ConfigError: a vocabulary of whole words.
        """
        from llguidance import LLMatcher

        if self._spaced:
            raise ConfigError("a policy over whole words cannot write JSON", expected="a policy over pieces of words")
        try:
            key = canonical_json(["schema", schema])
        except (TypeError, ValueError, RecursionError) as error:
            raise SampleInvalid("the schema is not JSON", value=str(error)) from error

        def build() -> GrammarConstraint:
            needs_trial = check_schemas([schema])
            style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
            try:
                text = LLMatcher.grammar_from_json_schema(json.dumps(close_exclusive_bounds(schema)), defaults=style)
            except ValueError as error:
                raise SampleInvalid("the schema cannot be constrained", value=str(error)[:300]) from error
            return self._build_constraint(Grammar(text, frozenset()), needs_trial=needs_trial)

        return self._get_constraint(key, build)

    def _get_constraint(self, key: str, build: Callable[[], GrammarConstraint]) -> GrammarConstraint:
        """Returns a copy of the constraint of a key, which is built once; any thread may ask."""
        with self._lock:
            constraint = self._known.get(key)
        if constraint is None:
            constraint = build()  # outside of the lock: others need not wait for a large grammar
        with self._lock:
            self._known[key] = constraint
            self._known.move_to_end(key)
            while len(self._known) > _MAX_GRAMMARS:
                self._known.popitem(last=False)
            return constraint.copy()

    def for_prompt(self, prompt: ToolPrompt, sample: CallSample) -> GrammarConstraint:
        """Returns the constraint of an answer to a prompt, in the form that the prompt reads back.

        Raises:
            ConfigError: a prompt of unknown form. What `of` raises.
        """
        if isinstance(prompt, Compact):
            return self.for_tools(sample.tools, form="words")
        if isinstance(prompt, FourBlocks):
            return self.for_tools(sample.tools, form="json", fenced=True)
        if isinstance(prompt, ChatTools) and prompt.form in ("json", "xml", "python"):
            return self.for_tools(sample.tools, form=prompt.form, abstain=prompt.abstain)
        raise ConfigError(
            "the prompt does not define a call format",
            value=type(prompt).__name__,
            expected="Compact, FourBlocks or ChatTools",
        )

    def _build_constraint(self, grammar: Grammar, *, needs_trial: bool) -> GrammarConstraint:
        from llguidance import LLMatcher, LLParserLimits

        unknown_words = sorted(grammar.vocabulary - self._words) if self._spaced else []
        if unknown_words:
            raise VocabularyMismatch(
                "calls need words that are missing from the policy's vocabulary",
                value=unknown_words[:5],
                hint="build the policy for the worlds in which it acts",
            )
        compile_grammar(grammar.text, needs_trial=needs_trial)
        limits = LLParserLimits(max_items_in_row=MAX_ROW_ITEMS)
        matcher = LLMatcher(self._tokenizer, grammar.text, log_level=0, limits=limits)
        constraint = GrammarConstraint(matcher, self._tokenizer.vocab_size)
        if matcher.is_error() or not constraint.allowed().any():
            raise SampleInvalid(
                "calls of these tools cannot be constrained",
                value=constraint.fault[:300],
                hint="simplify their schemas, or decode without the constraint",
            )
        return constraint


def _byte_tokenizer(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> tuple[Any, frozenset[str]]:
    from llguidance.hf import from_tokenizer
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(
            "constraints need a fast tokenizer", value=type(tokenizer).__name__, expected="a PreTrainedTokenizerFast"
        )
    return from_tokenizer(tokenizer, eos_token=list(stop_ids)), frozenset()


class _WordTokenizer:
    """A vocabulary of whole words as llguidance wants it: the bytes of every token, a space behind each.

    With the space no token's bytes begin another's, so that `or` is no beginning of `order`.
    """

    def __init__(self, vocabulary: Sequence[str], special: Sequence[int], stop: int) -> None:
        self.eos_token_id, self.bos_token_id = stop, None
        marks = set(special)
        self.tokens = [
            f"<{word}>".encode() if index in marks else f"{word} ".encode() for index, word in enumerate(vocabulary)
        ]
        self.special_token_ids = list(special)

    def __call__(self, text: bytes | str) -> list[int]:
        """Returns no tokens; it is never needed, since grammars here are matched without forcing text."""
        return []


def _spaced_tokenizer(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> tuple[Any, frozenset[str]]:
    from llguidance import LLTokenizer, TokenizerWrapper

    from evolvent.models.tiny import CONTROL_WORDS, NO_WORD, read_vocabulary

    token_ids = read_vocabulary(tokenizer)
    vocabulary = [""] * (max(token_ids.values()) + 1)
    for word, index in token_ids.items():
        vocabulary[index] = word
    # What no text holds, a control word or the mark for one, may not be written either.
    special = [index for index, word in enumerate(vocabulary) if word in (*CONTROL_WORDS, NO_WORD, "")]
    wrapper = TokenizerWrapper(_WordTokenizer(vocabulary, special, stop_ids[0]))
    return LLTokenizer(wrapper, eos_token=list(stop_ids)), frozenset(vocabulary) - {
        vocabulary[index] for index in special
    }
