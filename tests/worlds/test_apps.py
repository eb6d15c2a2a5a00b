"""APPS: rows and folders in its layout, programs judged by what they print, functions by what they return."""

import json
import re

import pytest

from evolvent.agents.plain import Expert, Script
from evolvent.cli.main import main
from evolvent.errors import ConfigError
from evolvent.grade.exchanges import Exchanges, grade_exchanges, is_same_text, is_same_value
from evolvent.rollout.episode import collect
from evolvent.sandbox.limits import SandboxLimits
from evolvent.sandbox.pool import SandboxPool
from evolvent.trajectory import Start
from evolvent.worlds.code.rows import read_code, read_code_row
from evolvent.worlds.code.world import Code

ADDED = "sum(map(int, input().split()))"
SUM = {
    "problem_id": 7,
    "question": "Print the sum of two numbers.",
    "difficulty": "introductory",
    "url": "https://a.b/c",
    "solutions": json.dumps(["a, b = map(int, input().split())\nprint(a + b)\n", f"print({ADDED})"]),
    "input_output": json.dumps({"inputs": ["1 2\n", "-3 3\n"], "outputs": ["3\n", "0\n"]}),
    "starter_code": "",
}
CALL = {
    "id": 8,
    "question": "Twice each.",
    "difficulty": "interview",
    "starter_code": "class Solution:\n    def twice(self, a):",
    "solutions": json.dumps(["class Solution:\n    def twice(self, a: List[int]):\n        return [2 * x for x in a]"]),
    "input_output": json.dumps({"fn_name": "twice", "inputs": [[[1, 2]], [[]]], "outputs": [[[2, 4]], [[]]]}),
}


@pytest.fixture(scope="module")
def boxes():
    with SandboxPool() as made:
        yield made.opener(SandboxLimits(cpu_s=5, wall_s=5.0))


def judged(boxes, source, **tests):
    given = {"inputs": ("1 2\n",), "outputs": ("3\n",), **tests}
    return grade_exchanges(source, Exchanges(**given), boxes)


@pytest.mark.parametrize(
    "source",
    [
        "print(sum(map(int, input().split())))",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "import sys\nsys.stdout.write(str(sum(map(int, sys.stdin.buffer.readline().split()))))",
        "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())",
        "print(sum(int(x) for line in open(0) for x in line.split()))",
        "from __future__ import annotations\nif __name__ == '__main__':\n    print(3)\n    raise SystemExit(0)",
        "import threading, time\nthreading.Thread(target=lambda: print(time.sleep(0.1) or 3)).start()",
        "print(math.floor(3.5), end=' \\n\\n')",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(3)'])",
    ],
)
def test_programs_are_run_as_they_are_written(boxes, source):
    found = judged(boxes, source)
    assert found.correct, found.why


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("print(4)", "got '4"),
        ("", "got ''"),
        ("print(3); print(3)", "got"),
        ("1 / 0", "ZeroDivisionError"),
        ("def (", "SyntaxError"),
        ("while True: pass", "timeout|limit|killed"),
        ("import os; os._exit(0)", "killed"),
        ("print(3); import os; os._exit(0)", "killed"),
        ("print('x' * 2_000_000)", "malformed"),
        ("import sys\nsys.stdout.close()", "raised|got"),
        ("def ask_the_program(given):\n    return '3'", "got ''"),
        ("import sys, candidate\ncandidate.ask_the_program = lambda given: '3'", "got ''"),
    ],
)
def test_wrong_programs_are_wrong(boxes, source, why):
    found = judged(boxes, source)
    assert found.correct is False and re.search(why, found.why), found.why


FORGED = """
import json, os
from evolvent.sandbox.values import encode
body = json.dumps({"value": encode("3")}).encode()
for number in range(3, 4096):
    try:
        os.write(number, len(body).to_bytes(4, "little") + body)
    except OSError:
        pass
print(4)
"""


def test_an_answer_that_is_forged_is_one_too_many(boxes):
    found = judged(boxes, FORGED)
    assert found.correct is False and "malformed" in found.why


def test_every_exchange_counts_and_has_a_box_of_its_own(boxes):
    tests = Exchanges(("1 2", "5 6"), ("3", "11"))
    assert grade_exchanges("print(3)", tests, boxes).why.startswith("exchange 2")
    counting = "import os\nprint(len([x for x in os.listdir('.') if x[0] != '.']))\nopen('left', 'w').close()"
    assert grade_exchanges(counting, Exchanges(("", ""), ("0", "0")), boxes).correct
    assert grade_exchanges("print(1)", Exchanges((), ()), boxes).correct is None


def test_functions(boxes):
    tests = {"inputs": ([[1, 2]], [{"1": 2}]), "outputs": ([[2, 1]], [["1"]]), "function": "turn"}
    plain = "def turn(a):\n    return tuple(str(k) if isinstance(a, dict) else k for k in reversed(list(a)))"
    assert judged(boxes, plain, **tests).correct
    assert judged(
        boxes, "class Solution:\n    def turn(self, a: List[int]):\n        return list(a)[::-1]", **tests
    ).why
    odd = {
        "inputs": ([{"--5": 1, "2": 1}], [{"01": 1, "1": 1}], [{"-1": 0}]),
        "outputs": (["--5", "2"], ["01", "1"], [-1]),
    }
    assert judged(boxes, "def turn(a):\n    return list(a)", **odd, function="turn").correct, "keys that are no numbers"
    whole = {"inputs": ([{"1": 2}],), "outputs": (3,), "function": "total"}
    assert judged(boxes, "def total(a):\n    return sum(k + v for k, v in a.items())", **whole).correct
    for source in ("class Solution:\n    pass", "x = 1", "class Solution:\n    def total(self):\n        return 3"):
        assert judged(boxes, source, **whole).correct is False
    always = "class A:\n    def __eq__(self, other):\n        return True\ndef total(a):\n    return A()"
    assert judged(boxes, always, **whole).correct is False


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1 2\n\n3  \n", "1 2\n3", True),
        ("1\n2", "1 2", False),
        ("0.3333333", "0.33333333", True),
        ("0.5", "0.6", False),
        ("10000001", "10000002", False),
        ("nan", "0.0", False),
        ("1", "1.0", True),
        ("a.", "b.", False),
        ("", "", True),
        ("2\n1", "1\n2", False),
        (3, "3", False),
        ("1_0.5", "10.5", False),
        ("\uff11.5", "1.5", False),
        ("+.5", "0.5", True),
        ("1e3", "1000.", True),
        ("inf", "1.0", False),
        ("1.", "1.0", True),
    ],
)
def test_what_is_the_same_text(got, expected, same):
    assert is_same_text(got, expected) is same


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ((1, 2), [1, 2], True),
        (3, [3], True),
        ([3], [[3]], True),
        ({1: 2}, {"1": 2}, True),
        (0.1 + 0.2, 0.3, True),
        ("3", 3, False),
        ([1], [1, 2], False),
        ({1: 2}, {"1": 2, "3": 4}, False),
        ("a", ["a"], True),
        (None, [], False),
        ("x", 0.5, False),
        (10**400, 1.5, False),
        ([1.5], [10**400], False),
        ({1: "a", "1": "b"}, {"1": "b"}, False),
        ({1: "a", 2: "b"}, {"2": "b", "1": "a"}, True),
    ],
)
def test_what_is_the_same_value(got, expected, same):
    assert is_same_value(got, expected) is same


# ---------------------------------------------------------------------------------------------------- the layout


def written(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def foldered(root, name, row, *, without=()):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "question.txt").write_text(row["question"])
    files = {name: row[name.partition(".")[0]] for name in ("solutions.json", "input_output.json", "starter_code.py")}
    files["metadata.json"] = json.dumps({"difficulty": row["difficulty"]})
    for file, text in files.items():
        if file not in without:
            (folder / file).write_text(text)


def test_rows_and_folders_read_alike(tmp_path):
    rows, problems = read_code(written(tmp_path / "rows" / "test.jsonl", SUM, CALL))
    foldered(tmp_path / "apps", "test/0007", SUM)
    foldered(tmp_path / "apps", "test/0008", CALL)
    others, wrong = read_code(tmp_path / "apps")
    assert not problems and not wrong
    for row, other in zip(rows, others, strict=True):
        assert (row.text, row.tests, row.solution, row.digest, row.about) == (
            other.text,
            other.tests,
            other.solution,
            other.digest,
            other.about,
        )
    assert rows[0].name == "APPS/7" and len(rows[0].other_solutions) == 1 and "standard input" in rows[0].text
    assert rows[1].tests.function == "twice" and rows[1].text.endswith("def twice(self, a):")


@pytest.mark.isolation
def test_the_world_plays_them(tmp_path):
    foldered(tmp_path, "test/1", SUM)
    foldered(tmp_path, "test/2", CALL)
    foldered(tmp_path, "train/3", SUM | {"question": "Else."}, without=("solutions.json", "starter_code.py"))
    foldered(tmp_path, "test/4", SUM, without=("input_output.json",))
    foldered(tmp_path, "test/5", SUM | {"input_output": "{"})
    world = Code(tmp_path)
    try:
        tasks = world.tasks("test", "all")
        assert [task.kind for task in tasks] == ["apps, introductory, program", "apps, interview, function"]
        assert [problem.where for problem in world.problems] == ["test/4, row 0", "test/5, row 0"] and world.count == 5
        assert "program" in world.instructions and world.expert(world.tasks("train", "all")[0]) is None
        played = collect({"code": world}, [Start(task) for task in tasks], Expert(), engine=None)
        assert [one.success for one in played] == [True, True]
        said = "It is easy:\n```python\nprint(sum(map(int, input().split())))\n```"
        (right,) = collect({"code": world}, [Start(tasks[0])], Script(lambda world, task: [said]), engine=None)
        (wrong,) = collect({"code": world}, [Start(tasks[1])], Script(lambda world, task: [said]), engine=None)
        assert right.success is True and wrong.success is False
    finally:
        world.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"question": " "}, "the row has no question"),
        ({"input_output": ""}, "the problem has no tests"),
        ({"input_output": {"inputs": ["1"], "outputs": []}}, "as many inputs"),
        ({"input_output": "[1]"}, "unknown format"),
        ({"solutions": "{}", "input_output": SUM["input_output"]}, ""),
        ({"solutions": "[1]"}, "list of programs"),
        ({"input_output": {"fn_name": "a b", "inputs": [[1]], "outputs": [1]}}, "no function name"),
        ({"input_output": {"fn_name": "f", "inputs": [1], "outputs": [1]}}, "inputs are not lists of arguments"),
        ({"input_output": {"inputs": [None], "outputs": ["1"]}}, "is not text"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path, change, why):
    path = written(tmp_path / "a.jsonl", SUM, SUM | change)
    rows, problems = read_code(path)
    assert (len(rows), len(problems)) == ((1, 1) if why else (2, 0)) and all(why in str(one) for one in problems)
    lines = SUM | {"input_output": {"inputs": [["1 2", "3"]], "outputs": [["6"]]}}
    assert read_code_row(lines, "f", 0).tests == Exchanges(("1 2\n3",), ("6",))


def test_nothing_that_can_be_used(tmp_path):
    foldered(tmp_path, "test/1", SUM, without=("input_output.json",))
    with pytest.raises(ConfigError, match="the problem has no tests"):
        Code(tmp_path)


@pytest.mark.isolation
def test_the_bench_measures_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "test.jsonl", SUM, CALL)
    assert main(["bench", "code", str(path), "--agent", "expert", "--to", "run"]) == 0
    row = json.loads((tmp_path / "run" / "code.json").read_text())
    assert row["problems"] == 2 and row["pass_at"]["1"][0] == 1.0
    assert main(["bench", "code", str(path), "--set", "apps-test", "--agent", "expert", "--to", "other"]) == 1
    assert "wrong number of rows" in capsys.readouterr().err
    to = tmp_path / "rows.jsonl"
    assert main(["data", "convert", str(path), "--layout", "code", "--licence", "MIT", "--to", str(to)]) == 0
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    assert [(one["id"], one["about"]) for one in rows] == [("APPS/7", "introductory"), ("APPS/8", "interview")]
    assert rows[0]["completion"].startswith("a, b = map") and "sum of two" in rows[0]["prompt"]
    maths = tmp_path / "train" / "algebra"
    maths.mkdir(parents=True)
    for number in (1, 2):
        row = {
            "problem": f"What is {number} + 1?",
            "level": "Level 2",
            "type": "Algebra",
            "solution": "It is $\\boxed{2}$.",
        }
        (maths / f"{number}.json").write_text(json.dumps(row))
    assert main(["data", "convert", str(maths.parent), "--layout", "maths", "--to", str(to)]) == 0
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    assert [(one["id"], one["answer"], one["level"]) for one in rows] == [
        ("algebra/1.json:0", "2", 2),
        ("algebra/2.json:0", "2", 2),
    ]
