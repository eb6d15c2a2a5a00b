"""rStar: Monte Carlo tree search over five kinds of reasoning actions, without a reward model (arXiv 2408.06195).

A1 adds one thought, A2 the rest of the solution, A3 the next sub-question with its answer, A4 answers that sub-question
again, A5 rephrases the problem. What a kind means is the adapter's business (`search/rstar_prompts.py` has texts for
it); the search knows which kind may follow which, and rewards an end by how many votes come to the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from evolvent.errors import ConfigError, EngineError, Problem, unknown
from evolvent.search.aggregate import Answer, Same, Sample, aggregate, grouped
from evolvent.search.budgeted import Asking, Exhausted, check_sizes
from evolvent.search.records import Budget, Child, EndedBy, Expand, Found, Search, SearchResult, State, Wanted
from evolvent.search.select import uct
from evolvent.search.tree import Tree

__all__ = [
    "ACTIONS",
    "FOLLOWING",
    "Agree",
    "Decay",
    "Judging",
    "Reasoning",
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
Steps = Generator[Wanted, Found, None]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How rStar grows its tree.

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
        known = set(FOLLOWING) - {""}
        sizes = {"depth": self.depth, "last_votes": self.last_votes}
        sizes |= {f"actions.{kind}": width for kind, width in self.actions.items()}
        problems = [Problem(where, f"must be 1 or more, got {size}") for where, size in sizes.items() if size < 1]
        problems += [
            unknown("kind of action", kind, known, where="actions") for kind in self.actions if kind not in known
        ]
        if "A2" not in self.actions:
            problems.append(Problem("actions", "must have A2, by which solutions end"))
        if not 0 <= self.c < np.inf:
            problems.append(Problem("c", f"must be a number of 0 or more, got {self.c}"))
        if self.decay not in get_args(Decay):
            problems.append(Problem("decay", f"must be one of {', '.join(get_args(Decay))}, got {self.decay!r}"))
        if problems:
            raise ConfigError(problems)

    def exploration(self, number: int, rollouts: int) -> float:
        """c in rollout `number` of `rollouts`: constant, or falling from c in the first to c / 10 in the last.

        linear: `c (1 - .9 x)`, exponential: `c .1^x`, x going from 0 to 1.
        """
        done = number / max(rollouts - 1, 1)
        if self.decay == "linear":
            return self.c * (1.0 - 0.9 * done)
        return self.c * 0.1**done if self.decay == "exponential" else self.c


@dataclass(frozen=True, slots=True)
class Trace:
    """One way to an end: its nodes and states from the root on, kinds and actions between them, answer and reward."""

    nodes: tuple[int, ...]
    states: tuple[State, ...]
    kinds: tuple[str, ...]
    actions: tuple[str, ...]
    answer: Hashable | None
    reward: float


Judging = Generator[Sequence[Expand], Found, Sequence[bool]]
Agree = Callable[[Sequence[Trace], np.random.Generator], Sequence[bool] | Judging]


@dataclass(frozen=True, slots=True)
class _Growing:
    """What the parts of one search share."""

    tree: Tree
    asking: Asking
    rng: np.random.Generator
    reasoning: Reasoning
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
    reasoning: Reasoning | None = None,
    same: Same | None = None,
    agree: Agree | None = None,
) -> Search:
    """Grow the tree in `rollouts`, each from the root to an end; the choice is an end with the most confident answer.

    A rollout goes down by UCT, children that were never visited first and in random order, and expands the nodes it
    comes to with all kinds that may follow, in one wish each, all at once. So what the paper calls simulation, a random
    way below the leaf, is the same walk. In the node above `depth` A2 alone is left, with `last_votes` votes. One
    rollout depends on the last; the forwards of several searches are put together by what drives them.

    The completions of one A2 are votes: the answer of most is kept as one child, the first that came to it, and its
    reward is its share of the votes; the others are listed in `dropped`. The reward of another end (a thought that
    already has the answer) is the share of its node's votes that come to the same answer. An end without an answer
    and a node without children earn 0. The reward is the end's value, and it is backed up as a plain mean.

    All ends that were made are candidates, and those that no rollout came to stand last in `finished`. The confidence
    of an answer is the sum of the rewards of its ends, each end once; chosen is the end of the highest reward that has
    the most confident answer. With `agree` only ends that it agrees with are candidates, unless there are none. Notes:
    "rollouts" that were done, "confidence" as the share of all rewards, "agreed" the ends that `agree` agreed with.

    Args:
        answer: reads the answer of a finished state; None: it has none. same: whether two answers are one.
        agree: tells of each trace that has an answer whether it is to be trusted, or is a generator of wishes that
            does, as `mutual_consistency`. Where the budget ends in it, it does not count.
    Raises:
        ConfigError: no rollouts. NoLegalAction: the root has no action.
        EngineError: `agree` tells of another number of traces.
    """
    check_sizes(rollouts=rollouts)
    on = _Growing(Tree(root), Asking(budget), rng, reasoning or Reasoning(), answer, same)
    ended: EndedBy = "done"
    finished: list[int] = []
    agreed: list[int] | None = None
    try:
        for number in range(rollouts):
            yield from _roll(on, on.reasoning.exploration(number, rollouts), finished)
        if agree is not None:
            agreed = yield from _agreed(on, agree)
    except Exhausted as reached:
        ended = reached.limit
    finished += [node for node in on.ends if not on.tree.visits[node]]
    chosen, share = _most_confident(on, agreed or on.ends)
    notes = {"rollouts": int(on.tree.visits[0]), "confidence": share, "agreed": agreed}
    return SearchResult(on.tree, tuple(finished), chosen, on.asking.spent, ended, notes)


def mutual_consistency(
    answer: Answer, *, completions: int = 1, same: Same | None = None, kind: str = "mutual", first: int = 1000
) -> Agree:
    """A discriminator (section 3.3 of the paper): a trace is trusted if its end is found again from a part of it.

    Of a trace of d actions all from a random one on are masked, never only the last: a number in 0..d-2 of them stays
    (0 where d is 1). The solution is completed from there, and the answer of most completions must be the trace's.
    Traces that are cut at the same node share their completions.

    Args:
        kind: of the wishes, by which an adapter can tell them from A2 and have another model complete, as the paper
            does. completions: how many there are of each. first: number of the first one, beyond those of the votes,
            so that a model that completes its own traces does not draw the votes again.
    Raises:
        ConfigError: less than one completion.
    """
    check_sizes(completions=completions)

    def judge(traces: Sequence[Trace], rng: np.random.Generator) -> Judging:
        stays = [int(rng.integers(0, max(1, len(trace.actions) - 1))) for trace in traces]
        cuts = {trace.nodes[stay]: trace.states[stay] for trace, stay in zip(traces, stays, strict=True)}
        found = yield [
            Expand(state, completions, whole=True, valued=False, kind=kind, first=first) for state in cuts.values()
        ]
        heard = {
            cut: _majority(children or (), answer, same) for cut, children in zip(cuts, found.children, strict=True)
        }
        return [
            grouped([trace.answer, heard[trace.nodes[stay]]], same=same) == (0, 0)
            for trace, stay in zip(traces, stays, strict=True)
        ]

    return judge


# ------------------------------------------------------------------ one rollout


def _roll(on: _Growing, c: float, finished: list[int]) -> Steps:
    """One way from the root to an end, or to where no child is, and the backup of what it earned."""
    tree, node = on.tree, 0
    while not tree.terminal[node]:
        if not tree.expanded(node):
            yield from _open(on, node)
        where = tree.children(node)
        if where.start == where.stop:
            tree.backup(node, 0.0)
            return
        visits, parent = tree.visits[where], int(tree.visits[node])
        scores = uct(tree.means(where), tree.prior[where], parent_visits=parent, visits=visits, c=c)
        unvisited = np.flatnonzero(visits == 0)
        node = where.start + int(on.rng.choice(unvisited) if len(unvisited) else np.argmax(scores))
    tree.backup(node, float(tree.value[node]))
    finished.append(node)


def _open(on: _Growing, node: int) -> Steps:
    """Add the children of all kinds that may follow; those that came also where the budget has no room for others."""
    tree, actions = on.tree, on.reasoning.actions
    if tree.depth[node] + 1 >= on.reasoning.depth:
        widths = {"A2": on.reasoning.last_votes}
    else:
        widths = {kind: actions[kind] for kind in FOLLOWING[tree.kinds[node]] if kind in actions}
    asked = sorted(widths, key=lambda kind: kind != "A2")  # votes first: without them no other end has a reward
    wishes = [Expand(tree.states[node], widths[kind], whole=kind == "A2", valued=False, kind=kind) for kind in asked]
    found = yield from on.asking.ask(wishes)
    by = dict(zip(asked, found.children, strict=True))
    told = [replace(child, kind=kind, value=None) for kind in widths for child in by[kind] or ()]
    if any(children is not None for children in found.children):
        tree.grow(node, _rewarded(told, on.answer, on.same))
    tree.check_root()
    if found.short is not None:
        raise Exhausted(found.short)


def _rewarded(children: Sequence[Child], answer: Answer, same: Same | None) -> list[Child]:
    """The children of one node with the rewards of the ends among them; of the votes one is left."""
    sound = [at for at, child in enumerate(children) if not child.problem]
    ends = [at for at in sound if children[at].terminal]
    # A2 goes first, so that its answers are what others are compared with.
    ends.sort(key=lambda at: children[at].kind != "A2")
    groups = dict(zip(ends, grouped([answer(children[at].state) for at in ends], same=same), strict=True))
    voters = [at for at in sound if children[at].kind == "A2"] or ends
    votes = dict.fromkeys(groups.values(), 0)
    for at in voters:
        if at in groups:
            votes[groups[at]] += children[at].count
    all_ = sum(children[at].count for at in voters)
    won = max((number for number in votes if number >= 0), key=votes.__getitem__, default=-1)
    kept = next((at for at in voters if groups.get(at) == won), None)
    found = list(children)
    for at in sound:
        if children[at].kind == "A2" and at != kept:
            why = f"{votes[won]} of {all_} votes are for another answer" if at in groups else "it came to no end"
            found[at] = replace(children[at], problem=why)
        elif at in groups:
            found[at] = replace(children[at], value=votes[groups[at]] / all_ if groups[at] >= 0 else 0.0)
    return found


# ------------------------------------------------------------------ which end


def _agreed(on: _Growing, agree: Agree) -> Generator[Wanted, Found, list[int]]:
    """The ends that a discriminator agrees with."""
    traces = [trace for node in on.ends if (trace := _trace(on, node)).answer is not None]
    told = agree(traces, on.rng) if traces else ()
    if isinstance(told, Generator):
        told = yield from _asked(told, on.asking)
    if len(told) != len(traces):
        raise EngineError("a discriminator did not judge each trace", value=len(told), expected=len(traces))
    return [trace.nodes[-1] for trace, good in zip(traces, told, strict=True) if good]


def _asked(judging: Judging, asking: Asking) -> Generator[Wanted, Found, Sequence[bool]]:
    """Have the wishes of a discriminator fulfilled, all or none."""
    try:
        wishes = next(judging)
        while True:
            found = yield from asking.ask(wishes)
            if found.short is not None:
                raise Exhausted(found.short)
            wishes = judging.send(found)
    except StopIteration as stop:
        told: Sequence[bool] = stop.value
        return told


def _trace(on: _Growing, node: int) -> Trace:
    tree, path = on.tree, on.tree.path(node)
    return Trace(
        tuple(path),
        tuple(tree.states[at] for at in path),
        tuple(tree.kinds[at] for at in path[1:]),
        tree.line(node),
        on.answer(tree.states[node]),
        float(tree.value[node]),
    )


def _majority(children: Sequence[Child], answer: Answer, same: Same | None) -> Hashable | None:
    samples = [
        Sample(answer(child.state), count=child.count) for child in children if child.terminal and not child.problem
    ]
    return aggregate(samples, span="last", rule="majority", same=same).answer


def _most_confident(on: _Growing, ends: Sequence[int]) -> tuple[int | None, float | None]:
    """The end to choose, and the share of its answer in all rewards; None where there is none, or all are 0."""
    samples = [Sample(on.answer(on.tree.states[node]), (float(on.tree.value[node]),)) for node in ends]
    choice = aggregate(samples, span="last", rule="vote", same=on.same)
    return None if choice.chosen is None else ends[choice.chosen], choice.share
