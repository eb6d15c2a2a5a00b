"""rStar: which kind follows which, votes and rewards by hand, UCT, decay, the discriminator, the texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import SmallTree, Watch, run

from evolvent.errors import ConfigError, EngineError, NoLegalAction
from evolvent.search.records import Budget, Child
from evolvent.search.rstar import RStarTreeConfig, mutual_consistency, rstar
from evolvent.search.rstar_prompts import (
    MARK,
    Solution,
    Step,
    build_prompt,
    extend_solution,
    is_ended,
    read_answer,
    stop_strings,
)

FREE = Budget()
FOLLOW = {"": "A1 A2 A3 A5", "A1": "A1 A2", "A3": "A1 A2 A3 A4", "A4": "A1 A2 A3", "A5": "A1 A2 A3"}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@dataclass(frozen=True)
class At:
    """A state: the kinds and numbers of the actions so far, and the answer where it is an end."""

    path: tuple[tuple[str, int], ...] = ()
    answer: str | None = None


def read(state: At) -> str | None:
    return state.answer


Script = Callable[[At, str, int], tuple[str | None, bool]]


@dataclass
class Reasoner(Watch):
    """Makes actions by a script: (state, kind, number) -> its answer, and whether it is an end."""

    tree: SmallTree = field(default_factory=lambda: SmallTree({}, {}, {}))
    script: Script = lambda state, kind, number: ("7", kind in ("A2", "mutual"))
    wishes: list = field(default_factory=list)

    def _children(self, wish):
        assert wish.kind == "mutual" or (wish.state, wish.kind) not in [(each.state, each.kind) for each in self.wishes]
        assert wish.to_end == (wish.kind in ("A2", "mutual")) and not wish.valued
        self.wishes.append(wish)
        made: dict[tuple[str | int | None, bool], list[int]] = {}
        for number in range(wish.first, wish.first + wish.width):
            told = self.script(wish.state, wish.kind, number)
            made.setdefault(told if told[1] else (None, number), []).append(number)
        return [
            Child(
                At((*wish.state.path, (wish.kind, numbers[0])), answer if terminal is True else None),
                f"{wish.kind}.{numbers[0]}",
                value=0.9,
                terminal=terminal is True,
                generated=len(numbers),
                count=len(numbers),
            )
            for (answer, terminal), numbers in made.items()
        ]


def search(watch: Watch, budget: Budget = FREE, seed: int = 0, **given):
    about = {name: given.pop(name) for name in ("actions", "depth", "last_votes", "c", "decay") if name in given}
    return run(rstar(At(), budget, rng(seed), answer=read, reasoning=RStarTreeConfig(**about), **given), watch, budget)


def ends_of(result) -> list[int]:
    return [node for node in range(len(result.tree)) if result.tree.terminal[node]]


def test_kinds_follow_each_other_and_the_last_step_ends():
    watch = Reasoner()
    result = search(watch, rollouts=400, depth=4)
    followed: dict[tuple[str, int], set[str]] = {}
    widths = Counter()
    for wish in watch.wishes:
        before = wish.state.path[-1][0] if wish.state.path else ""
        followed.setdefault((before, len(wish.state.path)), set()).add(wish.kind)
        widths[len(wish.state.path) == 3, wish.kind, wish.width] += 1
    assert {before for before, _ in followed} == set(FOLLOW)
    for (before, depth), kinds in followed.items():
        assert kinds == ({"A2"} if depth == 3 else set(FOLLOW[before].split())), (before, depth)
    assert set(widths) == {
        (True, "A2", 32),
        (False, "A1", 3),
        (False, "A2", 10),
        (False, "A3", 3),
        (False, "A4", 1),
        (False, "A5", 1),
    }
    assert all(wanted.expand for wanted in watch.batches)
    opened = sum(result.tree.is_expanded(node) for node in range(len(result.tree)))
    assert len(watch.batches) == opened  # all kinds of a node are asked for at once
    assert max(result.tree.depth[: len(result.tree)]) == 4


def votes(state: At, kind: str, number: int) -> tuple[str | None, bool]:
    return (("7", "5", "5", None)[number % 4], True) if kind == "A2" else (None, False)


def test_the_votes_of_a_node_are_one_child_with_their_share():
    result = search(Reasoner(script=votes), depth=1, rollouts=3)
    assert len(result.tree) == 2
    assert (result.tree.states[1].answer, result.tree.value[1], result.tree.counts[1]) == ("5", 0.5, 16)
    assert result.finished == (1, 1, 1) and result.best_node == 1
    why = "16 of 32 votes are for another answer"
    assert [(each.action, each.reason) for each in result.dropped] == [("A2.0", why), ("A2.3", why)]
    assert result.notes == {"rollouts": 3, "confidence": 1.0, "agreed": None}
    assert result.spent.generated == 32


def test_of_equal_votes_the_first_wins_and_no_answer_has_no_share():
    even = search(Reasoner(script=lambda state, kind, number: (str(number % 2), True)), depth=1, rollouts=1)
    assert (even.tree.states[1].answer, even.tree.value[1]) == ("0", 0.5)
    few = search(Reasoner(script=lambda state, kind, number: (None if number % 4 else "7", True)), depth=1, rollouts=1)
    assert (few.tree.states[1].answer, few.tree.value[1]) == ("7", 0.25)
    none = search(Reasoner(script=lambda state, kind, number: (None, True)), depth=1, rollouts=1)
    assert (none.tree.value[1], none.best_node, none.notes["confidence"]) == (0.0, 1, None)


def test_of_equal_votes_the_first_vote_wins_whatever_a_thought_said():
    def script(state, kind, number):
        return ("5" if kind == "A1" else "75"[number % 2]), True

    result = search(Reasoner(script=script), rollouts=1, actions={"A1": 1, "A2": 4})
    assert [result.tree.states[node].answer for node in ends_of(result)] == ["5", "7"]
    assert list(result.tree.value[ends_of(result)]) == [0.5, 0.5]


def test_answers_are_compared_by_the_grader():
    def script(state, kind, number):
        return ("1", "1/2", "0.5", "2/4", "1")[number % 5], True

    plain = search(Reasoner(script=script), depth=1, rollouts=1, last_votes=10)
    assert (plain.tree.states[1].answer, plain.tree.value[1]) == ("1", 0.4)
    same = search(
        Reasoner(script=script),
        depth=1,
        rollouts=1,
        last_votes=10,
        same=lambda one, other: Fraction(one) == Fraction(other),
    )
    assert (same.tree.states[1].answer, same.tree.value[1]) == ("1/2", 0.6)


def test_a_thought_with_an_answer_has_the_share_of_its_votes():
    def script(state, kind, number):
        if kind == "A1":
            return ("7", "5", "9")[number], True
        return votes(state, kind, number)

    result = search(Reasoner(script=script), rollouts=1, actions={"A1": 3, "A2": 8})
    rewards = {result.tree.actions[node]: float(result.tree.value[node]) for node in ends_of(result)}
    assert rewards == {"A1.0": 0.25, "A1.1": 0.5, "A1.2": 0.0, "A2.1": 0.5}
    assert result.tree.states[result.best_node].answer == "5"
    assert result.notes["confidence"] == pytest.approx(0.8)
    assert len(result.finished) == 4 and set(result.finished) == set(ends_of(result))


def test_completions_that_come_to_no_end_are_votes_for_nothing():
    def script(state, kind, number):
        return ("7", True) if number % 4 == 0 else (None, False)

    result = search(Reasoner(script=script), depth=1, rollouts=1)
    assert result.tree.value[1] == 0.25
    assert {each.reason for each in result.dropped} == {"it came to no end"}


def mixed(state: At, kind: str, number: int) -> tuple[str | None, bool]:
    """Answers that depend on the whole way, so that nodes have different rewards."""
    if kind not in ("A2", "mutual"):
        return (None, False)
    return str((sum(ord(c) for each, n in state.path for c in each + str(n)) + number * number) % 7), True


def test_what_is_backed_up_is_what_was_earned():
    result = search(Reasoner(script=mixed), rollouts=60, c=1.0)
    tree = result.tree
    rolled = result.finished[:60]
    assert tree.visits[0] == 60 and math.isclose(tree.total[0], sum(tree.value[node] for node in rolled))
    for node in range(len(tree)):
        if tree.terminal[node]:
            assert tree.visits[node] == rolled.count(node)
            assert math.isclose(tree.total[node], tree.visits[node] * tree.value[node])
            continue
        assert np.isnan(tree.value[node])  # only ends are worth something, whatever the adapter tells
        if tree.is_expanded(node):
            assert tree.visits[tree.children(node)].sum() == tree.visits[node]
            assert math.isclose(tree.total[tree.children(node)].sum(), tree.total[node])
    # No child is gone to again before all its siblings were.
    for node in range(len(tree)):
        seen = tree.visits[tree.children(node)]
        if tree.is_expanded(node) and tree.visits[node] <= len(seen):
            assert sorted(seen) == [0] * int(len(seen) - tree.visits[node]) + [1] * int(tree.visits[node])


def test_children_that_were_not_visited_come_in_random_order():
    results = [search(Reasoner(), seed=seed, rollouts=1, depth=2) for seed in range(60)]
    below = set(results[0].tree.actions[results[0].tree.children(0)])
    assert {each.tree.line(each.finished[0])[0] for each in results} == below and len(below) == 8


@pytest.mark.parametrize("decay", ["constant", "linear", "exponential"])
def test_uct_by_hand(decay):
    """Three ends below the root with rewards 1, 1 and 0: each rollout goes to the most of Q + c sqrt(ln N / n)."""

    def script(state, kind, number):
        return ("7" if kind == "A2" or number == 0 else "5"), True

    result = search(Reasoner(script=script), rollouts=40, actions={"A1": 2, "A2": 1}, decay=decay, seed=3)
    tree = result.tree
    rewards = {node: float(tree.value[node]) for node in ends_of(result)}
    assert sorted(rewards.values()) == [0.0, 1.0, 1.0]
    visits, order = dict.fromkeys(rewards, 0), list(result.finished)
    for number, node in enumerate(order):
        if number >= 3:
            done = number / 39
            c = {"constant": 2.0, "linear": 2.0 - 1.8 * done, "exponential": 2.0 * 10**-done}[decay]
            score = {each: rewards[each] + c * math.sqrt(math.log(number) / visits[each]) for each in visits}
            assert node == max(score, key=score.__getitem__)
        visits[node] += 1
    assert len(set(order[:3])) == 3
    least = {"constant": 4, "linear": 2, "exponential": 1}[decay]  # the bad one is tried less and less
    assert visits[min(visits, key=rewards.__getitem__)] == least
    greedy = search(Reasoner(script=script), rollouts=40, actions={"A1": 2, "A2": 1}, c=0.0, seed=3)
    assert sorted(Counter(greedy.finished).values()) == [1, 1, 38]


def test_exploration_falls_to_a_tenth():
    constant, linear, exponential = (RStarTreeConfig(decay=decay) for decay in ("constant", "linear", "exponential"))
    assert [constant.exploration(number, 5) for number in range(5)] == [2.0] * 5
    assert [linear.exploration(number, 5) for number in range(5)] == pytest.approx([2.0, 1.55, 1.1, 0.65, 0.2])
    assert [exponential.exploration(number, 3) for number in range(3)] == pytest.approx([2, 2 / 10**0.5, 0.2])
    assert linear.exploration(0, 1) == 2.0


def test_the_most_confident_answer_is_chosen_each_end_once():
    result = search(Reasoner(script=mixed), rollouts=50)
    weights: dict[str, float] = {}
    for node in ends_of(result):
        answer = result.tree.states[node].answer
        weights[answer] = weights.get(answer, 0.0) + float(result.tree.value[node])
    best = max(weights, key=weights.__getitem__)
    assert result.tree.states[result.best_node].answer == best
    assert result.notes["confidence"] == pytest.approx(weights[best] / sum(weights.values()))
    assert result.tree.value[result.best_node] == max(
        result.tree.value[node] for node in ends_of(result) if result.tree.states[node].answer == best
    )


def test_a_function_can_judge_the_traces():
    seen = []

    def agree(traces, generator):
        seen.extend(traces)
        return [trace.answer == "3" for trace in traces]

    free = search(Reasoner(script=mixed), rollouts=40)
    result = search(Reasoner(script=mixed), rollouts=40, agree=agree)
    assert result.tree.states[free.best_node].answer != "3"
    assert result.tree.states[result.best_node].answer == "3"
    assert result.notes["agreed"] == [node for node in ends_of(result) if result.tree.states[node].answer == "3"]
    assert len(seen) == len(ends_of(result))
    for trace in seen:
        end = trace.nodes[-1]
        assert trace.nodes == tuple(result.tree.path(end)) and trace.actions == result.tree.line(end)
        assert [f"{kind}.{number}" for kind, number in trace.states[-1].path] == list(trace.actions)
        assert [kind for kind, _ in trace.states[-1].path] == list(trace.kinds)
        assert trace.reward == result.tree.value[end]
    nobody = search(Reasoner(script=mixed), rollouts=40, agree=lambda traces, generator: [False] * len(traces))
    assert (nobody.best_node, nobody.notes["agreed"]) == (free.best_node, [])
    with pytest.raises(EngineError, match="number of verdicts does not match the traces"):
        search(Reasoner(script=mixed), rollouts=2, agree=lambda traces, generator: [True])


def test_mutual_consistency_completes_what_is_masked():
    """Completions know that the answer is 4; votes say 4 only after a first thought number 1."""

    def script(state, kind, number):
        if kind == "mutual":
            return "4", True
        if kind == "A2":
            return ("4" if ("A1", 1) in state.path[:1] else "6"), True
        return None, False

    watch = Reasoner(script=script)
    result = search(watch, rollouts=30, depth=3, agree=mutual_consistency(read, completions=2))
    assert [result.tree.states[node].answer for node in result.notes["agreed"]] == ["4"] * len(result.notes["agreed"])
    assert result.tree.states[result.best_node].answer == "4"
    free = search(Reasoner(script=script), rollouts=30, depth=3)
    assert free.tree.states[free.best_node].answer == "6"
    wishes = [wish for wish in watch.wishes if wish.kind == "mutual"]
    assert len({wish.state for wish in wishes}) == len(wishes) > 1  # a node is completed once for all its traces
    assert {(wish.width, wish.first) for wish in wishes} == {(2, 1000)}
    # Of d actions at most d - 2 stay: never only the last is masked.
    assert {len(wish.state.path) for wish in wishes} == {0, 1}
    assert len([wanted for wanted in watch.batches if wanted.expand[0].kind == "mutual"]) == 1


def test_the_majority_of_the_completions_decides():
    def script(state, kind, number):
        return ("6" if kind == "mutual" and number == 0 else "4"), kind in ("A2", "mutual")

    for completions, good in ((1, 0), (2, 0), (3, 1)):  # 6; 6 and 4, the first seen; 6, 4 and 4
        agree = mutual_consistency(read, completions=completions, first=0)
        result = search(Reasoner(script=script), rollouts=1, depth=1, agree=agree)
        assert len(result.notes["agreed"]) == good


def test_completions_are_compared_by_the_grader():
    def script(state, kind, number):
        return ("0.5" if kind == "mutual" else "1/2"), kind in ("A2", "mutual")

    for same, good in ((None, 0), (lambda one, other: Fraction(one) == Fraction(other), 1)):
        result = search(Reasoner(script=script), rollouts=1, depth=1, agree=mutual_consistency(read, same=same))
        assert len(result.notes["agreed"]) == good


def test_a_budget_that_ends_in_the_discriminator_leaves_the_choice_without_it():
    free = search(Reasoner(script=mixed), rollouts=10)
    budget = Budget(expansions=free.spent.expansions + 1)
    result = search(Reasoner(script=mixed), budget, rollouts=10, agree=mutual_consistency(read))
    assert (result.best_node, result.notes["agreed"], result.ended_by) == (free.best_node, None, "expansions")
    enough = search(
        Reasoner(script=mixed),
        Budget(expansions=free.spent.expansions + 99),
        rollouts=10,
        agree=mutual_consistency(read),
    )
    assert enough.ended_by == "done" and enough.notes["agreed"] is not None


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["generated", "computed", "expansions"]), st.integers(1, 1500), st.integers(0, 9))
def test_no_budget_is_exceeded_and_every_budget_gives_a_result(limit, most, seed):
    budget = Budget(**{limit: most})
    first, second = (
        search(Reasoner(script=mixed), budget, seed, rollouts=12, decay="linear", agree=mutual_consistency(read))
        for _ in range(2)
    )
    assert first.ended_by in ("done", limit)
    assert (first.finished, first.best_node, first.spent) == (second.finished, second.best_node, second.spent)
    assert first.notes["rollouts"] <= 12


def test_kinds_that_came_before_the_budget_ended_are_kept():
    result = search(Reasoner(script=mixed), Budget(expansions=2), rollouts=5)
    assert set(result.tree.kinds[1:]) == {"A1", "A2"}
    assert (result.ended_by, result.notes["rollouts"], result.best_node) == ("expansions", 0, ends_of(result)[0])


def test_a_budget_with_room_for_one_kind_has_the_votes():
    """A thought that has an answer is nothing without votes: it would agree with itself."""
    script = lambda state, kind, number: ("5" if kind == "A2" else "9", kind in ("A1", "A2"))  # noqa: E731
    result = search(Reasoner(script=script), Budget(expansions=1), rollouts=5)
    assert [result.tree.kinds[node] for node in ends_of(result)] == ["A2"] and result.tree.value[1] == 1.0
    both = search(Reasoner(script=script), Budget(expansions=2), rollouts=5)
    rewards = {(both.tree.kinds[node], both.tree.states[node].answer): both.tree.value[node] for node in ends_of(both)}
    assert rewards == {("A1", "9"): 0.0, ("A2", "5"): 1.0} and both.tree.states[both.best_node].answer == "5"


def test_no_action_at_the_root_and_none_further_down():
    class Nothing(Reasoner):
        def _children(self, wish):
            return super()._children(wish) if wish.state.path in self.open else []

    nothing = Nothing(script=mixed)
    nothing.open = ()
    with pytest.raises(NoLegalAction):
        search(nothing, rollouts=3)
    nothing = Nothing(script=mixed)
    nothing.open = ((),)
    result = search(nothing, rollouts=30, c=0.5)
    barren = [node for node in range(1, len(result.tree)) if not result.tree.terminal[node]]
    assert all(result.tree.total[node] == 0 for node in barren) and result.tree.visits[barren].sum() > 0
    assert result.tree.terminal[result.best_node] and result.notes["rollouts"] == 30


def test_settings_are_checked_together():
    with pytest.raises(ConfigError, match="rollouts"):
        next(rstar(At(), FREE, rng(), answer=read, rollouts=0))
    with pytest.raises(ConfigError) as told:
        RStarTreeConfig(actions={"A1": 0, "A7": 1}, depth=0, last_votes=0, c=math.nan, decay="cosine")
    wrong = ["depth", "last_votes", "actions.A1", "actions", "actions", "c", "decay"]
    assert [problem.where for problem in told.value.problems] == wrong
    with pytest.raises(ConfigError):
        mutual_consistency(read, completions=0)


# ------------------------------------------------------------------ texts

PROBLEM = "Tom has 3 apples and buys 4. He eats 2. How many are left?"


def test_prompts_have_the_problem_the_steps_and_the_task():
    start = Solution(PROBLEM)
    thought = extend_solution(start, "A1", " First 3 + 4 = 7.\n")
    asked = extend_solution(thought, "A3", " How many does he eat?\nAnswer: He eats 2.")
    assert asked.steps == (Step("A1", "First 3 + 4 = 7."), Step("A3", "He eats 2.", "How many does he eat?"))
    told = build_prompt(asked, "A1")
    assert PROBLEM in told and "1. First 3 + 4 = 7.\n2. Question: How many does he eat? Answer: He eats 2." in told
    assert build_prompt(asked, "A3").endswith("\n\nQuestion:") and build_prompt(asked, "A4").endswith("\n\nAnswer:")
    assert "He eats 2." not in build_prompt(asked, "A4").replace(PROBLEM, "")  # what is to be said again is not shown
    assert build_prompt(asked, "mutual") == build_prompt(asked, "A2")
    assert len({build_prompt(asked, kind) for kind in ("A1", "A2", "A3", "A4", "A5")}) == 5
    assert [stop_strings(kind) for kind in ("A1", "A2", "A4")] == [("\n",), (), ("\n",)]


def test_replies_become_solutions():
    start = Solution(PROBLEM)
    asked = extend_solution(start, "A3", "Question: How many\nin all?\nAnswer: 3 + 4 = 8.")
    again = extend_solution(asked, "A4", " 3 + 4 = 7.")
    assert again.steps == (Step("A4", "3 + 4 = 7.", "How many in all?"),)
    assert extend_solution(start, "A5", "Known: 3 apples.\n4 more. Asked: the rest.") == Solution(
        "Known: 3 apples. 4 more. Asked: the rest."
    )
    assert extend_solution(start, "A3", "How many?") is None and extend_solution(start, "A3", "Answer: 7") is None
    assert all(extend_solution(asked, kind, "  \n") is None for kind in ("A1", "A2", "A3", "A4", "A5"))
    for bare in (start, Solution(PROBLEM, (Step("A1", "3 + 4 = 7."),))):
        with pytest.raises(ConfigError, match="no sub-question"):
            build_prompt(bare, "A4")
        with pytest.raises(ConfigError, match="no sub-question"):
            extend_solution(bare, "A4", "7")
    with pytest.raises(ConfigError, match="unknown kind of action 'A6'"):
        build_prompt(start, "A6")


def test_an_end_says_its_answer():
    start = Solution(f"{PROBLEM} Say: {MARK} 9.")
    assert read_answer(start) is None and not is_ended(start)  # what the problem says is no answer
    whole = extend_solution(start, "A2", f"3 + 4 = 7.\n{MARK} 7.\nNo, 7 - 2 = 5.\nthe answer is: $5.50.")
    assert (read_answer(whole), is_ended(whole), whole.steps[-1].kind) == ("$5.50", True, "A2")
    cut = extend_solution(start, "A2", "3 + 4 = 7, and then")
    assert (read_answer(cut), is_ended(cut)) == (None, True)
    thought = extend_solution(start, "A1", f"7 - 2 = 5. {MARK} 5")
    assert (read_answer(thought), is_ended(thought)) == ("5", True)
    assert not is_ended(extend_solution(start, "A1", "3 + 4 = 7."))
    assert read_answer(extend_solution(start, "A1", f"{MARK} .")) is None


class Model(Watch):
    """Answers the prompts of a sum by their text alone; wrong in every third completion."""

    def _children(self, wish):
        replies = [self.reply(build_prompt(wish.state, wish.kind), wish.kind, number) for number in range(wish.width)]
        made = Counter(extend_solution(wish.state, wish.kind, reply) for reply in replies)
        return [
            Child(
                state,
                state.steps[-1].text if state.steps else state.problem,
                terminal=is_ended(state),
                generated=count,
                count=count,
                kind=wish.kind,
            )
            for state, count in made.items()
        ]

    def reply(self, told: str, kind: str, number: int) -> str:
        numbers = [int(each) for each in told.split("Problem:\n")[1].split("\n")[0].split() if each.isdigit()]
        if kind == "A1":
            return f"{numbers[0]} and {numbers[1]} are to be added."
        if kind == "A3":
            return f" What comes first?\nAnswer: {numbers[0]}"
        if kind == "A4":
            return " It begins with the first number."
        if kind == "A5":
            return f"Known: {numbers[0]} and {numbers[1]} . Asked: both together."
        return f"Add them.\n{MARK} {sum(numbers) + (number % 3 == 2)}."


def test_search_and_texts_together():
    solve = rstar(
        Solution("What is 20 plus 22 ?"),
        FREE,
        rng(),
        answer=read_answer,
        rollouts=30,
        agree=mutual_consistency(read_answer),
    )
    result = run(solve, Model(SmallTree({}, {}, {})))
    assert read_answer(result.tree.states[result.best_node]) == "42"
    assert set(result.tree.kinds) == {"", "A1", "A2", "A3", "A4", "A5"}
    assert {read_answer(result.tree.states[node]) for node in ends_of(result)} == {"42"}
    assert set(np.round(result.tree.value[ends_of(result)], 6)) <= {0.7, round(22 / 32, 6)}
