"""AgentGym's released files: names of files, forms of ids, splits, and what is wrong with rows."""

from __future__ import annotations

import json

import pytest

from evolvent.data.agentgym_files import find_task_files, name_environment, parse_item_id, read_tasks
from evolvent.errors import ConfigError


def write_rows(path, item_ids, **fields):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{"item_id": item_id, **fields} for item_id in item_ids], indent=2))


@pytest.mark.parametrize(
    ("item_id", "parsed"),
    [
        ("webshop_6", ("webshop", 6)),
        ("lmrlgym_maze_12", ("maze", 12)),
        ("tool_sheet_3", ("sheet", 3)),
        ("movie_0", ("movie", 0)),
        ("crafting_1", None),
        ("webshop_-1", None),
        ("webshop_", None),
        ("webshop_1x", None),
        ("pick_two_obj_and_place-Mug-None-Desk-1", None),
    ],
)
def test_parse_item_id(item_id, parsed):
    assert parse_item_id(item_id) == parsed


def test_files_are_found_in_every_layout_of_the_folder(tmp_path):
    """AgentEval is flat, AgentGym-RL's data has folders; subsets (`_small`) and other files are not counted twice."""
    for name in (
        "textcraft_test.json",
        "lmrlgym_wordle_test.json",
        "train/textcraft_train.json",
        "eval/todo_eval.jsonl",
    ):
        write_rows(tmp_path / name, ["textcraft_1"])
    for name in ("sciworld_test_small.json", "README.json", "crafting_train.json"):
        write_rows(tmp_path / name, ["textcraft_1"])
    found = {name: [path.name for path in paths] for name, paths in find_task_files(tmp_path).items()}
    assert found == {
        "textcraft": ["textcraft_train.json", "textcraft_test.json"],
        "wordle": ["lmrlgym_wordle_test.json"],
        "todo": ["todo_eval.jsonl"],
    }


def test_tasks_are_read_by_split_and_none_is_in_two(tmp_path):
    """AgentTraj holds several episodes of a task; a task that is evaluated is not trained on."""
    write_rows(tmp_path / "lmrlgym_maze_train.json", [f"lmrlgym_maze_{i}" for i in (4, 4, 0, 9)], conversations=[])
    write_rows(tmp_path / "lmrlgym_maze_test.json", ["lmrlgym_maze_9", "lmrlgym_maze_2"])
    tasks = read_tasks(tmp_path, "maze")
    assert tasks.indices == {"train": (4, 0), "dev": (), "test": (9, 2)}
    assert tasks.locations[0] == "lmrlgym_maze_train.json:3"
    assert [str(problem) for problem in tasks.problems] == [
        "maze: 1 tasks of train are evaluated too, for example 9 (they are left out of train)"
    ]


def test_rows_that_name_no_task_are_told_with_file_and_row(tmp_path):
    path = tmp_path / "webshop_test.json"
    path.write_text(json.dumps([{"item_id": "webshop_1"}, {"item_id": "sqlgym_2"}, {"id": 3}, 7]))
    tasks = read_tasks(path, "webshop")
    assert tasks.indices["test"] == (1,)
    assert [str(problem).partition(",")[0] for problem in tasks.problems] == [
        "webshop_test.json:2: got the item_id 'sqlgym_2'",
        "webshop_test.json:3: got the item_id None",
        "webshop_test.json:4: got the item_id None",
    ]


def test_a_broken_line_is_told_and_the_others_are_kept(tmp_path):
    path = tmp_path / "todo_test.jsonl"
    path.write_text('{"item_id": "todo_1"}\n{"item_id": \n{"item_id": "todo_2"}\n')
    tasks = read_tasks(path, "todo")
    assert tasks.indices["test"] == (1, 2)
    assert [problem.where for problem in tasks.problems] == ["todo_test.jsonl:2"]


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        find_task_files(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"holds no released file of AgentGym .expected names such as textcraft"):
        find_task_files(tmp_path)
    write_rows(tmp_path / "todo_test.json", ["movie_1"])
    with pytest.raises(ConfigError, match=r"holds no file of maze; it has todo"):
        read_tasks(tmp_path, "maze")
    with pytest.raises(
        ConfigError, match=r"names no task of todo; the first: todo_test.json:1: got the item_id 'movie_1'"
    ):
        read_tasks(tmp_path, "todo")
    write_rows(tmp_path / "mine.json", ["crafting_1"])
    with pytest.raises(ConfigError, match=r"mine.json:1: got the item_id 'crafting_1', expected ENVIRONMENT_NUMBER"):
        name_environment(tmp_path / "mine.json")
    write_rows(tmp_path / "mine.json", ["tool_todo_1"])
    assert (name_environment(tmp_path / "mine.json"), name_environment(tmp_path / "todo_test.json")) == ("todo", "todo")
