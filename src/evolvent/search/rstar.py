"""rStar: Monte Carlo tree search over five kinds of reasoning actions, without a reward model (arXiv 2408.06195).

A1 adds one thought, A2 the rest of the solution, A3 the next sub-question with its answer, A4 answers that
sub-question again, A5 rephrases the problem. The adapter defines the kinds (`search/rstar_prompts.py` has texts
for it); the search knows which kind may follow which, and rewards an end by the number of votes for the same
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from evolvent.errors import ConfigError, EngineError, Problem, unknown_name_problem
from evolvent.search.aggregate import Answer, Same, Sample, aggregate, group_answers
from evolvent.search.budgeted import BudgetTracker, Exhausted, check_sizes
from evolvent.search.records import (
    Budget,
    Child,
    EndedBy,
    ExpandRequest,
    Request,
    Response,
    Search,
    SearchResult,
    State,
)
from evolvent.search.select import uct
from evolvent.search.tree import Tree

__all__ = [
    "ACTIONS",
    "FOLLOWING",
    "Agree",
    "Decay",
    "Judging",
    "RStarTreeConfig",
    "Trace",
    "mutual_consistency",
    "rstar",
]

ACTIONS: Mapping[str, int] = {"A1": 3, "A2": 10, "A3": 3, "A4": 1, "A5": 1}
"""How many children of each kind a node gets; for A2 how many completions vote."""

FOLLOWING: Mapping[str, tuple[str, ...]] = {
    "": ("A1", "A2", "A3", "A5"),
    "A1": ("A1", "A2"),
    "A2": (),
    "A3": ("A1", "A2", "A3", "A4"),
    "A4": ("A1", "A2", "A3"),
    "A5": ("A1", "A2", "A3"),
}
"""Which kinds may follow which, "" being the root: section 3.2 of the paper and the order in its authors' code."""

Decay = Literal["constant", "linear", "exponential"]
Steps = Generator[Request, Response, None]


@dataclass(frozen=True, slots=True)
class RStarTreeConfig:
    """Settings of rStar's tree.

    Args:
        actions: children of a node by kind; for A2, which has to be among them, the number of votes.
        depth: actions from the root to the deepest end. last_votes: in the node above `depth`.
        c: UCT's constant. decay: whether and how it falls to c / 10, see `exploration`.
    Raises:
        ConfigError: a size below 1, a kind or decay that does not exist, no A2, c below 0.
    """

    actions: Mapping[str, int] = field(default_factory=lambda: ACTIONS)
    depth: int = 5
    last_votes: int = 32
    c: float = 2.0
    decay: Decay = "constant"

    def __post_init__(self) -> None:
        kinds = set(FOLLOWING) - {""}
        sizes = {"depth": self.depth, "last_votes": self.last_votes}
        sizes |= {f"actions.{kind}": width for kind, width in self.actions.items()}
        problems = [Problem(setting, f"got {size}, expected 1 or more") for setting, size in sizes.items() if size < 1]
        problems += [
            unknown_name_problem("kind of action", kind, kinds, location="actions")
            for kind in self.actions
            if kind not in kinds
        ]
        if "A2" not in self.actions:
            problems.append(Problem("actions", "must contain A2, which ends a solution"))
        if not 0 <= self.c < np.inf:
            problems.append(Problem("c", f"got {self.c}, expected a number of 0 or more"))
        if self.decay not in get_args(Decay):
            problems.append(Problem("decay", f"got {self.decay!r}, expected one of {', '.join(get_args(Decay))}"))
        if problems:
            raise ConfigError(problems)

    def exploration(self, number: int, rollouts: int) -> float:
        """Returns c in rollout `number` of `rollouts`: constant, or falling from c in the first to c / 10 in the
        last.

        linear: `c (1 - .9 x)`, exponential: `c .1^x`, x going from 0 to 1.
        """
        progress = number / max(rollouts - 1, 1)
        if self.decay == "linear":
            return self.c * (1.0 - 0.9 * progress)
        return self.c * 0.1**progress if self.decay == "exponential" else self.c


@dataclass(frozen=True, slots=True)
class Trace:
    """One path to an end: its nodes and states from the root on, kinds and actions between them, answer and reward."""

    nodes: tuple[int, ...]
    states: tuple[State, ...]
    kinds: tuple[str, ...]
    actions: tuple[str, ...]
    answer: Hashable | None
    reward: float


Judging = Generator[Sequence[ExpandRequest], Response, Sequence[bool]]
Agree = Callable[[Sequence[Trace], np.random.Generator], Sequence[bool] | Judging]


@dataclass(frozen=True, slots=True)
class _SearchState:
    """The shared state of one search."""

    tree: Tree
    tracker: BudgetTracker
    rng: np.random.Generator
    reasoning: RStarTreeConfig
    answer: Answer
    same: Same | None

    @property
    def ends(self) -> list[int]:
        return [node for node in range(len(self.tree)) if self.tree.terminal[node]]


def rstar(
    root: State,
    budget: Budget,
    rng: np.random.Generator,
    *,
    answer: Answer,
    rollouts: int = 32,
    reasoning: RStarTreeConfig | None = None,
    same: Same | None = None,
    agree: Agree | None = None,
) -> Search:
    """Runs `rollouts`, each from the root to an end; the choice is an end with the most confident answer.

    A rollout goes down by UCT, unvisited children first and in random order, and expands the nodes that it reaches
    with all kinds that may follow, in one request each, all at once. So the paper's simulation, a random path below
    the leaf, is the same walk. In the node above `depth` A2 alone is left, with `last_votes` votes. One rollout
    depends on the last; the forwards of several searches are batched by their driver.

    The completions of one A2 are votes: the answer of most is kept as one child, the first with that answer, and
    its reward is its share of the votes; the others are listed in `dropped`. The reward of another end (a thought
    that already has the answer) is the share of its node's votes for the same answer. An end without an answer and
    a node without children earn 0. The reward is the end's value, and it is backed up as a plain mean.

    All ends are candidates, and ends that no rollout reached stand last in `finished`. The confidence of an answer
    is the sum of the rewards of its ends, each end once; the choice is the end of the highest reward that has the
    most confident answer. With `agree` only ends that it agrees with are candidates, unless there are none. Notes:
    "rollouts" that were done, "confidence" as the share of all rewards, "agreed" the ends that `agree` agreed with.

    Args:
        answer: reads the answer of a finished state; None: it has none. same: whether two answers are one.
        agree: returns for each trace with an answer whether it is trusted, or is a generator of expansions that
            does, as `mutual_consistency`. Where the budget ends in it, it does not count.
    Raises:
        ConfigError: no rollouts. NoLegalAction: the root has no action.
        EngineError: `agree` returns another number of verdicts than there are traces.
    """
    check_sizes(rollouts=rollouts)
    state = _SearchState(Tree(root), BudgetTracker(budget), rng, reasoning or RStarTreeConfig(), answer, same)
    ended: EndedBy = "done"
    finished: list[int] = []
    agreed: list[int] | None = None
    try:
        for number in range(rollouts):
            yield from _run_rollout(state, state.reasoning.exploration(number, rollouts), finished)
        if agree is not None:
            agreed = yield from _find_agreed(state, agree)
    except Exhausted as reached:
        ended = reached.limit
    finished += [node for node in state.ends if not state.tree.visits[node]]
    best_node, share = _most_confident(state, agreed or state.ends)
    notes = {"rollouts": int(state.tree.visits[0]), "confidence": share, "agreed": agreed}
    return SearchResult(state.tree, tuple(finished), best_node, state.tracker.spent, ended, notes)


def mutual_consistency(
    answer: Answer, *, completions: int = 1, same: Same | None = None, kind: str = "mutual", first: int = 1000
) -> Agree:
    """Returns a discriminator (section 3.3 of the paper) that trusts a trace if a part of it leads to the same
    answer.

    Of a trace of d actions all from a random one on are masked, never only the last: a number in 0..d-2 of them
    stays (0 where d is 1). The solution is completed from there, and the answer of most completions must be the
    trace's. Traces that are cut at the same node share their completions.

    Args:
        kind: of the requests, by which an adapter can tell them from A2 and have another model complete, as the
            paper does. completions: how many there are of each. first: number of the first one, beyond those of the
            votes, so that a model that completes its own traces does not draw the votes again.
    Raises:
        ConfigError: less than one completion.
    """
    check_sizes(completions=completions)

    def judge(traces: Sequence[Trace], rng: np.random.Generator) -> Judging:
        kept_counts = [int(rng.integers(0, max(1, len(trace.actions) - 1))) for trace in traces]
        cut_states = {
            trace.nodes[kept_count]: trace.states[kept_count]
            for trace, kept_count in zip(traces, kept_counts, strict=True)
        }
        response = yield [
            ExpandRequest(state, completions, to_end=True, valued=False, kind=kind, first=first)
            for state in cut_states.values()
        ]
        majority_answers = {
            cut: _majority_answer(children or (), answer, same)
            for cut, children in zip(cut_states, response.children, strict=True)
        }
        return [
            group_answers([trace.answer, majority_answers[trace.nodes[kept_count]]], same=same) == (0, 0)
            for trace, kept_count in zip(traces, kept_counts, strict=True)
        ]

    return judge


# ------------------------------------------------------------------ one rollout


def _run_rollout(state: _SearchState, c: float, finished: list[int]) -> Steps:
    """Walks from the root to an end, or to a node without children, and backs up the reward."""
    tree, node = state.tree, 0
    while not tree.terminal[node]:
        if not tree.is_expanded(node):
            yield from _expand_node(state, node)
        child_slice = tree.children(node)
        if child_slice.start == child_slice.stop:
            tree.backup(node, 0.0)
            return
        visits, parent = tree.visits[child_slice], int(tree.visits[node])
        scores = uct(tree.means(child_slice), tree.prior[child_slice], parent_visits=parent, visits=visits, c=c)
        unvisited = np.flatnonzero(visits == 0)
        node = child_slice.start + int(state.rng.choice(unvisited) if len(unvisited) else np.argmax(scores))
    tree.backup(node, float(tree.value[node]))
    finished.append(node)


def _expand_node(state: _SearchState, node: int) -> Steps:
    """Adds the children of all kinds that may follow, including those that came before the budget was exhausted."""
    tree, actions = state.tree, state.reasoning.actions
    if tree.depth[node] + 1 >= state.reasoning.depth:
        widths = {"A2": state.reasoning.last_votes}
    else:
        widths = {kind: actions[kind] for kind in FOLLOWING[tree.kinds[node]] if kind in actions}
    ordered_kinds = sorted(widths, key=lambda kind: kind != "A2")  # votes first: without them no other end has a reward
    expansions = [
        ExpandRequest(tree.states[node], widths[kind], to_end=kind == "A2", valued=False, kind=kind)
        for kind in ordered_kinds
    ]
    response = yield from state.tracker.request(expansions)
    children_by_kind = dict(zip(ordered_kinds, response.children, strict=True))
    siblings = [replace(child, kind=kind, value=None) for kind in widths for child in children_by_kind[kind] or ()]
    if any(children is not None for children in response.children):
        tree.add_children(node, _assign_rewards(siblings, state.answer, state.same))
    tree.check_root()
    if response.short is not None:
        raise Exhausted(response.short)


def _assign_rewards(children: Sequence[Child], answer: Answer, same: Same | None) -> list[Child]:
    """Returns the children of one node with the rewards of the ends among them; of the votes one is left."""
    usable = [index for index, child in enumerate(children) if not child.problem]
    ends = [index for index in usable if children[index].terminal]
    # A2 goes first, so that its answers are what others are compared with.
    ends.sort(key=lambda index: children[index].kind != "A2")
    groups = dict(zip(ends, group_answers([answer(children[index].state) for index in ends], same=same), strict=True))
    voters = [index for index in usable if children[index].kind == "A2"] or ends
    votes = dict.fromkeys(groups.values(), 0)
    for index in voters:
        if index in groups:
            votes[groups[index]] += children[index].count
    num_votes = sum(children[index].count for index in voters)
    winning_group = max((number for number in votes if number >= 0), key=votes.__getitem__, default=-1)
    best_vote = next((index for index in voters if groups.get(index) == winning_group), None)
    rewarded = list(children)
    for index in usable:
        if children[index].kind == "A2" and index != best_vote:
            reason = (
                f"{votes[winning_group]} of {num_votes} votes are for another answer"
                if index in groups
                else "it came to no end"
            )
            rewarded[index] = replace(children[index], problem=reason)
        elif index in groups:
            rewarded[index] = replace(
                children[index], value=votes[groups[index]] / num_votes if groups[index] >= 0 else 0.0
            )
    return rewarded


# ------------------------------------------------------------------ which end


def _find_agreed(state: _SearchState, agree: Agree) -> Generator[Request, Response, list[int]]:
    """Returns the ends that a discriminator agrees with."""
    traces = [trace for node in state.ends if (trace := _build_trace(state, node)).answer is not None]
    verdicts = agree(traces, state.rng) if traces else ()
    if isinstance(verdicts, Generator):
        verdicts = yield from _run_discriminator(verdicts, state.tracker)
    if len(verdicts) != len(traces):
        raise EngineError("number of verdicts does not match the traces", value=len(verdicts), expected=len(traces))
    return [trace.nodes[-1] for trace, good in zip(traces, verdicts, strict=True) if good]


def _run_discriminator(judging: Judging, tracker: BudgetTracker) -> Generator[Request, Response, Sequence[bool]]:
    """Runs a discriminator: its expansions are answered all or none."""
    try:
        expansions = next(judging)
        while True:
            response = yield from tracker.request(expansions)
            if response.short is not None:
                raise Exhausted(response.short)
            expansions = judging.send(response)
    except StopIteration as stop:
        verdicts: Sequence[bool] = stop.value
        return verdicts


def _build_trace(state: _SearchState, node: int) -> Trace:
    tree, path = state.tree, state.tree.path(node)
    return Trace(
        tuple(path),
        tuple(tree.states[path_node] for path_node in path),
        tuple(tree.kinds[path_node] for path_node in path[1:]),
        tree.line(node),
        state.answer(tree.states[node]),
        float(tree.value[node]),
    )


def _majority_answer(children: Sequence[Child], answer: Answer, same: Same | None) -> Hashable | None:
    samples = [
        Sample(answer(child.state), count=child.count) for child in children if child.terminal and not child.problem
    ]
    return aggregate(samples, span="last", rule="majority", same=same).answer


def _most_confident(state: _SearchState, ends: Sequence[int]) -> tuple[int | None, float | None]:
    """Returns the end to choose, and its answer's share of all rewards; None where there is none, or all are 0."""
    samples = [Sample(state.answer(state.tree.states[node]), (float(state.tree.value[node]),)) for node in ends]
    choice = aggregate(samples, span="last", rule="vote", same=state.same)
    return None if choice.best_sample is None else ends[choice.best_sample], choice.share
