"""How AgentGym's texts are read and written: grammars round-trip, hostile text is cheap, sentences are exchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import ConfigError, InvalidAction
from evolvent.serve.agentgym.dialects import DIALECTS, default_mounts, dialect_named
from evolvent.serve.agentgym.grammars import (
    Fenced,
    Letters,
    Marked,
    Tagged,
    ToolLine,
    Ways,
    Words,
    fence,
    tag,
    tool_line,
)
from evolvent.serve.agentgym.numbers import numbered
from evolvent.serve.agentgym.text import goal_of, recipes_of, voice_of
from evolvent.worlds.grammar import Parsed
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.maze import Maze
from evolvent.worlds.sql.world import SqlWorld
from tests.serve.agentgym_support import Echo

LINE = st.from_regex(r"[a-z0-9]([a-z0-9 ,.]{0,20}[a-z0-9])?", fullmatch=True)
THOUGHT = st.one_of(st.none(), st.lists(LINE, min_size=1, max_size=3).map("\n".join))


@pytest.mark.parametrize(
    "grammar", [Marked("first"), Marked("last"), Marked("only"), Words("only"), Fenced("sql"), Fenced()], ids=repr
)
@given(action=LINE, thought=THOUGHT)
def test_what_is_written_is_read_again(grammar, action, thought):
    parsed = Parsed(action, thought)
    assert grammar.parse(grammar.render(parsed)) == parsed


@given(name=st.from_regex(r"[a-z_]{1,12}", fullmatch=True), value=st.integers(), thought=THOUGHT)
def test_calls_of_tools_are_read_again(name, value, thought):
    parsed = Parsed(f'{name} with Action Input: {{"n": {value}}}', thought)
    text = ToolLine().render(parsed)
    assert ToolLine().parse(text) == parsed
    assert tool_line(text) == (name, f'{{"n": {value}}}')
    assert ToolLine().carry(parsed.action) == f"Action: {parsed.action}" and ToolLine().carry(text) == text


@given(words=LINE, thought=THOUGHT)
def test_tags_are_read_again(words, thought):
    parsed = Parsed(f"<answer>{' '.join(words.split())}</answer>", thought)
    assert Tagged().parse(Tagged().render(parsed)) == parsed


def test_the_first_the_last_or_the_only_action_counts():
    text = "Thought: a\nAction: one\nmore\nAction: two"
    assert Marked("first").parse(text).action == "one"
    assert Marked("last").parse(text) == Parsed("two", "a\nAction: one\nmore")
    with pytest.raises(InvalidAction, match="more than one action"):
        Marked("only").parse(text)
    assert Marked("only").carry(text) is None and Marked("first").carry(text).startswith("one")


@pytest.mark.parametrize(
    "grammar, text, sent",
    [
        (Words("only"), " get 1 <oak> log! ", "get 1 oak log"),
        (Words("only"), "craft 1 a using 2 b, 1 c", "craft 1 a using 2 b, 1 c"),
        (Ways("first"), "Up", "move up"),
        (Ways("first"), "move up", "move up"),
        (Ways("first"), "jump", "jump"),
        (Letters("first"), "Crane", "c r a n e"),
        (Letters("first"), "c r a n e", "c r a n e"),
        (Fenced("sql"), "```sql\nSELECT 1\n```", "SELECT 1"),
        (Fenced("sql"), "SELECT 1", "SELECT 1"),
        (Fenced(), "click [1]", "```click [1]```"),
        (Fenced(), "so ```click [1]```", "so ```click [1]```"),
        (Tagged(), "search the owner", "<search>the owner</search>"),
    ],
)
def test_what_travels(grammar, text, sent):
    assert grammar.carry(text) == sent


@pytest.mark.parametrize(
    "text",
    [
        "",
        "add",
        "add with Action Input",
        "Action Input: {}",
        "with Action Input: {}",
        "add with Action Input: {}\nmore",
        "add without Action Input {}",
    ],
)
def test_text_without_a_call_on_its_last_line(text):
    with pytest.raises(InvalidAction, match="no call of a tool"):
        tool_line(text)


def test_calls_are_split_and_never_run():
    hostile = "Action: finish with Action Input: __import__('os').system('x')"
    assert tool_line(hostile) == ("finish", "__import__('os').system('x')")
    assert tool_line("think with care\nAction:  add   with  Action Input:{'a': 1}  \n") == ("add", "{'a': 1}")


def test_hostile_text_is_read_in_linear_time():
    for bomb in (
        "<search>" * 200_000,
        "with Action Input: " * 100_000,
        "```" * 300_000,
        " " * 1_000_000,
        "Action:" * 200_000,
        "<answer><search>" * 100_000,
    ):
        assert tag(bomb) == bomb
        for read in (tool_line, fence, *(row.grammar.parse for row in DIALECTS.values())):
            try:
                read(bomb)
            except InvalidAction as error:
                assert error.expected
        for row in DIALECTS.values():
            row.grammar.carry(bomb)


def test_fences():
    assert fence("a ```click [3]``` b ```stop```") == "click [3]"
    assert Fenced("sql").parse("```sql\nSELECT 1\n``` or ```sql\nSELECT 2\n```").action == "SELECT 2"
    for text in ("none", "``` ```", "```open"):
        with pytest.raises(InvalidAction, match="block of code"):
            fence(text)


def test_walls_are_told_in_the_order_of_the_original():
    voice = voice_of("maze", Maze("double_t"))
    here = "The goal is at position 8, 6. Your current position is at position 1, 1. "
    told = {
        "up left down": "There are walls to your left, above you, below you.",
        "none": "There are no walls near you.",
        "right": "There is a wall to your right.",
    }
    for walls, text in told.items():
        assert voice.first(f"at 1 1 goal 8 6 walls {walls}", {}) == here + text
    assert voice.first("something else", {}) == "something else"


def test_what_is_known_only_from_the_text_is_told():
    voice = voice_of("babyai", GridWorld())
    info = {"admissible": ("turn left", "go to red ball 1")}
    listed = '\nAvailable actions: ["turn left", "go to red ball 1"]'
    assert voice.first("go to the ball . see nothing", info) == f"Your goal: go to the ball . see nothing{listed}"
    assert voice.answered("see nothing", info, action="x", truncated=False) == f"see nothing{listed}"
    assert voice.answered(f"x{listed}", info, action="x", truncated=False) == f"x{listed}"
    first = "Crafting commands:\ncraft 1 a using 1 b\n\nGoal: craft a."
    assert (goal_of(first), recipes_of(first)) == ("a", "craft 1 a using 1 b")
    assert voice_of("alfworld", Echo()).first("-= Welcome to TextWorld, ALFRED! =-\n\nYou are", {}) == "You are"


def test_the_table_has_all_fifteen_and_is_read_by_name():
    assert len(DIALECTS) == 15
    assert {row.shape for row in DIALECTS.values()} == {"object", "array", "text", "web"}
    assert all(row.horizon >= 1 and row.instructions and row.session in ("id", "env_idx") for row in DIALECTS.values())
    with pytest.raises(ConfigError, match="did you mean 'textcraft'"):
        dialect_named("textcrat")


def test_worlds_find_their_dialects():
    mounts = default_mounts(["workshop", "crafting", "lookup", "household", "sql"])
    assert mounts == {
        "workshop": ("workshop", "textcraft"),
        "crafting": ("crafting", "textcraft"),
        "household": ("household", "alfworld"),
        "sql": ("sql", "sqlgym"),
        "textcraft": ("workshop", "textcraft"),
        "alfworld": ("household", "alfworld"),
        "sqlgym": ("sql", "sqlgym"),
    }


def test_numbers_of_the_original():
    maze = Maze("double_t")
    task = numbered(maze)
    starts = [tuple(task(number).spec["start"]) for number in range(25)]
    assert starts[9:13] == [(1, 11), (2, 3), (3, 3), (4, 3)] and starts[-1] == (2, 9)
    for number in (25, 26, -1):
        with pytest.raises(ConfigError, match="start"):
            task(number)
    levels = numbered(GridWorld("babyai"))
    assert levels(81).spec == {"level": "BabyAI-GoToRedBall-v0", "seed": 2}
    assert numbered(SqlWorld()) is None
    assert numbered(GridWorld()) is None and numbered(Maze()) is None and numbered(Echo()) is None
