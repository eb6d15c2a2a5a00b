"""Requests that an engine accepts, and the answers that it returns.

Agents, searches and annotators are generators: they yield a list of asks and are sent the list of answers. They
never see a model or a batch. One driver (`engine/driver.py`) runs thousands of them at once over one engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.trie import Prefix, Trie
from evolvent.errors import ConfigError, ContextOverflow, Problem, StaleNode, VocabularyMismatch

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = [
    "GREEDY",
    "Answer",
    "Ask",
    "BiasedConstraint",
    "BlockingCall",
    "Constraint",
    "Continuation",
    "Engine",
    "Finished",
    "Job",
    "LogitsAsk",
    "Node",
    "Output",
    "RoutedAsk",
    "SampleAsk",
    "Sampling",
    "ScoreAsk",
    "Scored",
    "Ticket",
    "Usage",
    "validate_ask",
]


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
            "the node belongs to another engine or an older policy version",
            value=repr(node),
            expected=f"a node of this engine at version {trie.version}",
            hint="start again from the tokens",
        )
    tokens = ask.tokens if isinstance(ask.tokens, list) else [int(token) for token in ask.tokens]
    _check_vocabulary(tokens, vocabulary)
    length = (0 if node is None else node.length) + len(tokens)
    if not length:
        raise ConfigError("the request has neither tokens nor a node", value=ask, expected="at least one token")
    sampling = isinstance(ask, SampleAsk)
    if length > context - sampling:
        raise ContextOverflow(
            "the prompt is longer than the context",
            value=f"{length} tokens",
            expected=f"at most {context - sampling} of {context} tokens",
            hint="shorten it, or choose a history policy",
        )
    _check_vocabulary([token for choice in getattr(ask, "choices", None) or () for token in choice], vocabulary)
    if isinstance(ask, SampleAsk) and (ask.max_tokens < 1 or not ask.seeds):
        raise ConfigError(
            "the request does not sample",
            value=f"max_tokens {ask.max_tokens}, {len(ask.seeds)} seeds",
            expected="at least one token and one seed",
        )
    if isinstance(ask, SampleAsk) and ask.constraint is not None:
        if ask.choices is not None:
            raise ConfigError("the request has both choices and a constraint", hint="set only one of them")
        if not ask.constraint.allowed()[:vocabulary].any():
            raise ConfigError(
                "the constraint allows no token",
                value=ask.constraint.fault,
                hint="reset the constraint: after a complete text no token may follow",
            )
    return tokens


def _check_vocabulary(tokens: list[int], vocabulary: int) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        unknown_ids = [token for token in tokens if not 0 <= token < vocabulary]
        raise VocabularyMismatch("token ids out of range", value=unknown_ids[:5], expected=f"0 to {vocabulary - 1}")


class Node(Protocol):
    """A prefix of tokens that an engine knows: an opaque handle. It stays usable as long as somebody holds it.

    Its keys and values may be moved or dropped and computed again; its tokens never change. A node of an older policy
    version, or of another engine, is refused with StaleNode.
    """

    @property
    def length(self) -> int:
        """Returns the number of tokens in the prefix."""
        ...

    def tokens(self) -> list[int]:
        """Returns all token ids from the beginning."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution to sample from.

    Order: logits / temperature, then top-k, then top-p, then renormalize. Temperature 0 is greedy (log-probability 0).
    top_k 0 and top_p 1 keep everything.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        problems = []
        if not self.temperature >= 0:
            problems.append(Problem("temperature", f"got {self.temperature}, expected 0 or more"))
        if self.top_k < 0:
            problems.append(Problem("top_k", f"got {self.top_k}, expected 0 (all) or more"))
        if not 0 < self.top_p <= 1:
            problems.append(Problem("top_p", f"got {self.top_p}, expected in (0, 1]"))
        if problems:
            raise ConfigError(problems)


GREEDY = Sampling(temperature=0.0)


class Constraint(Protocol):
    """The state that decides which tokens may follow the text of one continuation (`models/constraints.py`).

    An ask's constraint stands where its continuations begin. An engine copies it for each of them and leaves the ask's
    own as it is; whoever forks in the middle of a constrained text copies it and advances the copy.
    """

    def copy(self) -> Constraint:
        """Returns an independent copy of the same state."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """Returns the mask of the tokens that may follow, `[V]` or shorter.

        No token is allowed where the text is complete, or where `fault` gives a reason.
        """
        ...

    def advance(self, token: int) -> None:
        """Updates the state after an allowed token was written."""
        ...

    @property
    def fault(self) -> str:
        """Returns the reason why no token may follow, where that is a failure; otherwise an empty string."""
        ...


@runtime_checkable
class BiasedConstraint(Constraint, Protocol):
    """A constraint that also adds numbers to the logits of the next token."""

    def logit_bias(self) -> NDArray[np.float32]:
        """Returns what is added to the logits, before everything else, `[V]` float32 or shorter."""
        ...


@dataclass(frozen=True, slots=True)
class SampleAsk:
    """Continue a prefix by sampling. Answered by a tuple of `Continuation`, one per seed.

    Args:
        node: the prefix to continue; None: the empty one.
        tokens: appended to it first (a prompt, a new observation). May be empty if the node is not.
        max_tokens: at most so many new tokens; the context's end cuts earlier (stop "length").
        stop_ids: a token of these ends the continuation and is its last token (stop "stop").
        stop_strings: text that ends the continuation; the tokens up to and including it are kept.
        sampling: the distribution; the answer's log-probabilities are of exactly this distribution.
        seeds: one sample per seed. A sample depends on prefix, sampling and seed, not on what else is in the batch.
        choices: if given, the continuation is one of these token sequences: at each position only tokens that continue
            one of them have probability (stop "choice").
        constraint: if given, only tokens that it allows have probability; where none is left, the text is complete
            (stop "stop"). A continuation that `max_tokens` cuts (stop "length") is the beginning of an allowed text.
    """

    node: Node | None
    tokens: Sequence[int]
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    seeds: tuple[int, ...] = (0,)
    choices: tuple[tuple[int, ...], ...] | None = None
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """One sample: `node` is prefix + tokens + ids; `ids` `[T]` int32; `logprobs` `[T]` float32; why it stopped.

    `model_logprobs` `[T]` float32 are those at temperature 1 over all tokens, of what was chosen at temperature 0.
    """

    node: Node
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stop: str  # "stop" | "length" | "choice"
    model_logprobs: NDArray[np.float32] | None = None

    def pad_model_logprobs(self, num_read: int) -> NDArray[np.float32] | None:
        """Returns `model_logprobs` of a generation that reads `num_read` tokens first, `[num_read + T]`, or None."""
        if self.model_logprobs is None:
            return None
        return np.concatenate([np.zeros(num_read, np.float32), self.model_logprobs]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ScoreAsk:
    """Log-probabilities of given tokens after a prefix (temperature 1). Answered by `Scored`."""

    node: Node | None
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Scored:
    """`logprobs` `[T]` float32 of the asked tokens (the first is 0 where the prefix is empty); `node` is the end."""

    node: Node
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LogitsAsk:
    """The model's output after a prefix and tokens. Answered by logits `[V]`, or hidden state `[H]` if asked for it.

    keep: answered by an `Output` instead, which has the node of the end beside the numbers.
    """

    node: Node | None
    tokens: Sequence[int] = ()
    hidden: bool = False
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """`values` float32: logits `[V]`, or a hidden state `[H]`; `node` is the prefix that they come after."""

    node: Node
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RoutedAsk:
    """An ask for one of several models (`engine/driver.py`), addressed by name and answered as the inner ask
    is.

    A node belongs to the model that made it.
    """

    model: str
    ask: SampleAsk | ScoreAsk | LogitsAsk


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """A call that may take long, such as a slow world or a grader, and therefore runs off the driver's thread.

    Its answer is the return value of the call. An exception of the call is raised in the job; after `timeout_s`
    StepTimeout is raised.
    """

    call: Callable[[], object]
    timeout_s: float | None = None


Ask = SampleAsk | ScoreAsk | LogitsAsk
Answer: TypeAlias = Any
"""What an ask or a call is answered with: `tuple[Continuation, ...]`, `Scored`, logits, or what the call returned."""
T = TypeVar("T")
Job = Generator[Sequence["Ask | RoutedAsk | BlockingCall"], Sequence[Answer], T]
Ticket = int


@dataclass(frozen=True, slots=True)
class Finished:
    """A ticket's answer, or the typed error that it ended with."""

    ticket: Ticket
    answer: Answer = None
    error: Exception | None = None


@dataclass(slots=True)
class Usage:
    """Counters of an engine's forwards, in tokens except where noted.

    generated: sampled. computed: fed through the model (real tokens, each counted once per time it is fed).
    recomputed: the part of `computed` that had been computed before and was dropped. padded: filler positions,
    apart. shared: requested tokens whose keys and values were already there. forwards, live and peak_live (nodes):
    counts.
    """

    generated: int = 0
    computed: int = 0
    recomputed: int = 0
    padded: int = 0
    shared: int = 0
    forwards: int = 0
    live: int = 0
    peak_live: int = 0


class Engine(Protocol):
    """A prefix trie over a model. `submit` and `poll` are the interface; the driver is built on them."""

    usage: Usage

    @property
    def version(self) -> int:
        """Returns the version of the policy whose weights are used."""
        ...

    @property
    def context(self) -> int:
        """Returns the maximum number of tokens in a text."""
        ...

    def sync(self, policy: Policy) -> None:
        """Takes a policy's weights and version; all nodes become stale."""
        ...

    def submit(self, ask: Ask) -> Ticket:
        """Submits an ask and returns its ticket.

        Raises:
            StaleNode, ContextOverflow, VocabularyMismatch: at once, for a stale node, a prompt that alone is too long,
                or an unknown token id.
        """
        ...

    def poll(self) -> Sequence[Finished]:
        """Runs at most one forward and returns finished tickets in ticket order; returns () when the queue is empty."""
        ...

    def pending(self) -> int:
        """Returns the number of open tickets."""
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Cancels tickets: nothing more is computed for them, and they are not answered.

        Unknown tickets are ignored.
        """
        ...

    def hold(self, nodes: Sequence[Node]) -> AbstractContextManager[None]:
        """Keeps the keys and values of these nodes while the context manager is open."""
        ...
