"""The multi-turn verdict: what a run must do, turn by turn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bfcl_mini import CATEGORIES, EXTRA, PAD, build
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import SampleInvalid
from evolvent.messages import Call
from evolvent.worlds.bfcl.apis import Padding
from evolvent.worlds.bfcl.items import TurnsItem
from evolvent.worlds.bfcl.multi_turn import (
    MOST_STEPS,
    MultiTurn,
    Scene,
    drop_last_gold_turn,
    find_padding,
    judge_turns,
    parse_gold_call,
    read_multi_turn,
    run_calls,
)
from evolvent.worlds.bfcl.world import read_items


@pytest.fixture(scope="module")
def turns(tmp_path_factory) -> tuple[TurnsItem, ...]:
    names = [name for name in CATEGORIES if name.startswith("multi_turn")]
    read = read_items(build(tmp_path_factory.mktemp("bfcl")), names)
    assert not read.problems
    return read.turns


@pytest.fixture(scope="module")
def items(turns) -> dict[str, MultiTurn]:
    padding = find_padding(turns)
    return {item.id.removeprefix("multi_turn_"): read_multi_turn(item, padding) for item in turns}


def played(item: MultiTurn) -> list[list[tuple[Call, ...]]]:
    """The gold run, all calls of a turn in one step."""
    return [[gold] if gold else [] for gold in item.gold]


def test_the_gold_run_is_right_and_a_cut_one_is_wrong(items):
    assert len(items) == 12
    for item in items.values():
        assert judge_turns(item, played(item)).valid, item.item.id
        assert judge_turns(item, [[(call,) for call in gold] for gold in item.gold]).valid
        cut = judge_turns(item, drop_last_gold_turn(item))
        assert (cut.valid, cut.kind) == (False, "no_call")


def test_the_last_turn_with_calls_is_cut(items):
    item = replace(items["base_0"], gold=(*items["base_0"].gold, ()))
    assert drop_last_gold_turn(item) == ((item.gold[0],), (item.gold[1],), (), ())


def test_another_number_of_turns(items):
    item = items["base_0"]
    for steps in (played(item)[:-1], [*played(item), []]):
        verdict = judge_turns(item, steps)
        assert (verdict.valid, verdict.kind) == (False, "turns")


def test_a_state_that_differs_names_object_and_part(items):
    item = items["base_2"]
    steps = [[(Call("fillFuelTank", {"fuelAmount": 9.0}),)], *played(item)[1:]]
    verdict = judge_turns(item, steps)
    assert (verdict.kind, verdict.path) == ("state", "turn 0: VehicleControlAPI")
    assert verdict.detail.endswith("in fuelLevel")
    twice = [[item.gold[0], (Call("post_tweet", {"content": "too early"}),)], *played(item)[1:]]
    assert judge_turns(item, twice).path == "turn 0: TwitterAPI"


def test_another_way_to_the_same_state_and_results_is_right(items):
    item = items["base_2"]
    reads = (Call("displayCarStatus", {"option": "fuel"}), Call("fillFuelTank", {"fuelAmount": 4.0}))
    last = Call("fillFuelTank", {"fuelAmount": 6.0})
    assert judge_turns(item, [[reads, (last,)], *played(item)[1:]]).valid


def test_results_may_have_been_seen_before_but_each_counts_once(items):
    item = items["base_0"]
    size = item.gold[2][0]
    reads = replace(item, gold=(item.gold[0], (size,), (size,)))
    early = [[(*item.gold[0], size, size)], [(Call("pwd"),)], [(Call("pwd"),)]]
    assert judge_turns(reads, early).valid
    # Of one turn's gold results every one needs a result of its own.
    both = replace(item, gold=(item.gold[0], (size, size), (size,)))
    verdict = judge_turns(both, [[(*item.gold[0], size)], [(Call("pwd"),)], [(size,)]])
    assert (verdict.kind, verdict.path) == ("results", "turn 1")
    late = judge_turns(reads, [[item.gold[0]], [(Call("pwd"),)], [(size, size)]])
    assert (late.kind, late.path) == ("results", "turn 1")


def test_the_order_of_calls_matters_only_for_what_they_do(items):
    item = items["base_0"]
    assert judge_turns(item, [[(item.gold[0][0], Call("pwd"), item.gold[0][1])], *played(item)[1:]]).valid
    swapped = judge_turns(item, [[tuple(reversed(item.gold[0]))], *played(item)[1:]])
    assert (swapped.kind, swapped.path) == ("results", "turn 0")


def test_a_turn_without_gold_calls_is_done_but_not_judged(items):
    item = items["miss_param_2"]
    silent = judge_turns(item, played(item))
    assert (silent.valid, silent.silent) == (True, True)
    asked = judge_turns(item, [[(Call("displayCarStatus", {"option": "fuel"}),)], *played(item)[1:]])
    assert (asked.valid, asked.silent) == (True, False)
    filled = judge_turns(item, [[(Call("fillFuelTank", {"fuelAmount": 1.0}),)], *played(item)[1:]])
    assert (filled.valid, filled.kind, filled.path, filled.silent) == (
        False,
        "state",
        "turn 1: VehicleControlAPI",
        False,
    )


def test_empty_steps_are_no_calls(items):
    item = items["base_2"]
    assert judge_turns(item, [[(), item.gold[0], ()], [(), item.gold[1]]]).valid
    assert judge_turns(item, [[(), ()], [item.gold[1]]]).kind == "no_call"


def test_more_steps_than_allowed(items):
    item = items["base_2"]
    look = (Call("displayCarStatus", {"option": "fuel"}),)
    for more, kind in ((0, ""), (1, "steps")):
        steps = [[look] * (MOST_STEPS - 1 + more) + [item.gold[0]], [item.gold[1]]]
        assert judge_turns(item, steps).kind == kind


def test_failing_calls_are_answered_by_a_sentence(items):
    scene = Scene(items["base_0"])
    right = Call("add", {"a": 1, "b": 2})
    strange = (Call("__init__"), Call("fillFuelTank", {"fuelAmount": 1}), Call("touch", {"file_name": 7}))
    answers = run_calls(scene, [Call("nothing"), Call("cat"), Call("cat", {"file_name": 7}), right, *strange])
    assert answers[3] == '{"result": 3}'
    failed = [answer for at, answer in enumerate(answers) if at not in (2, 3)]
    assert all(answer.startswith("Error during execution: ") for answer in failed)
    assert scene.state == Scene(items["base_0"]).state


def test_runs_do_not_share_anything(items):
    first, second = Scene(items["base_2"]), Scene(items["base_2"])
    before = Scene(items["base_2"]).state
    run_calls(first, [call for turn in items["base_2"].gold for call in turn])
    assert first.state != before
    assert second.state == before
    assert items["base_2"].item.initial_config["TwitterAPI"] == {"authenticated": True}


def test_long_context_is_taken_from_the_answers(turns, items):
    padding = find_padding(turns)
    assert (padding.text, padding.files) == (PAD.strip(), EXTRA)
    assert items["long_context_0"].padding == padding
    assert items["base_0"].padding is None
    only = find_padding(one for one in turns if one.category == "multi_turn_base")
    assert only == Padding()
    (listed,) = run_calls(Scene(items["long_context_0"]), [Call("find")])
    assert all(name in listed for name in EXTRA)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("mean([1, 2.5])", {"numbers": [1, 2.5]}),
        ("echo('a', file_name='b')", {"content": "a", "file_name": "b"}),
        ("lockDoors(unlock=True, door=['driver'])", {"unlock": True, "door": ["driver"]}),
        ("edit_ticket(ticket_id=-1, updates={'a': None})", {"ticket_id": -1, "updates": {"a": None}}),
        ("pwd()", {}),
    ],
)
def test_gold_calls(text, arguments):
    assert parse_gold_call(text) == Call(text.partition("(")[0], arguments)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pwd",
        "pwd(",
        "pwd() + pwd()",
        "open('x')",
        "echo(content=open('x'))",
        "echo('a', 'b', 'c')",
        "x.pwd()",
        "echo('a', content='b')",
        "echo(*['a'])",
        "echo(**{'content': 'a'})",
        "echo(content=[x for x in 'ab'])",
        "echo(content=1 if True else 2)",
        "(" * 3000,
    ],
)
def test_what_is_no_gold_call_is_refused_and_not_run(text):
    with pytest.raises(SampleInvalid, match="gold call"):
        parse_gold_call(text)


def test_items_that_make_no_sense_are_refused(turns):
    item = turns[0]
    for change in (
        {"ground_truth": (("nothing()",), (), ())},
        {"involved_classes": ("GorillaFileSystem", "None"), "ground_truth": ((), (), ())},
        {"initial_config": {"GorillaFileSystem": {"root": {"r": {"contents": {"f": 3}}}}}},
        {"initial_config": {"GorillaFileSystem": 3}},
        {"initial_config": {"GorillaFileSystem": {"root": {"r": 3}}}},
    ):
        with pytest.raises(SampleInvalid):
            read_multi_turn(replace(item, **change))
    posting = replace(
        item, involved_classes=("TwitterAPI",), initial_config={"TwitterAPI": {"tweets": 3}}, ground_truth=()
    )
    with pytest.raises(SampleInvalid, match=": invalid initial state"):
        read_multi_turn(posting)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_verdict_is_that_of_a_naive_judge(items, data):
    """Calls dropped, repeated and moved: the verdict equals one computed by scanning states and results anew."""
    item = items[data.draw(st.sampled_from(sorted(items)))]
    runs = [list(gold) for gold in item.gold]
    for _ in range(data.draw(st.integers(1, 3))):
        places = [(turn, at) for turn, calls in enumerate(runs) for at in range(len(calls))]
        if not places:
            break
        turn, at = data.draw(st.sampled_from(places))
        call = runs[turn].pop(at)
        if data.draw(st.booleans()):
            goal = data.draw(st.sampled_from(range(len(runs))))
            runs[goal].extend([call] * data.draw(st.integers(1, 2)))
    steps = [[(call,) for call in calls] for calls in runs]
    assert judge_turns(item, steps).valid == _naive(item, runs)


def _naive(item: MultiTurn, runs: list[list[Call]]) -> bool:
    """Every turn judged from the beginning, by removing results one by one."""
    for turn, gold in enumerate(item.gold):
        mine, theirs = Scene(item), Scene(item)
        seen = [mine.answer(call) for calls in runs[: turn + 1] for call in calls]
        wanted = [[theirs.answer(call) for call in calls] for calls in item.gold[: turn + 1]][-1]
        if not gold:
            continue
        if not runs[turn] or mine.state != theirs.state:
            return False
        for result in wanted:
            if result not in seen:
                return False
            seen.remove(result)
    return True
