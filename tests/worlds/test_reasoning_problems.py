"""Word problems: stories worked out again from their sentences, both forms of the answer, programs in real boxes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from evolvent.errors import ConfigError, IsolationUnavailable
from evolvent.grade.programs import assemble_solution, evaluate_straight
from evolvent.sandbox.limits import CallRequest, Outcome, SandboxLimits
from evolvent.worlds.audit import play_actions
from evolvent.worlds.base import SPLITS
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.problems import HEAD, Problems
from evolvent.worlds.reasoning.programs import LIMITS, Programs

SMALL = Sizes(train=60, dev=20, test=80)
COT = Problems(sizes=SMALL)
PROGRAM = Problems(form="program", sizes=SMALL)


def worked_out(text: str) -> int:
    """The answer, from the sentences alone. Things told of by later sentences come later, so one pass is enough."""
    has: dict[str, int] = {}
    *told, asked = re.split(r" \. ", text.removesuffix(f"\n{HEAD}"))
    for one in told:
        if found := re.fullmatch(r"(\w+) has (\d+) (more|fewer) \w+ than (\w+)", one):
            has[found[1]] = has[found[4]] + int(found[2]) * (1 if found[3] == "more" else -1)
        elif found := re.fullmatch(r"(\w+) has (\d+) times as many \w+ as (\w+)", one):
            who, n, other = found[1], int(found[2]), found[3]
            if other in has:
                has[who] = has[other] * n
            else:
                assert has[who] % n == 0
                has[other] = has[who] // n
        elif found := re.fullmatch(r"then (\w+) (\w+(?: away)?) (\d+) \w+", one):
            has[found[1]] += int(found[3]) * (1 if found[2] in ("buys", "finds", "gets") else -1)
        else:
            who, n = re.fullmatch(r"(\w+) has (\d+) \w+", one).groups()
            has[who] = int(n)
    if found := re.fullmatch(r"how many more \w+ does (\w+) have than (\w+) \?", asked):
        return has[found[1]] - has[found[2]]
    if found := re.fullmatch(r"how many \w+ do (\w+) and (\w+) have (?:together|in all|altogether) \?", asked):
        return has[found[1]] + has[found[2]]
    return has[re.fullmatch(r"how many \w+ does (\w+) have \?", asked)[1]]


@pytest.mark.parametrize("world", [COT, PROGRAM])
def test_answers_follow_from_the_text(world):
    for tier in world.tiers:
        for task in world.tasks("test", tier):
            question = world.question(task)
            assert str(worked_out(question.text)) == question.answer
            assert 1 <= int(question.answer) <= 99


def test_rationales_are_true_equations():
    for tier in COT.tiers:
        for task in COT.tasks("test", tier):
            for span in COT.question(task).rationale:
                if found := re.fullmatch(r"(?:\w+ has )?(\d+) ([-+*/]) (\d+) = (\d+)", span):
                    ran = evaluate_straight(assemble_solution(f"return {found[1]} {found[2]} {found[3]}"))
                    assert ran is not None and ran.value == int(found[4])
                else:
                    assert re.fullmatch(r"\w+ has \d+", span)


def test_demonstrated_programs_are_straight_lines_that_return_the_answer():
    for tier in PROGRAM.tiers:
        for task in PROGRAM.tasks("test", tier):
            (said,) = PROGRAM.expert(task) or ()
            ran = evaluate_straight(assemble_solution(said))
            assert ran is not None and ran.value == int(PROGRAM.question(task).answer)
            assert PROGRAM.question(task).text.endswith(f" ?\n{HEAD}")


def test_a_story_is_in_the_same_split_in_both_forms():
    splits = [
        {world.key(task): split for tier in world.tiers for split in SPLITS for task in world.tasks(split, tier)}
        for world in (COT, PROGRAM)
    ]
    assert splits[0] == splits[1]
    assert PROGRAM.run_in_thread and not COT.run_in_thread


class Counted:
    """A runner that says one value whatever it is asked, and keeps what it was asked."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.asked = outcome, []

    def observe(self, source: str, requests: Sequence[CallRequest], limits: SandboxLimits) -> tuple[Outcome, ...]:
        self.asked.append((source, tuple(requests), limits))
        return (self.outcome,) * len(requests)


class TestPrograms:
    def test_what_is_not_straight_goes_to_the_runner(self):
        runner = Counted(Outcome("value", 29))
        world = Problems(form="program", runner=runner, sizes=SMALL)
        task = world.tasks("dev", "seen")[0]
        gold = world.question(task).answer
        assert play_actions(world, task, [f"return {gold}"]) and not runner.asked
        runner.outcome = Outcome("value", int(gold))
        assert play_actions(world, task, ["for i in range(3):\n        pass\n    return i"])
        (source, (request,), limits) = runner.asked[0]
        assert source.startswith("def solution():\n    for i in range(3):\n        pass\n    return i\n")
        assert request.entry in source and limits == LIMITS and limits.wall_s == 2

    @pytest.mark.parametrize(
        ("outcome", "answered"),
        [
            (Outcome("timeout", error="late"), False),
            (Outcome("raised", error="E"), False),
            (Outcome("value", "29"), False),
            (Outcome("value", True), False),
            (Outcome("value", float("nan")), False),
            (Outcome("value", [10**5000]), False),
            (Outcome("value", None), False),
            (Outcome("value", 28.5), True),
            (Outcome("killed"), False),
            (Outcome("malformed"), False),
            (Outcome("limit"), False),
        ],
    )
    def test_other_outcomes_win_nothing(self, outcome, answered):
        found = Programs(Counted(outcome)).grade("import math\n    return 29", Fraction(29))
        assert (found.correct, found.extracted is not None) == (False, answered)
        assert found.why

    def test_without_isolation_nothing_is_scored(self):
        class Bare:
            def observe(
                self, source: str, requests: Sequence[CallRequest], limits: SandboxLimits
            ) -> tuple[Outcome, ...]:
                raise IsolationUnavailable("no isolation here")

        world = Problems(form="program", runner=Bare(), sizes=SMALL)
        task = world.tasks("dev", "seen")[0]
        env = world.make(task)
        env.reset()
        with pytest.raises(IsolationUnavailable):
            env.step("import math\n    return 3")

    def test_settings(self):
        with pytest.raises(ConfigError) as caught:
            Problems(form="poem", relations=1)  # type: ignore[arg-type]
        assert [problem.where for problem in caught.value.problems] == ["form", "relations"]


@pytest.fixture(scope="module")
def boxes() -> Iterator[Programs]:
    programs = Programs(straight=False, limits=replace(LIMITS, wall_s=60.0))  # so that a busy machine changes nothing
    try:
        programs.grade("return 1", Fraction(1))
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    yield programs
    programs.close()


@pytest.mark.parametrize(
    "body",
    [
        "a = 3 ; b = a * 4 ; return b",
        "a = 7\n    a += 2\n    a /= 4\n    return a",
        "return 2 ** 10 - -7 // 2 + -7 % 4",
        "return 1 / 0",
        "return b",
        "a += 1 ; return a",
        "a = 3",
        "return",
        "retrun 3",
        "",
        "max = 4 ; return max",
        "return 2 ** -1",
        "return int(-3.9) + abs(-2.5)",
        "return 1e308 * 10",
        "return 5\n\nreturn 6",
        "'''How many?'''\n    return 3",
        "return 0.1 + 0.2",
        "return 7 // 0.5",
    ],
)
def test_a_box_says_what_the_short_way_says(boxes: Programs, body: str) -> None:
    assert evaluate_straight(assemble_solution(body)) is not None
    short, long = Programs().grade(body, Fraction(12)), boxes.grade(body, Fraction(12))
    assert (short.correct, short.extracted) == (long.correct, long.extracted)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("import math\n    return math.sqrt(144)", "12.0"),
        ("total = 0\n    for i in range(3):\n        total += 4\n    return total", "12"),
        ("class Dozen:\n        def __float__(self):\n            return 12.0\n    return Dozen()", "12.0"),
        ("return '12'", None),
        ("return True", None),
        ("return [12]", None),
        ("while True:\n        pass", None),
        ("import os\n    os._exit(0)", None),
        ("class Same:\n        def __eq__(self, other):\n            return True\n    return Same()", None),
    ],
)
def test_longer_programs_in_a_box(boxes: Programs, body: str, answer: str | None) -> None:
    found = boxes.grade(body, Fraction(12))
    assert (found.extracted, found.correct) == (answer, answer is not None)
