"""Small random trees with integer states whose best end is known, and a driver that watches over a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from evolvent.search.records import Budget, Child, ExpandRequest, Request, Response, Search, SearchResult, Spent

Value = Callable[[int], float | None]


@dataclass(frozen=True)
class SmallTree:
    """States are integers, 0 the root; a state without children is the end of an episode."""

    below: dict[int, tuple[int, ...]]
    logprob: dict[int, float]
    reward: dict[int, float]  # of every end

    def ends(self, state: int = 0) -> list[int]:
        """All ends below a state, by brute force."""
        if not self.below[state]:
            return [state]
        return [end for child in self.below[state] for end in self.ends(child)]

    def best(self, state: int = 0) -> float:
        """The most that can be earned from a state on: its exact value."""
        return max(self.reward[end] for end in self.ends(state))

    def greedy(self, state: int = 0) -> int:
        """The end that the likeliest actions lead to."""
        while self.below[state]:
            state = max(self.below[state], key=self.logprob.__getitem__)
        return state

    def drawn(self, state: int, number: int) -> int:
        """The end that sample `number` comes to."""
        rng = np.random.default_rng([state, number])
        while below := self.below[state]:
            weights = np.exp([self.logprob[child] for child in below])
            state = int(rng.choice(below, p=weights / weights.sum()))
        return state


def random_tree(seed: int, *, depth: int = 4, most: int = 3, least: int = 1, gap: float = 0.0) -> SmallTree:
    """Ends at depth 2 or later, all rewards different, in (0, 1); those below the best are multiplied by 1 - gap."""
    rng = np.random.default_rng(seed)
    below: dict[int, tuple[int, ...]] = {}
    level, count = [0], 1
    for at in range(depth + 1):
        following: list[int] = []
        for state in level:
            ends = at == depth or (at >= 2 and rng.random() < 0.2)
            size = 0 if ends else int(rng.integers(least, most + 1))
            below[state] = tuple(range(count, count + size))
            following += below[state]
            count += size
        level = following
    ends = [state for state in below if not below[state]]
    rewards = rng.permutation(len(ends)) + 1
    reward = {end: float(each) / (len(ends) + 1) for end, each in zip(ends, rewards, strict=True)}
    best = max(reward.values())
    reward = {end: each if each == best else each * (1 - gap) for end, each in reward.items()}
    return SmallTree(below, {state: float(rng.normal()) for state in below}, reward)


@dataclass
class Watch:
    """Answers wishes from a tree; charges `tokens` generated an action, one computed for each state that it looks at.

    `value` of a state: exact where it is left out. No state may be expanded twice, but for `again` or whole samples.
    """

    tree: SmallTree
    value: Value | None = None
    tokens: int = 3
    again: bool = False
    depth: int = 8  # the longest that a whole sample may be, for the worst case
    expanded: list[int] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    batches: list[Request] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)

    def worth(self, state: int) -> float | None:
        return self.tree.best(state) if self.value is None else self.value(state)

    def answer(self, wanted: Request) -> Response:
        """All that fits what is left, in order, valuing first; from the first that does not fit on nothing."""
        self.batches.append(wanted)
        assert wanted.expand or wanted.evaluate, "a search asked for nothing"
        spent, short = Spent(), None
        values: list[float | None] = []
        for state in wanted.evaluate:
            short = short or wanted.left.over(spent, more=Spent(computed=1, evaluations=1))
            values.append(None if short else self._valued(state))
            spent += Spent(computed=1, evaluations=1) if not short else Spent()
        children: list[Sequence[Child] | None] = []
        for wish in wanted.expand:
            long = self.depth if wish.to_end else 1
            most = Spent(wish.width * long * self.tokens, 1 + wish.width * wish.valued, 1)
            short = short or wanted.left.over(spent, more=most)
            children.append(None if short else self._children(wish))
            if not short:
                made = children[-1] or ()
                spent += Spent(sum(c.generated for c in made), 1 + len(made) * wish.valued, 1)
        self.spent += spent
        return Response(children, values, spent, short)

    def _valued(self, state: int) -> float:
        self.evaluated.append(state)
        value = self.worth(state)
        if value is None:  # nobody values it as a child, but one who is asked knows
            return self.tree.best(state)
        return value

    def _children(self, wish: ExpandRequest) -> list[Child]:
        below, state = self.tree.below[wish.state], wish.state
        if not wish.to_end:
            assert self.again or state not in self.expanded, f"state {state} was expanded twice"
        self.expanded.append(state)
        if wish.to_end and wish.greedy:
            counts = {self.tree.greedy(state): 1}
        elif wish.to_end:
            drawn = [self.tree.drawn(state, wish.first + number) for number in range(wish.width)]
            counts = {end: drawn.count(end) for end in dict.fromkeys(drawn)}
        else:
            likeliest = sorted(below, key=lambda child: -self.tree.logprob[child])
            counts = dict.fromkeys(likeliest[wish.after :][: 1 if wish.greedy else wish.width], 1)
        return [self._child(end, count, wish) for end, count in counts.items()]

    def _child(self, state: int, count: int, wish: ExpandRequest) -> Child:
        long = self.length(wish.state, state)
        return Child(
            state,
            str(state),
            self.tree.logprob[state],
            self.worth(state) if wish.valued else None,
            terminal=not self.tree.below[state],
            generated=self.tokens * long * count,
            count=count,
            kind=wish.kind,
        )

    def length(self, above: int, state: int) -> int:
        parents = {child: parent for parent, children in self.tree.below.items() for child in children}
        steps = 0
        while state != above:
            state, steps = parents[state], steps + 1
        return steps


def run(search: Search, watch: Watch, budget: Budget | None = None) -> SearchResult:
    """Run a search to its end; checks that it never spends more than its budget and counts what it spent."""
    try:
        wanted = next(search)
        while True:
            found = watch.answer(wanted)
            if budget is not None:
                assert budget.over(Spent(), more=watch.spent) is None, (budget, watch.spent)
            wanted = search.send(found)
    except StopIteration as stop:
        result: SearchResult = stop.value
    for each in fields(Spent):
        if each.name != "seconds":
            assert getattr(result.spent, each.name) == getattr(watch.spent, each.name), each.name
    check(result)
    return result


def check(result: SearchResult) -> None:
    """What holds of every result."""
    tree = result.tree
    size = len(tree)
    assert len(tree.states) == len(tree.actions) == len(tree.counts) == len(tree.scores) == size
    assert all(tree.terminal[node] for node in result.finished)
    assert result.best_node is None or result.best_node in result.finished
    assert (result.best_node is None) == (not result.finished)
    for node in range(size):
        below = tree.child_ids(node)
        assert len(below) == tree.width[node] and (tree.parent[below] == node).all()
        assert (tree.depth[below] == tree.depth[node] + 1).all()
        assert not len(below) or math.isclose(tree.prior[below].sum(), 1.0)


def end(result: SearchResult) -> int | None:
    """The state that a search decided for."""
    return None if result.best_node is None else int(result.tree.states[result.best_node])
