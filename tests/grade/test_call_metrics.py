from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch
from evolvent.grade.call_metrics import MatchCounts, score_calls
from evolvent.messages import Call


def released(predicted, gold):
    """(F1 of names, F1 of arguments) by the rules of the released script, on rows of (name, arguments)."""
    names, pairs = [0, 0, 0], [0, 0, 0]
    for said, wanted in zip(predicted, gold, strict=True):
        names[2] += len(wanted)
        pairs[2] += sum(value != "" for call in wanted for value in call.arguments.values())
        names[1] += 1 if said is None else len(said)
        for call in said or ():
            pairs[1] += sum(value != "" for value in call.arguments.values())
            same = [one for one in wanted if one.name == call.name]
            names[0] += bool(same)
            for one in same:  # it goes on while nothing agrees, and stops at the first call with an agreement
                right = sum(
                    str(value) == str(call.arguments[name])
                    for name, value in one.arguments.items()
                    if value != "" and call.arguments.get(name, "") != ""
                )
                if right or (not one.arguments and not call.arguments):
                    pairs[0] += right or 1
                    break
    return tuple(2 * right / (said + wanted) if right else None for right, said, wanted in (names, pairs))


ONCE = Call("f", {"a": 1, "b": "x"})


def test_a_call_said_five_times_counts_once():
    found = score_calls([[ONCE] * 5], [[ONCE]])
    assert (found.names.correct, found.names.predicted, found.names.expected) == (1, 5, 1)
    assert found.names.f1 == pytest.approx(1 / 3)
    assert found.arguments.f1 == pytest.approx(1 / 3)
    assert released([[ONCE] * 5], [[ONCE]])[0] == pytest.approx(5 / 3)


def test_by_hand():
    gold = [[Call("f", {"a": 1, "b": "x", "c": ""})], [Call("g", {"k": True}), Call("h", {"z": [1]})], []]
    said = [[Call("f", {"a": "1", "b": "y"})], [Call("g", {"k": "True"}), Call("f", {"z": [1]})], []]
    found = score_calls(said, gold)
    assert found.names == MatchCounts(2, 3, 3)
    assert found.arguments == MatchCounts(2, 4, 4)  # a=1 and k=True; values are compared as text, "" is none
    assert (found.names.precision, found.names.recall) == (2 / 3, 2 / 3)
    assert (found.items, found.abstained, found.unparsable) == (3, 1.0, 0.0)
    assert released(said, gold) == (found.names.f1, found.arguments.f1)


def test_what_cannot_be_read():
    found = score_calls([None, None, [ONCE], []], [[ONCE], [], [], []])
    assert found.names == MatchCounts(0, 3, 1)
    assert found.arguments == MatchCounts(0, 2, 2)
    assert found.abstained == pytest.approx(1 / 3)  # only a readable answer without calls abstains
    assert found.unparsable == 0.5
    assert found.names.f1 == 0.0


def test_nothing_at_all():
    found = score_calls([[]], [[]])
    assert (found.names.f1, found.names.precision, found.names.recall) == (1.0, 1.0, 1.0)
    assert score_calls([], []).abstained is None
    assert score_calls([[]], [[ONCE]]).names.precision == 0.0
    assert score_calls([[ONCE]], [[]]).names.recall == 0.0
    with pytest.raises(BatchMismatch):
        score_calls([[]], [])


def test_calls_of_one_name_are_matched_at_their_best():
    gold = [[Call("f", {"a": 1}), Call("f", {"a": 1, "b": 2})]]
    said = [[Call("f", {"a": 1, "b": 2}), Call("f", {"a": 1})]]
    assert score_calls(said, gold).arguments == MatchCounts(
        3, 3, 3
    )  # the first call that fits would leave one pair over


CALL = st.builds(
    Call, st.sampled_from("fgh"), st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, "1", 2, "", None]))
)
CALLS = st.lists(CALL, max_size=3)
ITEMS = st.lists(st.tuples(CALLS | st.none(), CALLS), min_size=1, max_size=4)


@settings(deadline=None, max_examples=80)
@given(ITEMS)
def test_no_score_is_above_one(items):
    found = score_calls([said for said, _ in items], [wanted for _, wanted in items])
    for share in (found.names, found.arguments):
        assert 0 <= share.correct <= min(share.predicted, share.expected)
        assert 0.0 <= share.f1 <= 1.0


def unique(calls):
    return list({call.name: call for call in calls}.values())


@settings(deadline=None, max_examples=80)
@given(ITEMS)
def test_as_the_released_script_where_no_name_repeats(items):
    """Where expected calls have arguments, too: two empty calls that agree are a right pair to the script."""
    said = [None if one is None else unique(one) for one, _ in items]
    gold = [[call for call in unique(wanted) if call.arguments] for _, wanted in items]
    found, theirs = score_calls(said, gold), released(said, gold)
    for share, other in zip((found.names, found.arguments), theirs, strict=True):
        assert share.f1 == other if other is not None else share.correct == 0


def test_the_order_of_calls_is_nothing():
    rows = json.loads('[["f", {"a": 1}], ["f", {"a": 2}], ["g", {}]]')
    calls = [Call(name, arguments) for name, arguments in rows]
    assert score_calls([calls[::-1]], [calls]) == score_calls([calls], [calls])
