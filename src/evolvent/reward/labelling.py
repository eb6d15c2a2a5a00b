"""Settings for labeling spans of solutions by completions, and the rows that store the labels.

OmegaPRM: the first wrong spans of wrong solutions, found by bisection in one tree (Luo et al., arXiv
2406.06592).

MC(s) is the share of right completions of a state s, a response cut at the end of a span. Wrong completions r
of states with 0 < MC < 1 wait in a pool. The pair of highest priority

    alpha^(1 - MC(s)) beta^(words(r) / L) + c sqrt(sum_i N(s_i)) / (1 + N(s))

is removed, and its first wrong span is searched: the prefix up to the middle becomes a state with k
completions; MC = 0 continues left of it, anything more right of it. A sum of 0 visits counts as 1.

Completions of unfinished responses and their grades, from which Monte Carlo labels of spans are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

from pydantic import Field

from evolvent.config import Config
from evolvent.engine.asks import BlockingCall, Job, Node, SampleAsk, Sampling
from evolvent.errors import ConfigError, Problem, ScoringError
from evolvent.models.policy import Policy
from evolvent.reward.labels import SpanLabels
from evolvent.reward.solutions import Solution
from evolvent.reward.states import extract_solution
from evolvent.search.writing import Writing
from evolvent.trajectory import Annotation, AnnotationTarget, Json, JsonObject, Trajectory, sample_seed

__all__ = [
    "OMEGA_SAMPLING",
    "Completer",
    "LabelledSolution",
    "LabellingConfig",
    "OmegaConfig",
    "OmegaState",
    "OmegaTree",
    "Rollout",
    "build_omega_tree",
    "correct_ratio",
    "find_first_error",
    "grade_responses",
    "label_spans",
    "priority",
    "rows_to_solutions",
    "sample_completions",
]


OMEGA_SAMPLING = Sampling(temperature=0.7, top_k=30, top_p=0.9)
"""The distribution of OmegaPRM (arXiv 2406.06592)."""


@dataclass(frozen=True, slots=True)
class Completer:
    """Completes and grades responses.

    Args:
        text: Returns the text of a response's tokens (`dialect.text`).
        correct: Returns whether a response's text is right; None: it could not be graded. A ScoringError means the
            same.
        max_tokens: Maximum tokens of a whole response, its given beginning included.
        stop_ids: Tokens that end a response.
        sampling: The distribution; by default temperature .7, top-k 30, top-p .9.
        context: Maximum tokens of prompt and response together; None: the engine's limit is never exceeded.
        slow: Whether to grade on the driver's threads.
    Raises:
        ConfigError: `max_tokens` or `context` below 1.
    """

    text: Callable[[Sequence[int]], str]
    correct: Callable[[str], bool | None]
    max_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling = OMEGA_SAMPLING
    context: int | None = None
    slow: bool = False

    def __post_init__(self) -> None:
        limits = (("max_tokens", self.max_tokens), ("context", self.context))
        problems = [
            Problem(name, f"got {value}, expected 1 or more")
            for name, value in limits
            if value is not None and value < 1
        ]
        if problems:
            raise ConfigError(problems)

    def is_finished(self, response: Sequence[int]) -> bool:
        """Returns whether a response has ended."""
        return bool(response) and response[-1] in self.stop_ids

    def remaining_tokens(self, prompt: Sequence[int], response: Sequence[int]) -> int:
        """Returns the number of tokens that may follow."""
        remaining = self.max_tokens - len(response)
        return remaining if self.context is None else min(remaining, self.context - len(prompt) - len(response))


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion: its tokens, whether the whole response was right (None: ungraded), and its end as a node.

    While the node is held, what was computed for it is found again by whoever goes on from a part of it.
    """

    ids: tuple[int, ...]
    correct: bool | None
    node: Node | None = field(default=None, compare=False, repr=False)


def sample_completions(
    prompt: Sequence[int], prefixes: Sequence[Sequence[int]], completer: Completer, *, seeds: Sequence[Sequence[int]]
) -> Job[list[tuple[Rollout, ...]]]:
    """Samples completions of several begun responses to one prompt, all requested at once, and grades them.

    Args:
        prompt: Tokens of the prompt.
        prefixes: Tokens of each response so far.
        completer: Completes and grades.
        seeds: For each response, one seed per completion.
    Returns:
        The rollouts of each; none where a response is finished or has no tokens left.
    """
    open_indices = [
        index
        for index, response in enumerate(prefixes)
        if seeds[index] and not completer.is_finished(response) and completer.remaining_tokens(prompt, response) > 0
    ]
    asks = [
        SampleAsk(
            None,
            [*prompt, *prefixes[index]],
            completer.remaining_tokens(prompt, prefixes[index]),
            stop_ids=completer.stop_ids,
            sampling=completer.sampling,
            seeds=tuple(seeds[index]),
        )
        for index in open_indices
    ]
    answers: Sequence[Any] = (yield asks) if asks else ()
    samples = [(index, sample) for index, answer in zip(open_indices, answers, strict=True) for sample in answer]
    grades = yield from grade_responses(
        [(*prefixes[index], *sample.ids.tolist()) for index, sample in samples], completer
    )
    rollouts_by_response: list[list[Rollout]] = [[] for _ in prefixes]
    for (index, sample), grade in zip(samples, grades, strict=True):
        rollouts_by_response[index].append(Rollout(tuple(sample.ids.tolist()), grade, sample.node))
    return [tuple(rollouts) for rollouts in rollouts_by_response]


def grade_responses(responses: Sequence[Sequence[int]], completer: Completer) -> Job[list[bool | None]]:
    """Returns whether each whole response is right; None where it could not be graded."""
    calls = [partial(_grade, completer, tuple(response)) for response in responses]
    if not completer.slow or not calls:
        return [call() for call in calls]
    return list((yield [BlockingCall(call) for call in calls]))


def _grade(completer: Completer, response: Sequence[int]) -> bool | None:
    try:
        return completer.correct(completer.text(response))
    except ScoringError:
        return None


def correct_ratio(rollouts: Sequence[Rollout]) -> float | None:
    """Computes the share of right rollouts among the graded ones: the Monte Carlo value; None where none was graded."""
    grades = [rollout.correct for rollout in rollouts if rollout.correct is not None]
    return sum(grades) / len(grades) if grades else None


Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OmegaConfig:
    """The constants of the paper.

    Args:
        c: Coefficient of the exploration term.
        alpha: In 0..1, preference for states of high MC.
        beta: In 0..1, preference for short completions.
        length: L, in words.
        completions: k, completions of each state.
        searches: Maximum number of bisections.
        rollouts: Maximum number of completions in all; the first k are always sampled.
    Raises:
        ConfigError: values out of range; lists all of them.
    """

    c: float = 0.125
    alpha: float = 0.5
    beta: float = 0.9
    length: float = 500.0
    completions: int = 16
    searches: int = 20
    rollouts: int = 200

    def __post_init__(self) -> None:
        rules = (
            (0 <= self.c < math.inf, "c", "0 or more"),
            (0 < self.alpha <= 1, "alpha", "above 0 and at most 1"),
            (0 < self.beta <= 1, "beta", "above 0 and at most 1"),
            (0 < self.length < math.inf, "length", "above 0"),
            (self.completions >= 1, "completions", "1 or more"),
            (self.searches >= 1, "searches", "1 or more"),
            (self.rollouts >= self.completions, "rollouts", f"{self.completions} or more"),
        )
        problems = [
            Problem(name, f"got {getattr(self, name)}, expected {requirement}")
            for is_valid, name, requirement in rules
            if not is_valid
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class OmegaState:
    """A response cut at the end of a span.

    Attributes:
        ids: Its tokens, without those of the prompt.
        ends: Ends of its spans in them, exclusive.
        parent: State from which it was reached; None for the root.
        mc: Share of right completions; None where none could be graded. A finished response is right or not: 1, 0.
        visits: N(s), number of times a completion of it was taken.
        finished: Whether it is a complete response, which was graded itself.
    """

    ids: Ids
    ends: tuple[int, ...]
    parent: int | None
    mc: float | None
    visits: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class OmegaTree:
    """The tree of one prompt.

    Attributes:
        prompt: Tokens of the prompt.
        states: All tested prefixes, the root (no span) first, and the right completions as finished ones.
        searches: Number of bisections.
        rollouts: Number of sampled completions.
        ungraded: Number of completions that could not be graded.
        generated: Number of sampled tokens. Computed tokens are in the engine's `usage`.
        ended: Reason of the end: one of the two limits, or an empty pool.
    """

    prompt: Ids
    states: tuple[OmegaState, ...]
    searches: int
    rollouts: int
    ungraded: int
    generated: int
    ended: Literal["searches", "rollouts", "pool"]

    def chains(self) -> list[tuple[tuple[Ids, ...], tuple[float | None, ...]]]:
        """Returns every longest response as its spans, and for each the MC of the prefix that it ends; None: not
        tested.
        """
        mc_by_prefix = {state.ids: state.mc for state in self.states}
        proper_prefixes = {state.ids[:end] for state in self.states for end in state.ends[:-1]}
        labelled_chains = []
        for state in self.states:
            if state.ends and state.ids not in proper_prefixes:
                cuts = list(zip((0, *state.ends), state.ends, strict=False))
                labels = tuple(mc_by_prefix.get(state.ids[:end]) for end in state.ends)
                labelled_chains.append((tuple(state.ids[a:b] for a, b in cuts), labels))
        return labelled_chains

    def to_labels(self, question: str, text: Callable[[Sequence[int]], str]) -> list[SpanLabels]:
        """Returns the chains as text."""
        return [
            SpanLabels(question, tuple(text(span) for span in spans), labels, "omega")
            for spans, labels in self.chains()
        ]


def priority(mc: float, num_words: int, *, visits: int, total: int, config: OmegaConfig) -> float:
    """Computes the priority of a pair (state, wrong completion); see the module.

    Args:
        mc: of the state. num_words: of the completion. visits: N(s). total: the sum of all N.
    """
    exploit: float = config.alpha ** (1.0 - mc) * config.beta ** (num_words / config.length)
    return exploit + config.c * math.sqrt(max(total, 1)) / (1 + visits)


# ------------------------------------------------------------------ bisection


def _bisect(count: int) -> Generator[int, bool, int]:
    """Yields spans to test, receives whether the prefix ending with them is dead, and returns the first dead one."""
    low, high = 0, count - 1
    while low <= high:
        middle = (low + high) // 2
        if (yield middle):
            high = middle - 1
        else:
            low = middle + 1
    return low


def find_first_error(value: Callable[[int], float], count: int) -> tuple[int, tuple[int, ...]]:
    """Finds the first of `count` spans after which no completion is right, and returns it with the probed spans.

    Args:
        value: Returns MC of the prefix that a span ends, counted from 0; exact values never rise again after 0.
        count: Number of spans.
    Returns:
        The span (`count`: there is none), and at most `ceil(log2(count + 1))` probes.
    """
    search, probed = _bisect(count), []
    try:
        middle = next(search)
        while True:
            probed.append(middle)
            middle = search.send(value(middle) == 0)
    except StopIteration as stop:
        return int(stop.value), tuple(probed)


# ------------------------------------------------------------------ the tree


def build_omega_tree(
    prompt: Sequence[int],
    completer: Completer,
    *,
    split: Callable[[Sequence[int]], Sequence[int]],
    config: OmegaConfig | None = None,
    seed: int = 0,
    name: str = "",
) -> Job[OmegaTree]:
    """Builds the tree of one prompt, as a job for the driver.

    A prefix that two completions share is tested once. Seeds depend on `seed`, `name` and the tokens of the prefix, so
    that the tree depends on nothing else. The limit of completions is never passed.

    Args:
        split: where the spans of written tokens end, exclusive.
        name: tells prompts apart, for the seeds.
    """
    builder = _TreeBuilder(tuple(prompt), completer, split, config or OmegaConfig(), (seed, "omega", name))
    return (yield from builder.run())


@dataclass(slots=True)
class _TreeBuilder:
    prompt: Ids
    completer: Completer
    split: Callable[[Sequence[int]], Sequence[int]]
    config: OmegaConfig
    seeds: tuple[object, ...]
    states: list[OmegaState] = field(default_factory=list)
    state_indices: dict[Ids, int] = field(default_factory=dict)
    pool: dict[tuple[int, Ids], tuple[int, Rollout]] = field(default_factory=dict)  # (state, ids) -> (words, rollout)
    searches: int = 0
    rollouts: int = 0
    ungraded: int = 0
    generated: int = 0

    def run(self) -> Job[OmegaTree]:
        """Runs bisections until a limit or an empty pool, and returns the tree."""
        yield from self._test_prefix((), (), None)
        ended: Literal["searches", "rollouts", "pool"] | None = None
        while ended is None:
            if not self.pool:
                ended = "pool"
            elif self.searches >= self.config.searches:
                ended = "searches"
            elif not self._can_sample():
                ended = "rollouts"
            else:
                state_index, rollout = self._pop_pair()
                self.searches += 1
                if not (yield from self._search_error(state_index, rollout)):
                    ended = "rollouts"
        return OmegaTree(
            self.prompt, tuple(self.states), self.searches, self.rollouts, self.ungraded, self.generated, ended
        )

    def _can_sample(self) -> bool:
        return self.rollouts + self.config.completions <= self.config.rollouts

    def _pop_pair(self) -> tuple[int, Rollout]:
        """Removes the pair of highest priority, the oldest of equal ones, and counts a visit of its state."""
        total = sum(state.visits for state in self.states)

        def pair_priority(key: tuple[int, Ids]) -> float:
            state = self.states[key[0]]
            return priority(state.mc or 0.0, self.pool[key][0], visits=state.visits, total=total, config=self.config)

        best = max(self.pool, key=pair_priority)
        _, rollout = self.pool.pop(best)
        state = self.states[best[0]]
        self.states[best[0]] = replace(state, visits=state.visits + 1)
        return best[0], rollout

    def _search_error(self, state_index: int, rollout: Rollout) -> Job[bool]:
        """Searches the first wrong span of a wrong completion; every prefix on the way becomes a state.

        Returns:
            Whether the limit of completions allowed the search.
        """
        base, ends = self.states[state_index], self._span_ends(rollout.ids)
        search = _bisect(len(ends))
        try:
            middle = next(search)
            while True:
                ids = (*base.ids, *rollout.ids[: ends[middle]])
                cuts = (*base.ends, *(len(base.ids) + end for end in ends[: middle + 1]))
                if middle == len(ends) - 1:  # the whole response, which is known to be wrong
                    tested_index = self._add_state(OmegaState(ids, cuts, state_index, 0.0, finished=True))
                else:
                    if ids not in self.state_indices and not self._can_sample():
                        return False
                    tested_index = yield from self._test_prefix(ids, cuts, state_index)
                value = self.states[tested_index].mc
                if value is None:  # nothing could be graded: it cannot be said on which side to go on
                    return True
                state_index = tested_index if value > 0 else state_index
                middle = search.send(value == 0)
        except StopIteration:
            return True

    def _test_prefix(self, ids: Ids, ends: tuple[int, ...], parent: int | None) -> Job[int]:
        """Returns the state of a prefix; a new one gets completions: right ones become leaves, wrong ones may enter
        the pool.
        """
        if ids in self.state_indices:
            return self.state_indices[ids]
        seeds = [sample_seed(*self.seeds, *ids, "completion", k) for k in range(self.config.completions)]
        (prefix_rollouts,) = yield from sample_completions(self.prompt, [ids], self.completer, seeds=[seeds])
        self.rollouts += len(prefix_rollouts)
        self.ungraded += sum(rollout.correct is None for rollout in prefix_rollouts)
        self.generated += sum(len(rollout.ids) for rollout in prefix_rollouts)
        value = correct_ratio(prefix_rollouts)
        state_index = self._add_state(OmegaState(ids, ends, parent, value))
        for rollout in prefix_rollouts:
            if rollout.correct:
                cuts = (*ends, *(len(ids) + end for end in self._span_ends(rollout.ids)))
                self._add_state(OmegaState((*ids, *rollout.ids), cuts, state_index, 1.0, finished=True))
            elif rollout.correct is False and value:
                num_words = len(self.completer.text(rollout.ids).split())
                self.pool.setdefault((state_index, rollout.ids), (num_words, rollout))
        return state_index

    def _span_ends(self, ids: Ids) -> tuple[int, ...]:
        """Returns the ends of the spans of written tokens, the last one at their end."""
        ends = tuple(self.split(ids))
        return ends if ends and ends[-1] == len(ids) else (*ends, len(ids))

    def _add_state(self, state: OmegaState) -> int:
        if state.ids not in self.state_indices:
            self.state_indices[state.ids] = len(self.states)
            self.states.append(state)
        return self.state_indices[state.ids]


@dataclass(frozen=True, slots=True)
class LabelledSolution:
    """A solution with the soft label of each span, and the costs.

    Attributes:
        solution: The solution.
        labels: Share of right completions from each span's end; None where none could be graded.
        rollouts: Number of sampled completions.
        ungraded: Number of completions that could not be graded; they are in no share.
        generated: Number of sampled tokens. Computed tokens are in the engine's `usage`.
    """

    solution: Solution
    labels: tuple[float | None, ...]
    rollouts: int
    ungraded: int
    generated: int

    def annotations(self, *, step: int = 0, generation: int = 0) -> list[Annotation]:
        """Returns the labels as annotations of the trajectory that the solution is named after."""
        return [
            Annotation(self.solution.name, "shepherd", AnnotationTarget(step, generation, span), label)
            for span, label in enumerate(self.labels)
            if label is not None
        ]

    def to_labels(self, question: str, text: Callable[[Sequence[int]], str]) -> SpanLabels:
        """Returns the labels with the texts of the spans."""
        spans = tuple(text(span) for span in self.solution.spans)
        return SpanLabels(question, spans, self.labels, "shepherd", {"name": self.solution.name})


def label_spans(solution: Solution, completer: Completer, *, count: int = 8, seed: int = 0) -> Job[LabelledSolution]:
    """Labels the spans of a solution, as a job for the driver: all completions are requested at once.

    A finished solution is graded itself: its last label is exact and takes no completion. The seeds depend on the
    solution's name, the span and the number of the completion alone.

    Args:
        count: completions from each span's end (N).
    Raises:
        ConfigError: `count` below 1.
    """
    if count < 1:
        raise ConfigError([Problem("count", f"got {count} completions of a span, expected 1 or more")])
    prefixes = list(accumulate(solution.spans))
    seeds = [
        [sample_seed(seed, "shepherd", solution.name, span_index, k) for k in range(count)]
        for span_index in range(len(prefixes))
    ]
    rollouts_by_span = yield from sample_completions(solution.prompt, prefixes, completer, seeds=seeds)
    labels = [correct_ratio(rollouts) for rollouts in rollouts_by_span]
    if completer.is_finished(prefixes[-1]):
        (final_grade,) = yield from grade_responses(prefixes[-1:], completer)
        labels[-1] = None if final_grade is None else float(final_grade)
    all_rollouts: list[Rollout] = [rollout for rollouts in rollouts_by_span for rollout in rollouts]
    return LabelledSolution(
        solution,
        tuple(labels),
        len(all_rollouts),
        sum(rollout.correct is None for rollout in all_rollouts),
        sum(len(rollout.ids) for rollout in all_rollouts),
    )


Row = dict[str, Json]


class LabellingConfig(Config):
    """Settings of span labels."""

    kind: Literal["shepherd", "omega"] = Field(
        default="omega", description="completions after every span, or a tree with bisection for the first error"
    )
    count: int = Field(default=8, ge=1, description="completions of a prefix (N, k)")
    rollouts: int = Field(default=200, ge=1, description="most completions of a task (omega)")
    searches: int = Field(default=20, ge=1, description="most bisections of a task (omega)")
    temperature: float = Field(default=1.0, gt=0, description="of completions")
    top_k: int = Field(default=0, ge=0, description="likeliest tokens that are drawn from; 0: all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of probability that is drawn from")
    separators: tuple[str, ...] = Field(default=(";", "\n"), description="what ends a span")
    max_tokens: int = Field(default=256, ge=1, description="longest response")

    def work(
        self,
        policy: Policy,
        trajectory: Trajectory,
        correct: Callable[[str], bool | None],
        *,
        seed: int,
        slow: bool = False,
    ) -> Job[list[Row]]:
        """Labels one trajectory (shepherd), or explores its task (omega), as a job for the driver.

        The first row holds the costs. Where omega has nothing to label, because no completion was right, that row has
        no spans.

        Args:
            policy: The policy that completes.
            trajectory: The episode.
            correct: Returns whether a response is right; None: undecided.
            seed: Seed of the completions.
            slow: Whether to call `correct` off the driver's thread.
        Raises:
            SampleInvalid: an episode that is not a response of one turn.
        """
        writing = Writing.for_policy(policy, max_tokens=self.max_tokens, separators=self.separators)
        solution = extract_solution(trajectory, writing.spans)
        completer = Completer(
            writing.text,
            correct,
            self.max_tokens,
            policy.dialect.stop_ids,
            Sampling(self.temperature, self.top_k, self.top_p),
            policy.context,
            slow,
        )
        if self.kind == "shepherd":
            labelled = yield from label_spans(solution, completer, count=self.count, seed=seed)
            costs = {"rollouts": labelled.rollouts, "generated": labelled.generated}
            return [_row(solution, labelled.labels) | costs]
        config = OmegaConfig(completions=self.count, searches=self.searches, rollouts=self.rollouts)
        tree = yield from build_omega_tree(
            solution.prompt, completer, split=writing.spans, config=config, seed=seed, name=trajectory.task.id
        )
        labelled_rows = [
            _row(Solution(tree.prompt, spans, f"{trajectory.id}/{index}"), labels)
            for index, (spans, labels) in enumerate(tree.chains())
        ]
        labelled_rows = labelled_rows or [_row(Solution(tree.prompt, (), trajectory.id), ())]
        labelled_rows[0] |= {"rollouts": tree.rollouts, "generated": tree.generated}
        return labelled_rows


def _row(solution: Solution, labels: Iterable[float | None]) -> Row:
    return {
        "name": solution.name,
        "prompt": list(solution.prompt),
        "spans": [list(span) for span in solution.spans],
        "labels": list(labels),
    }


def rows_to_solutions(rows: Iterable[JsonObject]) -> Iterator[tuple[Solution, tuple[float | None, ...]]]:
    """Yields the solutions and labels of rows with spans, for `process.prepare_rows`. Raises SampleInvalid for an
    empty prompt.
    """
    for row in rows:
        spans = tuple(tuple(span) for span in row["spans"])
        if spans:
            yield Solution(tuple(row["prompt"]), spans, row["name"]), tuple(row["labels"])
