"""Text generation of a search: the ends of spans and texts, the decoding of tokens, and the states in between.

Tokens are kept as they were sampled and are never made again from text. A span is the text up to a separator,
the separator included; a text is over at a stop token, at a mark that says so, or at its token limit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from evolvent.engine.asks import GREEDY, Node, SampleAsk, Sampling
from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import sample_seed

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["TextState", "Writing", "begin_text"]

_REDUCE: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "min": min,
    "prod": math.prod,
}


@dataclass(frozen=True, slots=True, eq=False)
class TextState:
    """A text so far. `node` + `pending` are the tokens of prompt and text.

    Args:
        prompt, written: token ids, `[P]` and `[T]`. logprobs: `[T]`, of the distribution that each was taken from.
        ends: positions in `written`, exclusive, at which a span ends.
        node: a prefix that the engine knows; None: nothing. pending: tokens after it that were not fed yet.
        text: the written text, without stop tokens.
        stop: why the text is over ("stop", "finished", "length"); empty: it goes on.
        seed: the base of its samples' seeds: the search's own seed and the tokens so far.
        above: the state before it. version: of the policy that wrote.
    """

    prompt: tuple[int, ...]
    written: tuple[int, ...]
    logprobs: tuple[float, ...]
    ends: tuple[int, ...]
    node: Node | None
    pending: tuple[int, ...]
    text: str = ""
    stop: str = ""
    seed: int = 0
    above: TextState | None = None
    version: int = 0

    @property
    def length(self) -> int:
        """Returns the number of tokens of prompt and text."""
        return len(self.prompt) + len(self.written)


def begin_text(prompt: Sequence[int], *, seed: int = 0) -> TextState:
    """Returns the root of a search over texts.

    Args:
        prompt: its tokens. seed: every sample derives from it and from the tokens before.
    Raises:
        ConfigError: no prompt.
    """
    if not len(prompt):
        raise ConfigError([Problem("prompt", "got no tokens, expected at least one")])
    ids = tuple(int(token) for token in prompt)
    return TextState(ids, (), (), (), None, ids, seed=sample_seed(seed, "text", *ids))


@dataclass(frozen=True)
class Writing:
    """The settings and limits of text generation.

    Args:
        decode: token ids to text, as the engine's tokenizer does it. stop_ids: tokens that end a text.
        context: maximum tokens of prompt and text. max_tokens: maximum tokens of a text.
        level: whether an action is a span, sampled, or one token: the likeliest ones.
        separators: texts that end a span. span_tokens: maximum tokens of a span.
        sampling: the distribution; token-level search takes its temperature alone (0: as 1).
        finished: whether a text is over, called at the end of each action; None: only a stop token ends it.
        reduce: how the scores of a path's spans become its value.
        version: of the policy that writes, for the record.
    Raises:
        ConfigError: sizes below 1, or an empty separator; all of them.
    """

    decode: Callable[[list[int]], str]
    stop_ids: frozenset[int]
    context: int
    max_tokens: int
    level: Literal["span", "token"] = "span"
    separators: tuple[str, ...] = ("\n",)
    span_tokens: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    finished: Callable[[str], bool] | None = None
    reduce: Literal["last", "min", "prod"] = "last"
    version: int = 0

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("context", "max_tokens", "span_tokens")}
        problems = [Problem(name, f"got {size}, expected 1 or more") for name, size in sizes.items() if size < 1]
        if not all(self.separators):
            problems.append(Problem("separators", "got an empty text", "use non-empty texts that end a span"))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def for_policy(cls, policy: Policy, *, max_tokens: int, **settings: Any) -> Writing:
        """Builds a policy's settings: its tokenizer, stop tokens, context and version. `settings`: the other fields."""
        return cls(
            policy.tokenizer.decode,
            policy.dialect.stop_ids,
            policy.context,
            max_tokens,
            version=policy.version,
            **settings,
        )

    def text(self, ids: Sequence[int]) -> str:
        """Decodes written tokens, without stop tokens."""
        return str(self.decode([token for token in ids if token not in self.stop_ids]))

    def over(self, written: Sequence[int], length: int) -> str:
        """Returns why a text is over; empty: it goes on.

        Args:
            written: its tokens. length: the number of its tokens and those of the prompt.
        """
        if len(written) and written[-1] in self.stop_ids:
            return "stop"
        if len(written) and self.finished is not None and self.finished(self.text(written)):
            return "finished"
        return "length" if len(written) >= self.max_tokens or length >= self.context else ""

    def span(self, state: TextState, seeds: tuple[int, ...], *, greedy: bool = False) -> SampleAsk:
        """Builds the ask for one span after a state, one sample per seed."""
        return self._build_ask(
            state.node,
            state.pending,
            seeds,
            max_new_tokens=min(self.span_tokens, self._max_new_tokens(state)),
            separators=self.separators,
            greedy=greedy,
        )

    def rest(self, state: TextState, seeds: tuple[int, ...], *, greedy: bool = False) -> SampleAsk:
        """Builds the ask for the rest of the text after a state."""
        return self._build_ask(
            state.node, state.pending, seeds, max_new_tokens=self._max_new_tokens(state), greedy=greedy
        )

    def whole(self, node: Node | None, tokens: Sequence[int], seeds: tuple[int, ...], *, written: int) -> SampleAsk:
        """Builds the ask for the rest of the text after a node and tokens, of which `written` are text."""
        length = (0 if node is None else node.length) + len(tokens)
        return self._build_ask(
            node, tokens, seeds, max_new_tokens=min(self.max_tokens - written, self.context - length)
        )

    def _build_ask(
        self,
        node: Node | None,
        tokens: Sequence[int],
        seeds: tuple[int, ...],
        *,
        max_new_tokens: int,
        separators: tuple[str, ...] = (),
        greedy: bool = False,
    ) -> SampleAsk:
        sampling = GREEDY if greedy else self.sampling
        return SampleAsk(node, tokens, max_new_tokens, self.stop_ids, separators, sampling, seeds)

    def _max_new_tokens(self, state: TextState) -> int:
        return min(self.max_tokens - len(state.written), self.context - state.length)

    def spans(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Finds where the spans of a continuation end, exclusive; the last at its own end."""
        count, first, ends = len(ids), 0, []
        while first < count:
            start, texts = first, self.separators if self.level == "span" else ()

            def has_separator(position: int, start: int = start, texts: tuple[str, ...] = texts) -> bool:
                text = self.decode(list(ids[start:position])) if texts else ""
                return any(separator in text for separator in texts)

            first = start + 1 + bisect_left(range(start + 1, count), True, key=has_separator)
            ends.append(first)
        return tuple(ends)

    def value(self, scores: Sequence[float]) -> float:
        """Reduces the scores of a path's spans to its value; NaN where there is none, or one is NaN."""
        if not scores or any(map(math.isnan, scores)):
            return math.nan
        return float(_REDUCE[self.reduce](scores))
