"""What can be asked of an engine, and what it answers.

Agents, searches and annotators are generators: they yield a list of asks and are sent the list of answers. They never
see a model or a batch. One driver (`engine/driver.py`) runs thousands of them at once over one engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem

__all__ = [
    "GREEDY",
    "Answer",
    "Ask",
    "Constraint",
    "Continuation",
    "Engine",
    "Finished",
    "LogitsAsk",
    "Node",
    "Output",
    "SampleAsk",
    "Sampling",
    "ScoreAsk",
    "Scored",
    "Ticket",
    "To",
    "Usage",
    "Wait",
    "Work",
]


class Node(Protocol):
    """A prefix of tokens that an engine knows: an opaque handle. It stays usable as long as somebody holds it.

    Its keys and values may be moved or dropped and computed again; its tokens never change. A node of an older policy
    version, or of another engine, is refused with StaleNode.
    """

    @property
    def length(self) -> int:
        """How many tokens the prefix has."""
        ...

    def tokens(self) -> list[int]:
        """All token ids from the beginning."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution to sample from.

    Order: logits / temperature, then top-k, then top-p, then renormalise. Temperature 0 is greedy (log-probability 0).
    top_k 0 and top_p 1 keep everything.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        problems = []
        if not self.temperature >= 0:
            problems.append(Problem("temperature", f"must be 0 or more, got {self.temperature}"))
        if self.top_k < 0:
            problems.append(Problem("top_k", f"must be 0 (all) or more, got {self.top_k}"))
        if not 0 < self.top_p <= 1:
            problems.append(Problem("top_p", f"must be in (0, 1], got {self.top_p}"))
        if problems:
            raise ConfigError(problems)


GREEDY = Sampling(temperature=0.0)


class Constraint(Protocol):
    """Which tokens may follow what a continuation has written: the state of one text (`models/constraints.py`).

    An ask's constraint stands where its continuations begin. An engine copies it for each of them and leaves the ask's
    own as it is; whoever forks in the middle of a constrained text copies it and advances the copy.
    """

    def copy(self) -> Constraint:
        """The same state, to go on from on its own."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """`[V]`, or shorter: the tokens that may follow. None of them where the text is complete, or see `fault`."""
        ...

    def advance(self, token: int) -> None:
        """A token was written that was allowed."""
        ...

    @property
    def fault(self) -> str:
        """Why nothing may follow, where that is a failure; empty: it is none."""
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
    """One sample: `node` is prefix + tokens + ids; `ids` `[T]` int32; `logprobs` `[T]` float32; why it stopped."""

    node: Node
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stop: str  # "stop" | "length" | "choice"


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
class To:
    """An ask for one of several models (`engine/multi_model.py`), by its name there. Answered as the ask itself is.

    A node belongs to the model that made it.
    """

    model: str
    ask: SampleAsk | ScoreAsk | LogitsAsk


@dataclass(frozen=True, slots=True)
class Wait:
    """Not a question to a model: a call that may take long (a slow world, a grader), run off the driver's thread.

    Answered by what the call returns. What it raises is raised in the work; after `timeout_s` StepTimeout is.
    """

    call: Callable[[], Any]
    timeout_s: float | None = None


Ask = SampleAsk | ScoreAsk | LogitsAsk
Answer = Any  # tuple[Continuation, ...] | Scored | NDArray | Output | what a Wait returns
T = TypeVar("T")
Work = Generator[Sequence["Ask | To | Wait"], Sequence[Answer], T]
Ticket = int


@dataclass(frozen=True, slots=True)
class Finished:
    """A ticket's answer, or the typed error that it ended with."""

    ticket: Ticket
    answer: Answer = None
    error: Exception | None = None


@dataclass(slots=True)
class Usage:
    """What an engine has counted, at the model's forward. Tokens, except where said.

    generated: sampled. computed: fed through the model (real tokens, each counted once per time it is fed).
    recomputed: the part of `computed` that had been computed before and was dropped. padded: filler positions, apart.
    shared: tokens asked for whose keys and values were there already. forwards, live and peak_live (nodes): counts.
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
        """Of the policy whose weights are used."""
        ...

    @property
    def context(self) -> int:
        """Most tokens of a text."""
        ...

    def sync(self, policy: Any) -> None:
        """Take a policy's weights and version; all nodes become stale."""
        ...

    def submit(self, ask: Ask) -> Ticket:
        """Queue an ask. Raises StaleNode, ContextOverflow (prompt alone too long), VocabularyMismatch at once."""
        ...

    def poll(self) -> Sequence[Finished]:
        """At most one forward; returns what became finished (in ticket order). Nothing queued: returns ()."""
        ...

    def pending(self) -> int:
        """How many tickets are open."""
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Forget tickets: nothing more is computed for them and they are not answered. Unknown ones are ignored."""
        ...

    def hold(self, nodes: Sequence[Node]) -> AbstractContextManager[None]:
        """While open, the keys and values of these nodes are kept."""
        ...
