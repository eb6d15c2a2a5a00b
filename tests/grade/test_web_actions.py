"""Web actions and their scores: worked by hand, with each published definition beside the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.grade.web_actions import (
    ParseFailure,
    ScoringRules,
    WebAction,
    WebTarget,
    aggregate_scores,
    parse_action,
    parse_reply,
    score_step,
    token_f1,
)

MINDACT, EXACT = ScoringRules(), ScoringRules("exact")
STEP = WebTarget(("7", "9"), "TYPE", "new york", shown_ids=frozenset({"7", "9", "3"}))


@pytest.mark.parametrize(
    ("a", "b", "f1"),
    [
        ("TYPE a b", "TYPE a c", 2 / 3),
        ("", "", 1.0),
        ("TYPE a a b", "TYPE a b", 1.0),  # sets
        ("TYPE a , b", "TYPE a b .", 1.0),  # punctuation alone does not count
        ("... ,", "!", 1.0),
        ("CLICK", "", 0.0),
        ("TYPE a", "SELECT b", 0.0),
        ("TYPE a.", "TYPE a", 0.5),  # but it counts inside of a token
    ],
)
def test_token_f1(a: str, b: str, f1: float) -> None:
    assert token_f1(a, b) == pytest.approx(f1) == token_f1(b, a)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("`CLICK [5]`", WebAction("CLICK", "5")),
        ("I type. `TYPE [12] [new york]` or `CLICK [1]`", WebAction("TYPE", "12", "new york")),
        ("`SELECT [3] [a [b] c]`", WebAction("SELECT", "3", "a [b] c")),  # to the last bracket
        ("`TYPE [3] [x]y]`", WebAction("TYPE", "3", "x]y")),
        ("`TYPE [3] []`", WebAction("TYPE", "3", "")),
        ("`CLICK [5] [what]`", WebAction("CLICK", "5")),
        ("`CLICK[5]`", WebAction("CLICK", "5")),
        ("`[5] [new york]`", WebAction(None, "5", "new york")),
        ("`TYPE [3] [two\nlines]`", WebAction("TYPE", "3", "two\nlines")),
    ],
)
def test_what_is_read(text: str, action: WebAction) -> None:
    assert parse_reply(text) == action


@pytest.mark.parametrize(
    "text",
    [
        "CLICK [5]",
        "",
        "`",
        "`CLICK 5`",
        "`HOVER [5]`",
        "`click [5]`",
        "`CLICK []`",
        "`CLICK [ ]`",
        "`TYPE [5]`",
        "`CLICK [5] and more`",
        "`done` `CLICK [5]`",
        "`CLICK [5`",
        "`[[[[[[`",
    ],
)
def test_what_is_no_action(text: str) -> None:
    failure = parse_reply(text)
    assert isinstance(failure, ParseFailure)
    assert failure.reason
    assert score_step(failure, STEP, MINDACT).success == 0.0 == score_step(failure, STEP, EXACT).operation


words = st.text(st.sampled_from("ab 1[]'<>"), max_size=12).map(str.strip)


@settings(max_examples=80, deadline=None)
@given(
    operation=st.sampled_from(["TYPE", "SELECT", "CLICK"]),
    element=st.from_regex(r"[0-9a-z]{1,6}", fullmatch=True),
    value=words,
)
def test_an_action_is_read_as_it_is_written(operation: str, element: str, value: str) -> None:
    action = WebAction(operation, element, "" if operation == "CLICK" else value)
    assert parse_action(action.text) == action == parse_reply(f"so: `{action.text}` .")
    step = WebTarget((element,), operation, value)
    for rules in (MINDACT, EXACT):
        score = score_step(action, step, rules)
        assert (score.element, score.operation, score.success) == (1.0, 1.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (parse_reply(text), parse_reply(f"`{text}`"), parse_action(text)):
        assert isinstance(read, WebAction | ParseFailure)
        assert score_step(read, STEP, EXACT).success in (0.0, 1.0)


def test_the_two_definitions_of_success() -> None:
    """Another right element, and another order of words, are successes of one definition alone."""
    for action in (WebAction("TYPE", "9", "new york"), WebAction("TYPE", "7", "york new")):
        assert score_step(action, STEP, MINDACT).success == 1.0
        assert score_step(action, STEP, EXACT).success == 0.0
    assert score_step(WebAction("TYPE", "7", "new york"), STEP, EXACT).success == 1.0
    wrong = score_step(WebAction("TYPE", "3", "new york"), STEP, MINDACT)
    assert (wrong.element, wrong.operation, wrong.success) == (0.0, 1.0, 0.0)
    part = score_step(WebAction("SELECT", "7", "new york"), STEP, MINDACT)
    assert (part.element, part.operation, part.success) == (1.0, pytest.approx(2 / 3), 0.0)


def test_an_action_without_operation_earns_nothing_unless_asked() -> None:
    silent = WebAction(None, "7", "new york")
    assert score_step(silent, STEP, MINDACT).operation == 0.0
    # {new, york} against {TYPE, new, york}: 2 * 2 / (2 + 3)
    assert score_step(silent, STEP, ScoringRules(strict_op=False)).operation == pytest.approx(0.8)
    assert score_step(silent, STEP, ScoringRules(strict_op=False)).success == 0.0
    nothing = WebTarget(("7",), "CLICK")
    assert score_step(WebAction(None, "7"), nothing, MINDACT).success == 0.0


def test_exact_success_can_be_impossible() -> None:
    """The target is the first right element; a page that shows the second alone can be won by one definition only."""
    step = replace(STEP, shown_ids=frozenset({"9", "3"}))
    for action in (WebAction("TYPE", "9", "new york"), WebAction("TYPE", "7", "new york")):
        score = score_step(action, step, EXACT)
        assert (score.success, score.impossible, score.missed) == (0.0, True, False)
    assert score_step(WebAction("TYPE", "9", "new york"), step, MINDACT) == score_step(
        WebAction("TYPE", "9", "new york"), STEP, MINDACT
    )


@pytest.mark.parametrize(
    "step", [replace(STEP, shown_ids=frozenset({"3"})), replace(STEP, positives=(), shown_ids=None)]
)
def test_a_miss_scores_zero_or_is_left_out(step: WebTarget) -> None:
    action = WebAction("TYPE", "7", "new york")
    zero, skip = (score_step(action, step, ScoringRules(miss=miss)) for miss in ("zero", "skip"))
    assert (zero.element, zero.operation, zero.success, zero.missed) == (0.0, 0.0, 0.0, True)
    assert (skip.element, skip.operation, skip.success, skip.missed) == (None, None, None, True)


def test_averages_and_counts() -> None:
    """Task A: 1, 0, 0, 0 of four; B: 1 of one; C: a right step, a missed one; D: one that nobody can score."""
    right, wrong = WebAction("TYPE", "7", "new york"), WebAction("CLICK", "3")
    hit, fail = score_step(right, STEP, MINDACT), score_step(wrong, STEP, MINDACT)
    lost = replace(STEP, shown_ids=frozenset({"3"}))
    broken = score_step(right, replace(STEP, unscorable="a broken page"), MINDACT)
    for miss, micro, macro, scored in (("zero", 3 / 7, (0.25 + 1 + 0.5) / 3, 7), ("skip", 3 / 6, 2.25 / 3, 6)):
        absent = score_step(right, lost, ScoringRules(miss=miss))
        found = aggregate_scores([[hit, fail, fail, fail], [hit], [hit, absent], [broken]])
        assert found.micro.success == pytest.approx(micro)
        assert found.macro.success == pytest.approx(macro)
        assert found.task_success == pytest.approx(1 / 3)  # B; C missed a step; D cannot be told
        assert (found.tasks, found.steps, found.scored) == (4, 8, scored)
        assert (found.missed, found.unscorable, found.unscorable_tasks, found.impossible) == (1, 1, 1, 0)
    assert fail.operation == 0.0
    assert aggregate_scores([[hit, fail]]).micro.operation == 0.5 == aggregate_scores([[hit, fail]]).micro.element


def test_nothing_to_average() -> None:
    found = aggregate_scores([])
    assert (found.macro.success, found.micro.element, found.task_success, found.tasks) == (None, None, None, 0)


def test_rules_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'exact'") as error:
        ScoringRules("exat", "none")
    assert len(error.value.problems) == 2
