"""The tools of the functions world: schemas, splits, what they do, and requests that can be read in one way only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import jsonschema
import numpy as np
import pytest

from evolvent.errors import ConfigError, InvalidAction
from evolvent.messages import Call
from evolvent.trajectory import sample_rng
from evolvent.worlds.crafting import words_of
from evolvent.worlds.functions.catalogue import FORMULAS, UNSEEN, Entry, catalogue, run_call, select_entries
from evolvent.worlds.functions.requests import FRAMES, SHAPES, Draft, draw_draft
from evolvent.worlds.functions.slots import (
    Slot,
    array_slot,
    boolean_slot,
    integer_slot,
    number_slot,
    object_slot,
    text_slot,
)
from evolvent.worlds.functions.states import State, things_by_noun

ONE_CALL = ("simple", "multiple")
ENDLESS = re.compile(r"\.?\w")  # what goes on with the word or number before


def drafts(shape: str, count: int, *, split: str = "train", unseen: bool = False) -> list[Draft]:
    pool = select_entries(split, is_unseen=unseen)
    return [draw_draft(shape, pool, sample_rng("test", shape, split, unseen, n), split=split) for n in range(count)]


# ---------------------------------------------------------------------- a brute-force reader of requests


def unframed(said: str, split: str) -> list[str]:
    """What may stand inside a frame."""
    found = [re.fullmatch(re.escape(frame).replace(r"\{\}", "(.*)"), said) for frame in FRAMES[split]]
    return [match[1] for match in found if match]


def tellings(slot: Slot, value: Any) -> set[str]:
    """Every way in which the reader may meet a value."""
    if slot.kind == "boolean":
        return set(slot.phrases if value else slot.false_phrases)
    return {phrase.format(value) for phrase in slot.phrases}


def readings_of(slot: Slot, said: str) -> Iterator[tuple[Any, str]]:
    """Values that a text may begin with, and the rest of it."""
    if slot.kind == "boolean":
        for value in (True, False):
            yield from ((value, said[len(told) :]) for told in tellings(slot, value) if said.startswith(told))
        return
    for phrase in slot.phrases:
        before, after = phrase.split("{}")
        if said.startswith(before):
            for value, rest in values_in(slot, said[len(before) :]):
                if rest.startswith(after):
                    yield value, rest[len(after) :]


def values_in(slot: Slot, said: str) -> Iterator[tuple[Any, str]]:
    if slot.kind == "object":
        yield from parts_in(slot.parts, said)
    elif slot.kind == "array":
        words = "|".join(re.escape(str(value)) for value in slot.values)
        for pattern in (rf"({words}) and ({words})\b", rf"({words}), ({words}) and ({words})\b"):
            found = re.match(pattern, said)
            if found:
                known = {str(value): value for value in slot.values}
                yield [known[word] for word in found.groups()], said[found.end() :]
    else:
        for value in slot.values:
            rest = said.removeprefix(str(value))
            if rest != said and not ENDLESS.match(rest):
                yield value, rest


def parts_in(parts: Sequence[Slot], said: str) -> Iterator[tuple[dict[str, Any], str]]:
    """One part or more, in order, with `and` between."""
    for place, part in enumerate(parts):
        for value, rest in readings_of(part, said):
            yield {part.name: value}, rest
            if rest.startswith(" and "):
                for more, end in parts_in(parts[place + 1 :], rest[5:]):
                    yield {part.name: value, **more}, end


def arguments_in(slots: Sequence[Slot], said: str) -> Iterator[dict[str, Any]]:
    """Every way to read a text as phrases of these slots, in any order, each at most once."""
    if not said:
        yield {}
    for slot in slots:
        for value, rest in readings_of(slot, said.removeprefix(" ")):
            for more in arguments_in([other for other in slots if other is not slot], rest):
                yield {slot.name: value, **more}


def readings(entry: Entry, clause: str) -> list[dict[str, Any]]:
    """Every different set of arguments with which a clause asks for this tool."""
    found: list[dict[str, Any]] = []
    for head in entry.heads:
        if clause == head or clause.startswith(f"{head} "):
            found += [one for one in arguments_in(entry.slots, clause[len(head) :]) if one not in found]
    return found


def fits(entry: Entry, said: str) -> bool:
    """Whether a request names the tool's verb and thing, or its formula, in any of the tool's own ways."""
    words = f" {' '.join(words_of(said))} "
    return any(f" {head} " in words for head in (*entry.heads, *entry.follow_up_heads))


# ---------------------------------------------------------------------- the catalogue


def test_there_are_at_least_200_tools_of_15_domains_with_every_type() -> None:
    tools = [entry.tool for entry in catalogue().values()]
    assert len(tools) >= 200
    assert len({entry.domain for entry in catalogue().values()}) >= 15
    assert all(re.fullmatch(r"[a-z_]{1,64}", tool.name) and tool.description for tool in tools)
    rows = [row for tool in tools for row in tool.parameters["properties"].values()]
    assert {row["type"] for row in rows} == {"string", "integer", "number", "boolean", "array", "object"}
    assert any("enum" in row for row in rows)
    assert any("default" in row for row in rows)
    assert any(row.get("properties") for row in rows)
    assert all(row["description"] and "{" not in row["description"] for row in rows)
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool.parameters)
        assert set(tool.parameters["required"]) <= set(tool.parameters["properties"])


def test_tools_are_split_and_held_out_ones_are_made_of_known_verbs_and_nouns() -> None:
    split = {name: entry.split for name, entry in catalogue().items()}
    assert min(Counter(split.values()).values()) >= 40
    train = select_entries("train", is_unseen=False)
    assert not select_entries("train", is_unseen=True)
    for other in ("dev", "test"):
        held = [entry for entry in select_entries(other, is_unseen=False) if entry.noun]
        assert {entry.noun for entry in held} <= {entry.noun for entry in train}
        assert {entry.verb for entry in held} <= {entry.verb for entry in train}
        assert {entry.domain for entry in select_entries(other, is_unseen=True)} == {
            n for n, s in UNSEEN.items() if s == other
        }
        by_noun = Counter(entry.noun for entry in held)
        assert max(by_noun.values()) == 2  # so that near tools are held out too


def test_no_two_tools_can_be_asked_for_in_the_same_way() -> None:
    for entry in catalogue().values():
        for head in (*entry.heads, *entry.follow_up_heads):
            assert [other.tool.name for other in catalogue().values() if fits(other, head)] == [entry.tool.name]


def test_frames_of_the_splits_are_disjoint() -> None:
    frames = [frame for one in FRAMES.values() for frame in one]
    assert len(frames) == len(set(frames))
    assert all(frame.count("{}") == 1 for frame in frames)


# ---------------------------------------------------------------------- requests


@pytest.mark.parametrize("shape", ONE_CALL)
@pytest.mark.parametrize(("split", "unseen"), [("train", False), ("dev", False), ("test", False), ("test", True)])
def test_a_request_has_one_reading_and_that_is_the_gold_call(shape: str, split: str, unseen: bool) -> None:
    for draft in drafts(shape, 60, split=split, unseen=unseen):
        (turn,), (call,) = draft.rounds, draft.rounds[0].calls
        found = [one for clause in unframed(turn.user, split) for one in readings(catalogue()[call.name], clause)]
        assert found == [call.arguments], turn.user
        for tool in draft.tools:
            if tool.name != call.name:
                assert not any(readings(catalogue()[tool.name], clause) for clause in unframed(turn.user, split))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("many", [False, True])
def test_a_request_fits_the_tools_that_it_needs_and_no_other_one(shape: str, many: bool) -> None:
    pool = select_entries("test", is_unseen=False)
    for n in range(40):
        draft = draw_draft(shape, pool, sample_rng("fits", shape, many, n), split="test", is_long=many)
        offered = {tool.name for tool in draft.tools}
        assert len(offered) == len(draft.tools)
        assert offered <= {entry.tool.name for entry in pool}
        assert len(offered) in ({5, 6} if many else {1, 2, 3, 4})
        for turn in draft.rounds:
            fitting = {entry.tool.name for entry in catalogue().values() if fits(entry, turn.user)}
            asked = {call.name for call in turn.calls}
            if shape == "irrelevant":
                assert len(fitting) == 1
                assert not fitting & offered
            elif shape == "missing":
                assert len(fitting) == 1
                assert fitting <= offered
            else:
                assert asked == fitting <= offered


def test_what_is_missing_is_required_and_cannot_be_read() -> None:
    for draft in drafts("missing", 120):
        said = draft.rounds[0].user
        assert draft.rounds[0].calls == ()
        (entry,) = (one for one in catalogue().values() if fits(one, said))
        read = [one for clause in unframed(said, "train") for one in readings(entry, clause)]
        required = set(entry.tool.parameters["required"])
        assert read
        assert all(len(required - one.keys()) == 1 for one in read)


def test_shapes_are_what_they_are_called() -> None:
    for draft in drafts("parallel", 40):
        calls = draft.rounds[0].calls
        assert len(calls) == 2
        assert calls[0].name == calls[1].name
        assert calls[0].arguments != calls[1].arguments
    for draft in drafts("parallel_multiple", 40):
        assert len({call.name for call in draft.rounds[0].calls}) == 2
    assert all(len(draft.tools) == 1 for draft in drafts("simple", 10))
    assert all(len(draft.tools) > 1 for draft in drafts("multiple", 10))


def numbers_in(value: Any) -> set[Any]:
    """All plain values in a value."""
    if isinstance(value, Mapping):
        return set().union(*map(numbers_in, value.values())) if value else set()
    return set().union(*map(numbers_in, value)) if isinstance(value, list) else {str(value)}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in ("irrelevant", "missing")])
def test_every_value_stands_in_the_conversation_and_the_calls_succeed(shape: str) -> None:
    for draft in drafts(shape, 60):
        tools = {tool.name: tool for tool in draft.tools}
        heard = ""
        for turn in draft.rounds:
            heard += f" {turn.user} "
            for call, result in zip(turn.calls, turn.results, strict=True):
                assert not list(
                    jsonschema.Draft202012Validator(tools[call.name].parameters).iter_errors(call.arguments)
                )
                words = set(re.findall(r"\d+\.\d+|\w+", heard))
                plain = {value for value in numbers_in(call.arguments) if value not in ("True", "False")}
                assert plain <= words, (plain - words, heard)
                heard += f" {result} "


def test_a_follow_up_needs_the_result() -> None:
    for draft in drafts("multi_turn", 60):
        first, second = draft.rounds[:2]
        call, result = second.calls[0], cast(Any, first.results[0])
        assert call.arguments["number"] == result["number"]
        assert "number" not in second.user
        assert str(call.arguments["number"]) not in re.findall(r"\d+", first.user)


def test_drafts_depend_on_nothing_but_the_seed() -> None:
    assert drafts("multi_turn", 5) == drafts("multi_turn", 5)
    assert len({str(draft) for draft in drafts("simple", 30)}) > 25


def test_unknown_shapes_and_unfit_pools_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'parallel'"):
        draw_draft("paralel", select_entries("train", is_unseen=False), np.random.default_rng(0), split="train")
    with pytest.raises(ConfigError, match="no tool produces a result that another tool can use"):
        draw_draft("multi_turn", select_entries("test", is_unseen=False)[-1:], np.random.default_rng(0), split="test")


# ---------------------------------------------------------------------- what calls do


def done(name: str, arguments: dict[str, Any], state: State) -> tuple[State, Any]:
    return run_call(Call(name, arguments), state)


ROWS: tuple[dict[str, Any], ...] = (
    {"number": 12, "city": "oslo", "nights": 3, "breakfast": False},
    {"number": 40, "city": "rome", "nights": 5, "breakfast": True},
    {"number": 31, "city": "oslo", "nights": 3, "breakfast": True},
)
STATE = State(0, {"hotel": ROWS, "appointment": ({"number": 20, "day": "monday", "hour": 9, "doctor": "anna"},)})


def test_operations_by_hand() -> None:
    assert done("find_hotel", {"city": "oslo", "nights": 3}, STATE) == (STATE, ROWS[0])  # without breakfast
    assert done("find_hotel", {"city": "oslo", "nights": 3, "breakfast": True}, STATE)[1] == ROWS[2]
    assert done("count_hotel", {"city": "oslo"}, STATE)[1] == 2
    after, made = done("book_hotel", {"city": "lima", "nights": 2}, STATE)
    assert made == {"number": 32, "city": "lima", "nights": 2, "breakfast": False}  # the number after the last row's
    assert after.rows("hotel") == (*ROWS, made)
    after, gone = done("cancel_hotel", {"number": 40}, STATE)
    assert (gone, after.rows("hotel")) == (ROWS[1], (ROWS[0], ROWS[2]))
    after, rated = done("rate_hotel", {"number": 12, "stars": 4}, STATE)
    assert rated == {**ROWS[0], "stars": 4}
    assert after.rows("hotel")[0] == rated
    assert done("share_hotel", {"number": 12, "people": ["ben", "ines"]}, STATE)[1]["people"] == ["ben", "ines"]
    assert done("move_appointment", {"number": 20, "day": "sunday"}, STATE)[1] == {
        "number": 20,
        "day": "sunday",
        "hour": 12,
        "doctor": "anna",
    }
    assert STATE.rows("hotel") == ROWS  # nothing changes in place


def test_operations_on_lists_by_hand() -> None:
    state = State(
        0,
        {
            "lamp": ({"number": 50, "room": "hall", "colour": "red", "brightness": 20},),
            "race": (
                {"number": 70, "city": "rome", "distance": 5.2, "day": "monday"},
                {"number": 60, "city": "lima", "distance": 9.5, "day": "friday"},
            ),
            "document": ({"number": 11, "topic": "art", "pages": 3, "format": "pdf"},),
        },
    )
    changed = done("update_lamp", {"number": 50, "changes": {"room": "attic", "brightness": 80}}, state)[1]
    assert changed == {"number": 50, "room": "attic", "colour": "red", "brightness": 80}
    assert done("rank_race", {"by": "city"}, state)[1] == [60, 70]
    assert done("rank_race", {"by": "day", "most": 2}, state)[1] == [60, 70]
    compared = done("compare_race", {"numbers": [70, 60]}, state)[1]
    assert compared == {"city": ["rome", "lima"], "distance": [5.2, 9.5], "day": ["monday", "friday"]}
    assert done("assign_document", {"number": 11, "person": "kate"}, state)[1]["person"] == "kate"
    assert done("show_lamp", {"number": 50}, state)[1] == state.rows("lamp")[0]
    assert done("delete_lamp", {"number": 50}, state)[0].rows("lamp") == ()


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("circle_area", {"radius": 2.0}, 12.57),
        ("circle_area", {"radius": 2.0, "digits": 1}, 12.6),
        ("circle_rim", {"radius": 1.5, "digits": 3}, 9.425),
        ("box_volume", {"width": 1.5, "length": 2.0, "depth": 4.0}, 12.0),
        ("floor_area", {"width": 1.5, "length": 2.5}, 3.75),
        ("mean_value", {"values": [2, 3, 7]}, 4.0),
        ("total_value", {"values": [2, 3, 7]}, 12),
        ("largest_value", {"values": [2, 9, 7]}, 9),
        ("common_divisor", {"first": 12, "second": 18}, 6),
        ("interest_total", {"sum": 50.0, "percent": 10, "years": 2}, 60.5),
        ("tip_amount", {"sum": 50.0, "percent": 15}, 7.5),
        ("mass_index", {"weight": 81.0, "height": 90}, 100.0),
        ("water_need", {"weight": 50.0, "season": "summer"}, 1.98),
        ("pulse_limit", {"age": 40}, 180),
        ("energy_need", {"weight": 60.0, "height": 80, "age": 20}, 1000.0),
        ("length_change", {"value": 2.5, "source": "miles", "target": "metres"}, 4023.36),
        ("mass_change", {"value": 1.0, "source": "tons", "target": "kilos"}, 1000.0),
        ("time_change", {"value": 1.5, "source": "hours", "target": "minutes"}, 90.0),
        ("volume_change", {"value": 1.0, "source": "gallons", "target": "litres"}, 3.785),
    ],
)
def test_formulas_by_hand(name: str, arguments: dict[str, Any], value: float) -> None:
    assert done(name, arguments, STATE) == (STATE, value)


def test_all_formulas_have_a_golden() -> None:
    (marks,) = test_formulas_by_hand.pytestmark
    assert {case[0] for case in marks.args[1]} == set(FORMULAS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Call("find_hotl", {}), "did you mean 'find_hotel'"),
        (Call("find_hotel", {"city": "oslo"}), "nights"),
        (Call("find_hotel", {"city": "oslo", "nights": "3"}), "nights"),
        (Call("find_hotel", {"city": "oslo", "nights": 3, "stars": 4}), "stars"),
        (Call("cancel_hotel", {"number": 99}), r"number.*\[12, 40, 31\]"),
        (Call("find_hotel", {"city": "delhi", "nights": 3}), "no such hotel"),
        (Call("update_lamp", {"number": 12, "changes": {}}), "refuses"),
        (Call("find_flight", {"origin": "oslo", "destination": "rome", "day": "monday", "cabin": "royal"}), "royal"),
    ],
)
def test_calls_that_cannot_be_are_refused(call: Call, message: str) -> None:
    with pytest.raises(InvalidAction, match=message):
        run_call(call, STATE)


def test_a_number_is_found_where_the_last_one_is_taken_and_refused_where_all_are() -> None:
    full: tuple[dict[str, Any], ...] = tuple(
        {"number": n, "city": "oslo", "nights": 2, "breakfast": False} for n in range(10, 100)
    )
    made = done("book_hotel", {"city": "oslo", "nights": 2}, State(0, {"hotel": full[1:]}))[1]
    assert made["number"] == 10  # after 99 it begins anew
    with pytest.raises(InvalidAction, match="no number left"):
        done("book_hotel", {"city": "oslo", "nights": 2}, State(0, {"hotel": full}))


def test_states_are_drawn_from_their_seed_thing_by_thing() -> None:
    assert State(5).rows("hotel") == State(5).rows("hotel") != State(6).rows("hotel")
    assert State(5).rows("no thing") == ()
    for noun, thing in things_by_noun().items():
        rows = State(7).rows(noun)
        assert len({row["number"] for row in rows}) == len(rows) == 5
        assert all(row.keys() == {"number", *(slot.name for slot in thing.slots)} for row in rows)


# ---------------------------------------------------------------------- slots


def test_slots_by_hand() -> None:
    rng = np.random.default_rng(0)
    assert integer_slot("n : a number", "number {}", range(3, 6)).values == (3, 4, 5)
    assert number_slot("p : a price", "at {}", range(1, 3)).values == (1.2, 1.5, 1.8, 2.2, 2.5, 2.8)
    assert (
        array_slot("who : people", "with {}", "ann bob cy").render_phrase(["ann", "bob", "cy"], rng)
        == "with ann, bob and cy"
    )
    shown = boolean_slot("on : whether it is on", "switched on", "switched off")
    assert (shown.render_phrase(True, rng), shown.render_phrase(False, rng)) == ("switched on", "switched off")
    pair = object_slot("new : what is new", "to be {}", shown, text_slot("city : the city", "in {}", "oslo"))
    assert pair.render_phrase({"on": True, "city": "oslo"}, rng) == "to be switched on and in oslo"
    assert cast(Any, pair.schema())["properties"]["city"] == {"type": "string", "description": "the city"}
    assert all(pair.draw(rng) for _ in range(20))


@pytest.mark.parametrize(("phrases", "values"), [("in", "oslo"), ("in {} {}", "oslo"), ("in {}", "")])
def test_slots_that_cannot_be_said_are_refused(phrases: str, values: str) -> None:
    with pytest.raises(ConfigError):
        text_slot("city : the city", phrases, values)
