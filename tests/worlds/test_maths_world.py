"""The world of MATH's problems: layouts, tiers, spans, verdicts, and no training on a test set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evolvent.errors import ConfigError, SampleInvalid, ScoringError, SessionGone, VersionMismatch
from evolvent.grade.maths import MathsGrader
from evolvent.trajectory import Task
from evolvent.worlds.audit import play_actions
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.reasoning.maths import Maths
from evolvent.worlds.reasoning.mathsfiles import parse_maths_row, split_sentences

HALF = {
    "problem": "What is half of $\\frac{2}{3}$?",
    "solution": "Half of it is $\\frac12 \\cdot \\frac23.$ This is $\\boxed{\\frac{1}{3}}.$",
    "answer": "\\frac{1}{3}",
    "subject": "Prealgebra",
    "level": 2,
    "unique_id": "test/prealgebra/1.json",
}
ROOT = {  # MATH's own layout: no answer, type for subject, the level in words
    "problem": "Find $\\sqrt{8}$ in lowest form.",
    "level": "Level 5",
    "type": "Algebra",
    "solution": "It is $\\boxed{2\\sqrt{2}}$.",
}


def row(n: int, **more: object) -> dict[str, object]:
    return {"problem": f"What is ${n}+1$?", "solution": f"Add. It is $\\boxed{{{n + 1}}}$.", "level": 1 + n % 5, **more}


def write(path: Path, rows: list[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [one if isinstance(one, str) else json.dumps(one) for one in rows]
    path.write_text("\n".join(lines) if path.suffix == ".jsonl" else json.dumps(rows))
    return path


def test_math500_is_a_test_set_and_nothing_else(tmp_path):
    world = Maths(write(tmp_path / "test500.jsonl", [HALF, ROOT]))
    assert world.tiers == ("all",) and world.vocabulary() is None and world.horizon == 1
    assert [len(world.tasks(split, "all")) for split in SPLITS] == [0, 0, 2]
    half, root = world.tasks("test", "all")
    assert (half.kind, root.kind) == ("Prealgebra, level 2", "Algebra, level 5")
    assert world.question(half).text == HALF["problem"] and world.question(root).answer == "2\\sqrt{2}"
    assert world.question(half).rationale == (
        "Half of it is $\\frac12 \\cdot \\frac23.$",
        "This is $\\boxed{\\frac{1}{3}}.$",
    )
    assert all(play_actions(world, task, world.expert(task) or []) for task in (half, root))
    for said, right in (
        ("so \\boxed{1/3}", True),
        ("the answer is 1/3.", True),
        ("\\boxed{.333}", False),
        ("?", False),
    ):
        assert play_actions(world, half, [said]) is right
    with pytest.raises(ConfigError, match="unknown tier"):
        world.tasks("test", "seen")


def test_tiers_by_level_hold_the_same_tasks(tmp_path):
    path = write(tmp_path / "a.jsonl", [row(n) for n in range(12)] + [{**row(40), "level": "Level ?"}])
    world, whole = Maths(path, tiering="levels"), Maths(path)
    assert world.tiers == ("level1", "level2", "level3", "level4", "level5", "unknown")
    found = {task.id for tier in world.tiers for task in world.tasks("test", tier)}
    assert found == {task.id for task in whole.tasks("test", "all")} and len(found) == 13
    assert [len(world.tasks("test", tier)) for tier in world.tiers] == [3, 3, 2, 2, 2, 1]
    with pytest.raises(ConfigError, match="did you mean 'levels'"):
        Maths(path, tiering="level")


def test_files_that_say_train_are_trained_on_and_a_tenth_is_dev(tmp_path):
    write(tmp_path / "train" / "algebra.jsonl", [row(n) for n in range(200)])
    write(tmp_path / "test" / "algebra.jsonl", [row(n) for n in range(300, 310)])
    world = Maths(tmp_path)
    train, dev, test = (world.tasks(split, "all") for split in SPLITS)
    assert len(train) + len(dev) == 200 and 8 <= len(dev) <= 35 and len(test) == 10
    write(tmp_path / "val.json", [row(400)])
    again = Maths(tmp_path)
    assert [len(again.tasks(split, "all")) for split in SPLITS] == [200, 1, 10]


def test_one_object_a_file_as_math_has_it(tmp_path):
    for n in range(3):
        path = tmp_path / "MATH" / "test" / "algebra" / f"{n}.json"
        write(path, [])
        path.write_text(json.dumps({**ROOT, "problem": f"{n}?"}))
    assert len(Maths(tmp_path / "MATH").tasks("test", "all")) == 3


def test_a_problem_in_training_and_test_is_refused(tmp_path):
    write(tmp_path / "test.jsonl", [row(n) for n in range(10)])
    write(tmp_path / "train.jsonl", [{**row(n), "problem": f"what  is ${n}+1$?"} for n in range(3, 20)])
    with pytest.raises(ConfigError) as caught:
        Maths(tmp_path)
    assert len(caught.value.problems) == 6  # five of the seven, and how many more
    assert "train.jsonl, row 0: is also a test problem (test.jsonl, row 3)" in str(caught.value)
    assert "2 more rows" in str(caught.value)


@pytest.mark.parametrize("name", ["train.jsonl", "dev.jsonl"])
def test_the_test_set_under_another_name_is_refused(tmp_path, name):
    write(tmp_path / name, [row(1), HALF])
    with pytest.raises(ConfigError, match="row 1: belongs to MATH's test set"):
        Maths(tmp_path)


def test_broken_rows_and_copies_are_left_out_and_listed(tmp_path):
    bad = ["{broken", json.dumps([1]), json.dumps({"problem": ""}), json.dumps({"problem": "p", "solution": "no box"})]
    world = Maths(write(tmp_path / "test.jsonl", [row(1), *bad, row(1)]))
    assert len(world.tasks("test", "all")) == 1
    assert [problem.where for problem in world.problems] == [f"test.jsonl, row {n}" for n in (1, 2, 3, 4, 5)]
    with pytest.raises(ConfigError, match="no problems found"):
        Maths(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="the row has no answer"):
        Maths(write(tmp_path / "only.jsonl", [bad[3]]))
    with pytest.raises(ConfigError, match="cannot be read"):
        path = tmp_path / "broken.json"
        path.write_text("{")
        Maths(path)
    with pytest.raises(SampleInvalid, match="the row is not an object"):
        parse_maths_row(7, "f", 0)


def test_tasks_of_other_rows_are_refused(tmp_path):
    path = write(tmp_path / "test.jsonl", [row(1)])
    task = Maths(path).tasks("test", "all")[0]
    write(path, [row(2)])
    world = Maths(path)
    with pytest.raises(VersionMismatch, match="the content of"):
        world.make(task)
    with pytest.raises(ConfigError, match="row not found"):
        world.make(Task("maths", "1", {**task.spec, "row": 5}))
    with pytest.raises(ConfigError, match="does not belong to world"):
        world.make(Task("problems", "1", task.spec))


def test_what_cannot_be_graded_is_not_scored(tmp_path, monkeypatch):
    pytest.importorskip("math_verify")
    path = write(tmp_path / "test.jsonl", [ROOT])
    with MathsGrader(wall_s=2.0, max_processes=1) as grader:
        world = Maths(path, grader=grader)
        task = world.tasks("test", "all")[0]
        env = world.make(task)
        env.reset()
        with pytest.raises(ScoringError, match="GraderTimeout"):
            env.step("\\boxed{9^{9^{9}}}")
        env.close()
        with pytest.raises(SessionGone):
            env.step("7")
    world.close()
    with MathsGrader(wall_s=60.0, max_processes=1) as grader:  # what can be graded may take long on a busy machine
        world = Maths(path, grader=grader)
        assert play_actions(world, task, ["\\boxed{\\sqrt{8}}"])
        assert check_env(lambda: world.make(task), choose=lambda rng, info: "\\boxed{5}") == []
    world.close()


@pytest.mark.parametrize(
    ("solution", "spans"),
    [
        ("One. Two! $x = 1. Y$ stays.\nThree", ("One.", "Two!", "$x = 1. Y$ stays.", "Three")),
        ("Of 3.5 and e.g. one.", ("Of 3.5 and e.g. one.",)),
        ("We have \\[a\n= b.\nSo\\] and go.  Then \\$5. End", ("We have \\[a = b. So\\] and go.", "Then \\$5.", "End")),
        (
            "\\begin{align*}\na &= b \\\\[2mm]\n&= c. D\n\\end{align*}\nSo $c$.",
            ("\\begin{align*} a &= b \\\\[2mm] &= c. D \\end{align*}", "So $c$."),
        ),
        ('Look. [asy]\ndraw((0,0)); label("$A$. B");\n[/asy] Done. $x$ is it.', ("Look.", "Done.", "$x$ is it.")),
        ("As $x = 2.$ Also $y.$", ("As $x = 2.$", "Also $y.$")),
        ("So \\[x = 2.\\]Then go, as $x.$ goes", ("So \\[x = 2.\\]", "Then go, as $x.$ goes")),
        ("$$a\nb$$ C. D", ("$$a b$$ C.", "D")),
        ("", ()),
    ],
)
def test_spans_are_sentences_and_lines_outside_of_formulas(solution, spans):
    assert split_sentences(solution) == spans


def test_a_solution_without_a_box_is_shown_with_one_and_none_is_no_demonstration(tmp_path):
    rows = [{"problem": "a?", "solution": "It is 4.", "answer": "4"}, {"problem": "b?", "answer": "5"}]
    world = Maths(write(tmp_path / "test.jsonl", rows))
    shown, bare = world.tasks("test", "all")
    assert world.expert(shown) == ["It is 4.\n\\boxed{4}"] and world.expert(bare) is None
    assert (shown.kind, world.question(bare).rationale) == ("problem", ())
