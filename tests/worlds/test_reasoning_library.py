"""Questions out of files in the layouts of GSM8K, SVAMP and R3, with what can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evolvent.errors import ConfigError, SampleInvalid, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import play_actions
from evolvent.worlds.reasoning.library import Library, parse_row

CLIPS = {
    "question": "Nina sold 48 clips, then half as many. How many in all?",
    "answer": "She then sold 48/2 = <<48/2=24>>24.\nIn all 48+24 = <<48+24=72>>72.\n#### 72",
}
RICH = {"question": "Ben earns $500 twice. How much?", "answer": "He earns 500*2=<<500*2=1000>>1000.\n#### 1,000"}
SVAMP = {
    "ID": "chal-1",
    "Body": "There are 87 oranges in 3 groups",
    "Question": "How big is each group?",
    "Equation": "( 87.0 / 3.0 )",
    "Answer": 29.0,
    "Type": "Common-Division",
}
MNLI = {
    "instruction": "Premise: all is well.\nHypothesis: something is wrong.",
    "input": "",
    "output": "All is well, so nothing is wrong. ### No",
}
RACE = {
    "instruction": "Read: the cat sat. Who sat?",
    "input": "A. dog B. cat C. cow D. hen",
    "output": "It says so.\n### B",
}
BOARD = {
    "instruction": "The dog hugs the cat. Does it? ### Response: The dog hugs the cat,",
    "input": "",
    "output": "so it is proved. ### proved",
}
PROGRAM = {"instruction": "Three times four?", "input": "", "output": "a = 3\n    b = 4\n    return a * b"}


def write(folder: Path, name: str, rows: list[object]) -> Path:
    path = folder / name
    if path.suffix == ".jsonl":
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    else:
        path.write_text(json.dumps(rows))
    return path


def only(world: Library) -> Task:
    (task,) = [task for split in ("train", "dev", "test") for task in world.tasks(split, "seen")]
    return task


class TestForms:
    def test_gsm8k(self, tmp_path):
        world = Library(write(tmp_path, "test.jsonl", [CLIPS, RICH]))
        first, second = world.tasks("test", "seen")
        assert world.vocabulary() is None
        question = world.question(first)
        assert question.text == CLIPS["question"] and question.answer == "72"
        assert world.expert(first) == ["She then sold 48/2 = 24.\nIn all 48+24 = 72.\n### 72"]
        assert (first.kind, second.kind) == ("2 steps", "1 steps")
        for said in ("#### $1,000.00", "I get \\boxed{1000}", "that is 1000 dollars."):
            assert play_actions(world, second, [said])
        assert not play_actions(world, second, ["#### 100"])
        assert play_actions(world, second, world.expert(second) or [])

    def test_svamp(self, tmp_path):
        world = Library(write(tmp_path, "SVAMP.json", [SVAMP]))
        task = only(world)
        assert world.question(task).text == "There are 87 oranges in 3 groups . How big is each group?"
        assert world.expert(task) == ["( 87 / 3 ) = 29\n### 29"]
        assert task.kind == "Common-Division"
        assert play_actions(world, task, ["### 29"])

    @pytest.mark.parametrize(
        ("subject", "row", "answer", "said"),
        [
            ("entailment", MNLI, "no", "All is well, so nothing is wrong.\n### No"),
            ("reading", RACE, "B", "It says so.\n### B"),
            ("rules", BOARD, "proved", "The dog hugs the cat, so it is proved.\n### proved"),
        ],
    )
    def test_r3(self, tmp_path, subject, row, answer, said):
        world = Library(write(tmp_path, "rows.json", [row]), subject)
        task = only(world)
        question = world.question(task)
        assert question.answer == answer
        assert "### Response" not in question.text and row["input"] in question.text
        assert world.expert(task) == [said]
        assert play_actions(world, task, [said])
        assert world.chance == 1 / len(question.choices)
        assert answer in world.instructions

    def test_programs(self, tmp_path):
        write(tmp_path, "a.json", [PROGRAM])
        write(tmp_path, "test.jsonl", [CLIPS])
        world = Library(tmp_path, form="program")
        tasks = {task.spec["file"]: task for split in ("train", "dev", "test") for task in world.tasks(split, "seen")}
        shown = tasks["a.json"]
        assert world.question(shown).text == "Three times four?\ndef solution():"
        assert play_actions(world, shown, world.expert(shown) or [])
        assert world.expert(tasks["test.jsonl"]) is None  # a solution in words is no program
        assert play_actions(world, tasks["test.jsonl"], ["a = 48 ; return a + a / 2"])
        assert not play_actions(world, tasks["test.jsonl"], ["return 72.02"])


class TestSplits:
    def test_names_of_files_say_the_split(self, tmp_path):
        rows = [{"question": f"What is {n} + 1?", "answer": f"{n}+1={n + 1}\n#### {n + 1}"} for n in range(300)]
        write(tmp_path, "train.jsonl", rows)
        write(tmp_path, "test.jsonl", [CLIPS, rows[0], rows[1]])
        world = Library(tmp_path)
        sizes = {split: len(world.tasks(split, "seen")) for split in ("train", "dev", "test")}
        assert sizes["test"] == 3 and 15 < sizes["dev"] < 45 and sum(sizes.values()) == 301
        keys = [world.key(task) for split in sizes for task in world.tasks(split, "seen")]
        assert len(keys) == len(set(keys))
        assert [problem.where for problem in world.problems] == ["train.jsonl, row 0", "train.jsonl, row 1"]
        write(tmp_path, "validation.jsonl", [RICH])
        assert len(Library(tmp_path).tasks("dev", "seen")) == 1

    def test_other_files_are_dealt_by_their_questions(self, tmp_path):
        rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(200)]
        one = Library(write(tmp_path, "a.jsonl", rows))
        two = Library(write(tmp_path, "b.jsonl", rows[::-1]))
        for split in ("train", "dev", "test"):
            assert {one.key(task) for task in one.tasks(split, "seen")} == {
                two.key(task) for task in two.tasks(split, "seen")
            }
            assert one.tasks(split, "seen")

    def test_a_task_is_a_row_as_it_was(self, tmp_path):
        world = Library(write(tmp_path, "a.jsonl", [CLIPS]))
        task = only(world)
        changed = Library(write(tmp_path, "a.jsonl", [{**CLIPS, "answer": "#### 73"}]))
        with pytest.raises(VersionMismatch, match=r"the content of"):
            changed.make(task)
        with pytest.raises(ConfigError, match="row not found"):
            world.make(Task(world.name, world.version, {"file": "a.jsonl", "row": 9}))
        with pytest.raises(ConfigError, match="unknown tier"):
            world.tasks("test", "evo")


class TestBadInput:
    @pytest.mark.parametrize(
        ("row", "told"),
        [
            (["a list"], "the row is not an object"),
            ("{broken", "is not valid JSON (Expecting property name"),
            ({}, "lacks question, answer"),
            ({"question": "?", "answer": "no mark"}, "the solution has no '####'"),
            ({"question": " ", "answer": "#### 3"}, "the row lacks question"),
            ({"question": "?", "answer": "#### many"}, "the answer is not a number"),
            ({**SVAMP, "Answer": None}, "the row has no Answer"),
            ({**SVAMP, "Answer": True}, "the row has no Answer"),
            ({**MNLI, "output": "no"}, "and is not a program"),
            ({**MNLI, "output": 3}, "lacks output"),
            ({**PROGRAM, "output": "import os"}, "and is not a program"),
        ],
    )
    def test_bad_rows_are_left_out_and_told(self, tmp_path, row, told):
        world = Library(write(tmp_path, "a.jsonl", [row, CLIPS]))
        assert only(world).spec["row"] == 1
        (problem,) = world.problems
        assert problem.where == "a.jsonl, row 0" and told in problem.what
        with pytest.raises(SampleInvalid):
            parse_row(row, "a.jsonl", 0, answers=())

    def test_answers_of_another_subject_are_told(self, tmp_path):
        world = Library(write(tmp_path, "a.json", [MNLI, RACE]), "reading")
        assert "unknown answer" in world.problems[0].what
        with pytest.raises(ConfigError, match="unknown answer"):
            Library(write(tmp_path, "a.json", [MNLI]), "rules")

    def test_files_that_cannot_be_used(self, tmp_path):
        with pytest.raises(ConfigError, match="no questions found"):
            Library(tmp_path)
        (tmp_path / "a.json").write_text("{")
        with pytest.raises(ConfigError, match=r"a\.json cannot be read"):
            Library(tmp_path)
        (tmp_path / "a.json").write_text('{"rows": []}')
        with pytest.raises(ConfigError, match="does not hold an array of rows"):
            Library(tmp_path)
        (tmp_path / "a.json").write_text("[" * 100_000)
        with pytest.raises(ConfigError, match="cannot be read"):
            Library(tmp_path)
        with pytest.raises(ConfigError) as caught:
            Library(tmp_path, "poems", form="program")
        assert [problem.where for problem in caught.value.problems] == ["subject", "form"]
