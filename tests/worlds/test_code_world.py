"""The world of small programs: files in, responses judged in boxes."""

import gzip
import json

import pytest

from evolvent.agents.plain import Expert, Script
from evolvent.errors import AccessDenied, ConfigError, HashMismatch, ScoringError, VersionMismatch
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Task
from evolvent.worlds import manifest as known
from evolvent.worlds.code.answers import extract_program, extract_source
from evolvent.worlds.code.rows import read_code, read_code_row
from evolvent.worlds.code.world import Code
from evolvent.worlds.manifest import Manifest, manifests, sha256_of, verify_file

PROMPT = 'import math\n\n\ndef half(x: int) -> int:\n    """Half of x, rounded down."""\n'
HUMANEVAL = {
    "task_id": "Made/0",
    "prompt": PROMPT,
    "entry_point": "half",
    "canonical_solution": "    return math.floor(x / 2)\n",
    "test": "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(-3) == -2\n",
}
MBPP = {
    "task_id": 7,
    "prompt": "Write a function that doubles.",
    "code": "def helper(x):\n    return x\n\n\ndef twice(x):\n    return 2 * helper(x)\n",
    "test_list": ["assert twice(2) == 4", "assert twice(0) == 0"],
    "test_imports": [],
}
FULL = {
    "task_id": 8,
    "text": "Add.",
    "code": "def add(a, b):\n    return a + b",
    "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3"],
    "challenge_test_list": [],
}
WEAK = MBPP | {"task_id": 9, "test_list": ["assert twice(Pair(1, 2)) == 4"]}


def written(folder, name, *rows):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = Code(written(tmp_path_factory.mktemp("code"), "set.jsonl.gz", HUMANEVAL, MBPP, FULL, WEAK))
    yield made
    made.close()


def verdict(world, place, said):
    task = world.tasks("test", "all")[place]
    (played,) = collect({"code": world}, [Start(task)], Script(lambda world, task: [said]), engine=None)
    assert played.error is None
    return played.success


@pytest.mark.isolation
@pytest.mark.parametrize(
    "said",
    [
        "    return x // 2",
        "return x // 2",
        "return x // 2\n\n\nprint(half(3))\n",
        "```python\ndef half(x):\n    return x // 2\n```",
        "It is easy.\n```\ndef half(x):\n    return math.floor(x / 2)\n```\nDone.",
        "half = lambda x: x // 2",
        "if x < 0:\n        return (x - 1) // 2 if x % 2 else x // 2\n    return x // 2",
    ],
)
def test_responses_of_both_kinds_are_right(world, said):
    assert verdict(world, 0, said) == 1.0


@pytest.mark.isolation
@pytest.mark.parametrize(
    "said",
    [
        "return x / 2",
        "def half(x):\n    return 2",
        "nothing at all",
        "```python\ndef other(x):\n    return x // 2\n```",
        "raise SystemExit(0)",
        "x" * 60_000,
        "import os\nos._exit(0)",
    ],
)
def test_wrong_responses_are_wrong(world, said):
    assert verdict(world, 0, said) == 0.0


@pytest.mark.isolation
def test_experts_solve_both_layouts(world):
    starts = [Start(task) for task in world.tasks("test", "all")]
    played = list(collect({"code": world}, starts, Expert(), engine=None))
    assert [one.success for one in played] == [1.0] * 3


def test_what_is_shown(world):
    first, second, third = world.tasks("test", "all")
    assert world.question(first).text == PROMPT and first.kind == "humaneval, plain"
    assert "assert twice(2) == 4" in world.question(second).text and second.kind == "mbpp, plain"
    assert world.question(third).text.startswith("Add.")
    assert [problem.where for problem in world.problems] == ["set.jsonl.gz, row 3 (MBPP/9)"]
    assert world.tasks("train", "all") == ()
    with pytest.raises(ConfigError, match="row not found"):
        world.row(Task("code", "1", {"file": "set.jsonl.gz", "row": 3, "digest": ""}, "", "all", "test"))
    with pytest.raises(VersionMismatch):
        world.row(Task("code", "1", {**first.spec, "digest": "0"}, first.kind, "all", "test"))


def test_programs_of_responses():
    assert extract_source("model = 1") == "model = 1"
    assert extract_source("first\n```python\na = 1\n```\nthen\n```\nb = 2\n```\n") == "b = 2\n"
    assert extract_source("```py\nc = 3") == "c = 3"
    helped = "def other(x):\n    return x\n\n\n@cached\ndef f(x):\n    pass\n"
    assert extract_program("def f(x):\n    return 1", "f", prompt=helped).startswith(
        "def other(x):\n    return x\n\n\ndef f(x)"
    )
    assert "@cached" not in extract_program("def f(x):\n    return 1", "f", prompt=helped)
    # HumanEval's harness runs the prompt and the whole completion; what is not valid Python is cut.
    assert extract_program("    return 1\nx = 2\n", "f", prompt="def f():\n") == "def f():\n    return 1\nx = 2\n"
    assert extract_program("    return 1\nx = (\n", "f", prompt="def f():\n") == "def f():\n    return 1\n"
    assert extract_program("def f(:\n  broken", "f", prompt="def f():\n") == "def f(:\n  broken"
    assert extract_program("anything", "f") == "anything"
    for said in (
        "```python3\ndef f(x):\n    return 1\n```\nas asked",
        "```Python\r\ndef f(x):\r\n    return 1\r\n```",
        "```python\ndef f(x):\n    return 1\n```\nfor example\n```\n>>> f(2)\n1\n```",
    ):
        assert extract_program(said, "f", prompt="def f(x):\n") == "def f(x):\n    return 1\n", said
    future = extract_program(
        "from __future__ import annotations\ndef f(x):\n    return 1", "f", prompt="import re\ndef f(x):\n"
    )
    assert future == "from __future__ import annotations\nimport re\ndef f(x):\n    return 1"
    body = extract_program("return 1\n\n\ndef f(x):\n    return 2", "f", prompt="def f(x):\n")
    assert body == "def f(x):\n    return 1\n\n\n"


def test_rows_that_cannot_be_used(tmp_path):
    rows = [
        HUMANEVAL,
        [],
        {"task_id": 1},
        HUMANEVAL | {"test": "def check("},
        MBPP | {"test_list": []},
        MBPP | {"test_list": ["assert a(1) == b(2)"], "code": ""},
        HUMANEVAL | {"test": "pass"},
    ]
    found, problems = read_code(written(tmp_path, "all.jsonl", *rows))
    assert len(found) == 1 and len(problems) == 6
    with pytest.raises(ConfigError) as caught:
        read_code(written(tmp_path, "bad/none.jsonl", *([{}] * 30)))
    assert len(caught.value.problems) == 6 and "25 more rows" in str(caught.value)
    damaged = (
        ("cut.jsonl.gz", gzip.compress(b"{}" * 99)[:-9], "cannot be read"),
        ("no.json.gz", b"\x00{}", "cannot be read"),
        ("plain.json.gz", b"{}", "does not hold an array of rows"),  # it is what it holds, whatever its name
    )
    for name, data, problem in damaged:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError, match=problem):
            read_code(tmp_path / name)
    with pytest.raises(ConfigError, match="no problems found"):
        read_code(tmp_path / "absent")
    assert read_code_row(FULL, "f", 0).tests.entry == "add"


def test_splits_come_from_paths(tmp_path):
    written(tmp_path, "train/a.jsonl", MBPP)
    written(tmp_path, "test/a.jsonl", HUMANEVAL)
    world = Code(tmp_path)
    assert len(world.tasks("train", "all")) == len(world.tasks("test", "all")) == 1
    written(tmp_path, "train/b.jsonl", HUMANEVAL)
    with pytest.raises(ConfigError, match="two splits"):
        Code(tmp_path)
    with pytest.raises(ConfigError, match="cannot be run"):
        Code(written(tmp_path, "weak/test.jsonl", WEAK))


def test_the_folder_of_a_file_is_part_of_its_path(tmp_path):
    path = written(tmp_path, "train/mbpp.jsonl", MBPP)
    for root in (path, path.parent, tmp_path):
        assert len(Code(root).tasks("train", "all")) == 1


def test_a_box_that_cannot_be_had_scores_nothing(tmp_path):
    def broken(source, outside):
        raise ScoringError("no box today")

    world = Code(written(tmp_path, "a.jsonl", HUMANEVAL), open_box=broken)
    (played,) = collect({"code": world}, [Start(world.tasks("test", "all")[0])], Expert(), engine=None)
    assert played.success is None and "no box today" in played.error.message


# ---------------------------------------------------------------------- manifests


def test_manifests_are_whole():
    found = manifests()
    assert {"humaneval", "mbpp-sanitized", "gsm8k-test", "gsm8k-train", "math-500"} <= set(found)
    assert {name for name, one in found.items() if not one.sha256} == {
        "apps-train",
        "apps-test",
        "math-train",
        "math-test",
    }, "sets that this library has not seen"
    for name, one in found.items():
        assert name == one.name and one.items > 0 and one.licence
        assert not one.sha256 or (16 <= len(one.sha256) <= 64 and int(one.sha256, 16))


def test_a_set_that_nobody_has_seen_is_where_it_is_said_to_be(tmp_path):
    path = written(tmp_path, "test.jsonl", MBPP)
    assert verify_file("apps-test", tmp_path) == path == verify_file("apps-test", path)
    assert verify_file("apps-train", tmp_path) == tmp_path, "as folders of problems"
    with pytest.raises(ConfigError, match="does not exist"):
        verify_file("math-test", tmp_path / "nowhere")


def test_a_copy_is_read_only_with_the_right_hash(tmp_path, monkeypatch):
    path = written(tmp_path, "deep/set.jsonl", HUMANEVAL)
    own = Manifest("own", "", "a/b", "1", "x/set.jsonl", sha256_of(path)[:20], 1, "CC-BY-NC-4.0", False, "code")
    monkeypatch.setattr(known, "manifests", lambda: {"own": own})
    with pytest.raises(AccessDenied, match="CC-BY-NC"):
        verify_file("own", tmp_path)
    assert verify_file("own", tmp_path, accept_licence=True) == path == verify_file("own", path, accept_licence=True)
    written(tmp_path, "another/set.jsonl", MBPP)
    assert verify_file("own", tmp_path, accept_licence=True) == path, "of several copies the right one"
    path.write_text("{}")
    with pytest.raises(HashMismatch, match="is not the own of a/b"):
        verify_file("own", tmp_path, accept_licence=True)
    with pytest.raises(ConfigError, match="does not hold"):
        verify_file("own", tmp_path / "nowhere", accept_licence=True)
    with pytest.raises(ConfigError, match="own"):
        verify_file("owm", tmp_path)


def test_fences_and_completions_are_those_of_models():
    """A16: CommonMark's rules of fences, and completions as HumanEval's harness runs them."""
    prompt = "def f(x):\n"
    answer = "def f(x):\n    '''\n    ```\n    >>> f(1)\n    ```\n    '''\n    return x\n"
    body = "def f(x):\n    return x\n"
    indented = "".join(f"   {line}\n" for line in body.splitlines())
    for said, program in (
        (f"```python\n{answer}```", answer),
        (f"~~~python\n{body}~~~", body),
        (f"````python\n{answer}````", answer),
        (f"1. First.\n\n   ```python\n{indented}   ```\n2. Done.", body),
        (f"> ```python\n> {body.splitlines()[0]}\n> {body.splitlines()[1]}\n> ```", body),
        (f"<think>\n```python\ndef f(x):\n    return 0\n```\n</think>\n```python\n{body}```", body),
        (f"```python\n{body}", body),
    ):
        assert extract_program(said, "f", prompt=prompt) == program, said
    for completion in (
        "    return helper(x)\n\n\ndef helper(x):\n    return x\n",
        "    y = x\n# half way\n    return y\n",
        "    y = '''\nno indent\n'''\n    return y and x\n",
    ):
        program = extract_program(completion, "f", prompt=prompt)
        assert program == prompt + completion
        namespace: dict = {}
        exec(program, namespace)  # noqa: S102
        assert namespace["f"](5) == 5
    cut = extract_program("    return x\n\ndef g(x):\n    return 'no end\n", "f", prompt=prompt)
    assert cut == "def f(x):\n    return x\n\n"
