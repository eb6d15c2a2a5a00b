"""The JSON of the native dialect: written and read back, refused where it is something else."""

from __future__ import annotations

import inspect
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent import errors
from evolvent.errors import (
    AtCapacity,
    ConfigError,
    CorruptRecord,
    EnvLost,
    EvolventError,
    InvalidAction,
    Locked,
    MissingExtra,
    SampleInvalid,
    SessionGone,
    StepTimeout,
    VersionMismatch,
    WorldError,
    WrongStep,
)
from evolvent.serve import wire
from evolvent.serve.agentgym.grammars import FencedBlockGrammar as FencedOfAgentGym
from evolvent.serve.host import ResetResult, SessionSnapshot, StepResult
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Parsed, Plain, ReAct
from evolvent.worlds.bfcl.world import Reply
from evolvent.worlds.functions.episode import Calls
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from evolvent.worlds.searchqa.tags import SearchGrammar
from evolvent.worlds.sql.grammar import Fenced
from evolvent.worlds.tools.calls import STYLES, ToolGrammar
from evolvent.worlds.web_replay.world import WebGrammar

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
INFO = st.dictionaries(st.text(), JSON, max_size=3)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text().map(wire.replace_surrogates)


def through(row):
    """A row as it arrives."""
    return wire.decode_json(wire.encode_json(row))


@given(st.dictionaries(st.text(), JSON, max_size=4), TEXT, TEXT, TEXT)
def test_tasks_come_back_equal(spec, kind, tier, split):
    task = Task("maze", "2", spec, kind, tier, split)
    back = wire.decode_task(through(wire.encode_task(task)))
    assert back == task and back.id == task.id


def test_a_task_row_by_hand():
    task = Task("maze", "2", {"size": 3}, "short", "evo", "dev")
    assert wire.encode_task(task) == {
        "id": task.id,
        "world": "maze",
        "version": "2",
        "spec": {"size": 3},
        "kind": "short",
        "tier": "evo",
        "split": "dev",
    }


@pytest.mark.parametrize(
    "change",
    [{"spec": {"size": 4}}, {"version": "3"}, {"world": 1}, {"spec": None}, {"tier": None}, {"id": "f" * 32}],
    ids=str,
)
def test_a_task_that_was_changed_is_refused(change):
    row = wire.encode_task(Task("maze", "2", {"size": 3}))
    with pytest.raises(SampleInvalid, match="task"):
        wire.decode_task({**row, **change})


@pytest.mark.parametrize("row", [None, 3, [], "task", {}])
def test_rows_that_are_none_are_refused(row):
    for read in (
        wire.decode_task,
        wire.decode_reset,
        wire.decode_step,
        wire.decode_snapshot,
        wire.decode_score,
        wire.decode_world_card,
    ):
        with pytest.raises(SampleInvalid):
            read(row)


@given(TEXT, st.none() | NUMBER, st.booleans(), st.booleans(), INFO, st.integers(0, 10**6))
def test_steps_come_back_equal(observation, reward, terminated, truncated, info, step):
    stepped = StepResult(observation, reward, terminated, truncated, info, step)
    assert wire.decode_step(through(wire.encode_step(stepped))) == stepped
    assert wire.decode_reset(through(wire.encode_reset(ResetResult(observation, info)))) == ResetResult(
        observation, info
    )


def test_a_look_comes_back_equal():
    task = Task("maze", "2", {"size": 3})
    for look in (
        SessionSnapshot("s1", "maze", "running", task, "a wall", {"admissible": ["up"]}, (0.0, None, 1.0), 3),
        SessionSnapshot("s2", "maze", "open", None, "", {}, (), 0),
    ):
        assert wire.decode_snapshot(through(wire.encode_snapshot(look))) == look
    with pytest.raises(SampleInvalid, match="unknown session state"):
        wire.decode_snapshot({**wire.encode_snapshot(look), "state": "asleep"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", "1"),
        ("reward", True),
        ("reward", math.inf),
        ("reward", math.nan),
        ("reward", 10**400),
        ("terminated", 1),
        ("truncated", None),
        ("info", []),
        ("step", "0"),
        ("step", True),
        ("observation", None),
        ("observation", ["a"]),
    ],
    ids=str,
)
def test_a_wrong_type_in_a_step_is_refused(field, value):
    row = wire.encode_step(StepResult("here", 1.0, False, False, {}, 4))
    with pytest.raises(SampleInvalid):
        wire.decode_step({**row, field: value})


@given(st.one_of(st.just(Score(None, None, None)), st.builds(Score, NUMBER, NUMBER, st.booleans())))
def test_scores_come_back_equal(score):
    assert wire.decode_score(through(wire.encode_score(score))) == score


# values


def test_numpy_and_tuples_become_json():
    info = {
        "n": np.int64(3),
        "x": np.float32(0.5),
        "on": np.bool_(True),
        "grid": np.arange(4).reshape(2, 2),
        "pair": ("a", 1),
        5: {"b", "a"},
    }
    assert wire.to_json(info) == {
        "n": 3,
        "x": 0.5,
        "on": True,
        "grid": [[0, 1], [2, 3]],
        "pair": ["a", 1],
        "5": ["a", "b"],
    }
    assert json.loads(wire.encode_json(wire.to_json(info)))["grid"] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("value", [math.nan, -math.inf, np.float64("nan"), [1, (math.inf,)], np.array([np.nan])])
def test_numbers_that_are_not_finite_are_refused(value):
    with pytest.raises(SampleInvalid, match="not finite"):
        wire.to_json({"deep": value})


@pytest.mark.parametrize("value", [object(), b"bytes", 1j])
def test_what_json_does_not_have_is_refused(value):
    with pytest.raises(SampleInvalid, match="value is not JSON"):
        wire.to_json([value])


@pytest.mark.parametrize(
    "data", [b"", b"{", b"NaN", b'{"a": Infinity}', b"-Infinity", b"\xff\xfe", b"[" * 100_000, b"{} {}", b"nul"]
)
def test_what_is_no_json_is_refused(data):
    with pytest.raises(SampleInvalid, match="not valid JSON"):
        wire.decode_json(data)


@given(JSON)
def test_json_travels_as_it_is(value):
    assert wire.decode_json(wire.encode_json(value)) == value
    assert wire.encode_json(value).isascii()


def test_halves_of_characters_travel_and_are_replaced_in_texts():
    row = through(wire.encode_reset(ResetResult("half \ud83d of a face", {})))
    assert wire.decode_reset(row).observation == "half \ufffd of a face"
    assert wire.replace_surrogates("\ud83d\ude00") == "\U0001f600", "two halves are one character"
    assert wire.replace_surrogates("plain") == "plain" and wire.replace_surrogates("ä€\U0001f600") == "ä€\U0001f600"


@given(st.text(alphabet=st.characters(), max_size=20))
def test_texts_of_the_wire_can_be_stored(text):
    wire.replace_surrogates(text).encode("utf-8")


# errors

EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EvolventError)]


def split_into_parts(error):
    """Returns the parts of a message in any order, without the case of their first letters."""
    return sorted(filter(None, re.split(r"[:;,.] |[.]$", str(error).lower())))


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_survives_the_wire(kind):
    special = {
        AtCapacity: lambda: AtCapacity("full", retry_after_s=2.5),
        MissingExtra: lambda: MissingExtra("mcp", "MCP"),
        CorruptRecord: lambda: CorruptRecord("torn", offset=3),
        Locked: lambda: Locked("held", pid=1, host="here"),
    }
    error = special.get(kind, lambda: kind("it broke", value=[1, 2], expected="something whole", hint="try again"))()
    row = through(wire.encode_error(error))
    back = wire.decode_error(row)
    assert row["kind"] == kind.__name__
    if kind in (MissingExtra, CorruptRecord, Locked):  # they need more than a sentence, and no world raises them
        assert type(back) is WorldError and kind.__name__ in str(back)
    else:
        assert type(back) is kind
        assert split_into_parts(back) == split_into_parts(error), "every part, none twice"
    assert wire.encode_error(wire.decode_error(wire.encode_error(back))) == wire.encode_error(back)


def test_what_distinguishes_errors_survives():
    wrong = wire.decode_error(through(wire.encode_error(WrongStep("not next", value=5, expected=3))))
    assert isinstance(wrong, WrongStep) and wrong.expected == 3
    full = wire.decode_error(through(wire.encode_error(AtCapacity("full", retry_after_s=0.25))))
    assert isinstance(full, AtCapacity) and full.retry_after_s == 0.25
    for kind, status, base in ((wire.EpisodeEnded, 409, SessionGone), (wire.NotFound, 404, ConfigError)):
        row = through(wire.encode_error(kind("gone")))
        assert (row["kind"], row["status"]) == (base.__name__, status)
        assert type(wire.decode_error(row)) is kind
    assert type(wire.decode_error(wire.encode_error(SessionGone("x")))) is SessionGone


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (wire.NotFound("no such task"), 404),
        (SessionGone("unknown"), 404),
        (wire.EpisodeEnded("over"), 409),
        (WrongStep("5"), 409),
        (EnvLost("gone"), 410),
        (InvalidAction("?"), 422),
        (ConfigError("bad"), 422),
        (AtCapacity("full", retry_after_s=1), 503),
        (StepTimeout("slow"), 504),
        (errors.AccessDenied("no"), 403),
        (errors.LimitExceeded("big"), 413),
        (VersionMismatch("2"), 400),
        (WorldError("?"), 500),
        (errors.NonFinite("?"), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_statuses(error, status):
    assert wire.http_status(error) == status


@pytest.mark.parametrize("kind", ["Exception", "KeyboardInterrupt", "boundary", "difflib", "__name__", "", None, 7, []])
def test_only_errors_of_the_library_are_made(kind):
    error = wire.decode_error({"kind": kind, "message": "boo"})
    assert type(error) is WorldError and "boo" in str(error)


def test_an_error_body_that_is_none():
    for row in ("Internal Server Error", None, ["x"]):
        assert isinstance(wire.decode_error(row), WorldError)
    for wait in ("soon", -1, math.nan, True, None):
        assert wire.decode_error({"kind": "AtCapacity", "message": "full", "retry_after_s": wait}).retry_after_s == 1.0


# worlds


def test_a_card_tells_what_an_agent_needs():
    world = Maze(sizes=Sizes(train=2, dev=2, test=2))
    card = wire.decode_world_card(through(wire.encode_world(world)))
    for name in ("name", "version", "instructions", "grammar", "horizon", "reward_range", "tiers", "run_in_thread"):
        assert getattr(card, name) == getattr(world, name)
    with pytest.raises(SampleInvalid, match="range"):
        wire.decode_world_card({**wire.encode_world(world), "reward_range": [0]})


def test_grammars_are_made_again():
    for grammar in (Plain(), ReAct(), Fenced(), SearchGrammar(True), SearchGrammar(False), Calls("json"), WebGrammar()):
        assert wire.decode_grammar(through(wire.encode_grammar(grammar))) == grammar
    assert isinstance(wire.decode_grammar(through(wire.encode_grammar(Reply()))), Reply)


class Shouted:
    """Another grammar than ours, whose class has the name of one of ours."""

    def parse(self, text):
        return Parsed(text.rpartition("!")[2])

    def render(self, parsed):
        return f"!{parsed.action}"


Shouted.__name__ = "Plain"


@pytest.mark.parametrize("grammar", [Shouted(), FencedOfAgentGym("")])
def test_a_grammar_is_not_taken_for_another_of_its_name(grammar):
    """Its text would be read in another way than its world says, and nobody would notice."""
    kind = type(grammar).__name__
    back = wire.decode_grammar(through(wire.encode_grammar(grammar)))
    with pytest.raises(ConfigError, match=rf"unknown grammar: got ([\w.]+\.)?{kind}"):
        back.parse("thought! ```go```")


@pytest.mark.parametrize("style", STYLES)
def test_the_grammar_of_tools_reads_and_writes_as_before(style):
    grammar = ToolGrammar({}, style)
    back = wire.decode_grammar(through(wire.encode_grammar(grammar)))
    for parsed in (Parsed("finish 3"), Parsed("get_tasks", "first look")):
        assert back.render(parsed) == grammar.render(parsed)
        assert back.parse(back.render(parsed)) == grammar.parse(grammar.render(parsed))


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "Sonnet"},
        {"kind": "Plain", "fields": {"rhyme": 1}},
        {"kind": "os"},
        {"kind": "SearchGrammar", "fields": {"tags": {}}},
        {"kind": "ReAct", "fields": 3},
    ],
)
def test_a_grammar_from_elsewhere_refuses_to_read(row):
    grammar = wire.decode_grammar(row)
    with pytest.raises(ConfigError, match=row["kind"]):
        grammar.parse("go north")
    with pytest.raises(ConfigError, match="unknown grammar"):
        grammar.render(Parsed("go north"))
