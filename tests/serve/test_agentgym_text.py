"""How AgentGym's texts are read and written: grammars round-trip, hostile text is cheap, sentences are exchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import ConfigError, InvalidAction
from evolvent.serve.agentgym.dialects import DIALECTS, default_mounts, get_dialect
from evolvent.serve.agentgym.face import task_by_number
from evolvent.serve.agentgym.grammars import (
    ActionLineGrammar,
    CraftingGrammar,
    FencedBlockGrammar,
    MazeGrammar,
    TagGrammar,
    ToolLineGrammar,
    WordleGrammar,
    extract_block,
    extract_tag,
    split_tool_line,
)
from evolvent.serve.agentgym.text import get_translator, parse_goal, parse_recipes
from evolvent.worlds.base import Parsed
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.maze import Maze
from evolvent.worlds.sql.world import SqlWorld
from tests.serve.agentgym_support import Echo

LINE = st.from_regex(r"[a-z0-9]([a-z0-9 ,.]{0,20}[a-z0-9])?", fullmatch=True)
THOUGHT = st.one_of(st.none(), st.lists(LINE, min_size=1, max_size=3).map("\n".join))


@pytest.mark.parametrize(
    "grammar",
    [
        ActionLineGrammar("first"),
        ActionLineGrammar("last"),
        ActionLineGrammar("only"),
        CraftingGrammar("only"),
        FencedBlockGrammar("sql"),
        FencedBlockGrammar(),
    ],
    ids=repr,
)
@given(action=LINE, thought=THOUGHT)
def test_what_is_written_is_read_again(grammar, action, thought):
    parsed = Parsed(action, thought)
    assert grammar.parse(grammar.render(parsed)) == parsed


@given(name=st.from_regex(r"[a-z_]{1,12}", fullmatch=True), value=st.integers(), thought=THOUGHT)
def test_calls_of_tools_are_read_again(name, value, thought):
    parsed = Parsed(f'{name} with Action Input: {{"n": {value}}}', thought)
    text = ToolLineGrammar().render(parsed)
    assert ToolLineGrammar().parse(text) == parsed
    assert split_tool_line(text) == (name, f'{{"n": {value}}}')
    assert (
        ToolLineGrammar().to_wire(parsed.action) == f"Action: {parsed.action}"
        and ToolLineGrammar().to_wire(text) == text
    )


@given(words=LINE, thought=THOUGHT)
def test_tags_are_read_again(words, thought):
    parsed = Parsed(f"<answer>{' '.join(words.split())}</answer>", thought)
    assert TagGrammar().parse(TagGrammar().render(parsed)) == parsed


def test_the_first_the_last_or_the_only_action_counts():
    text = "Thought: a\nAction: one\nmore\nAction: two"
    assert ActionLineGrammar("first").parse(text).action == "one"
    assert ActionLineGrammar("last").parse(text) == Parsed("two", "a\nAction: one\nmore")
    with pytest.raises(InvalidAction, match="more than one action"):
        ActionLineGrammar("only").parse(text)
    assert ActionLineGrammar("only").to_wire(text) is None and ActionLineGrammar("first").to_wire(text).startswith(
        "one"
    )


@pytest.mark.parametrize(
    "grammar, text, sent",
    [
        (CraftingGrammar("only"), " get 1 <oak> log! ", "get 1 oak log"),
        (CraftingGrammar("only"), "craft 1 a using 2 b, 1 c", "craft 1 a using 2 b, 1 c"),
        (MazeGrammar("first"), "Up", "move up"),
        (MazeGrammar("first"), "move up", "move up"),
        (MazeGrammar("first"), "jump", "jump"),
        (WordleGrammar("first"), "Crane", "c r a n e"),
        (WordleGrammar("first"), "c r a n e", "c r a n e"),
        (FencedBlockGrammar("sql"), "```sql\nSELECT 1\n```", "SELECT 1"),
        (FencedBlockGrammar("sql"), "SELECT 1", "SELECT 1"),
        (FencedBlockGrammar(), "click [1]", "```click [1]```"),
        (FencedBlockGrammar(), "so ```click [1]```", "so ```click [1]```"),
        (TagGrammar(), "search the owner", "<search>the owner</search>"),
    ],
)
def test_what_travels(grammar, text, sent):
    assert grammar.to_wire(text) == sent


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
        split_tool_line(text)


def test_calls_are_split_and_never_run():
    hostile = "Action: finish with Action Input: __import__('os').system('x')"
    assert split_tool_line(hostile) == ("finish", "__import__('os').system('x')")
    assert split_tool_line("think with care\nAction:  add   with  Action Input:{'a': 1}  \n") == ("add", "{'a': 1}")


def test_hostile_text_is_read_in_linear_time():
    for bomb in (
        "<search>" * 200_000,
        "with Action Input: " * 100_000,
        "```" * 300_000,
        " " * 1_000_000,
        "Action:" * 200_000,
        "<answer><search>" * 100_000,
    ):
        assert extract_tag(bomb) == bomb
        for read in (split_tool_line, extract_block, *(row.grammar.parse for row in DIALECTS.values())):
            try:
                read(bomb)
            except InvalidAction as error:
                assert error.expected
        for row in DIALECTS.values():
            row.grammar.to_wire(bomb)


def test_fences():
    assert extract_block("a ```click [3]``` b ```stop```") == "click [3]"
    assert FencedBlockGrammar("sql").parse("```sql\nSELECT 1\n``` or ```sql\nSELECT 2\n```").action == "SELECT 2"
    for text in ("none", "``` ```", "```open"):
        with pytest.raises(InvalidAction, match="block of code"):
            extract_block(text)


def test_walls_are_told_in_the_order_of_the_original():
    voice = get_translator("maze", Maze("double_t"))
    here = "The goal is at position 8, 6. Your current position is at position 1, 1. "
    told = {
        "up left down": "There are walls to your left, above you, below you.",
        "none": "There are no walls near you.",
        "right": "There is a wall to your right.",
    }
    for walls, text in told.items():
        assert voice.format_first(f"at 1 1 goal 8 6 walls {walls}", {}) == here + text
    assert voice.format_first("something else", {}) == "something else"


def test_what_is_known_only_from_the_text_is_told():
    voice = get_translator("babyai", GridWorld())
    info = {"admissible": ("turn left", "go to red ball 1")}
    listed = '\nAvailable actions: ["turn left", "go to red ball 1"]'
    assert (
        voice.format_first("go to the ball . see nothing", info) == f"Your goal: go to the ball . see nothing{listed}"
    )
    assert voice.translate("see nothing", info, action="x", truncated=False) == f"see nothing{listed}"
    assert voice.translate(f"x{listed}", info, action="x", truncated=False) == f"x{listed}"
    first = "Crafting commands:\ncraft 1 a using 1 b\n\nGoal: craft a."
    assert (parse_goal(first), parse_recipes(first)) == ("a", "craft 1 a using 1 b")
    assert (
        get_translator("alfworld", Echo()).format_first("-= Welcome to TextWorld, ALFRED! =-\n\nYou are", {})
        == "You are"
    )


def test_the_table_has_all_fifteen_and_is_read_by_name():
    assert len(DIALECTS) == 15
    assert {row.shape for row in DIALECTS.values()} == {"object", "array", "text", "web"}
    assert all(
        row.horizon >= 1 and row.instructions and row.session_key in ("id", "env_idx") for row in DIALECTS.values()
    )
    with pytest.raises(ConfigError, match="did you mean 'textcraft'"):
        get_dialect("textcrat")


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
    task = task_by_number(maze)
    starts = [tuple(task(number).spec["start"]) for number in range(25)]
    assert starts[9:13] == [(1, 11), (2, 3), (3, 3), (4, 3)] and starts[-1] == (2, 9)
    for number in (25, 26, -1):
        with pytest.raises(ConfigError, match="start"):
            task(number)
    levels = task_by_number(GridWorld("babyai"))
    assert levels(81).spec == {"level": "BabyAI-GoToRedBall-v0", "seed": 2}
    assert task_by_number(SqlWorld()) is None
    assert task_by_number(GridWorld()) is None and task_by_number(Maze()) is None and task_by_number(Echo()) is None
