"""`evolvent bench code` as a user meets it: table, file, resuming, mistakes."""

import json

import pytest

from evolvent.cli.main import main
from evolvent.store.store import Store

ROW = {
    "task_id": "Made/0",
    "prompt": 'def half(x):\n    """Half of x, rounded down."""\n',
    "entry_point": "half",
    "canonical_solution": "    return x // 2\n",
    "test": "def check(candidate):\n    assert candidate(5) == 2\n",
}


@pytest.fixture
def problems(tmp_path):
    rows = [
        ROW | {"task_id": f"Made/{k}", "test": ROW["test"] + f"    assert candidate({k}) == {k // 2}\n"}
        for k in range(4)
    ]
    path = tmp_path / "HumanEval.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.isolation
def test_an_expert_passes_and_a_run_goes_on(problems, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["bench", "code", str(problems), "--samples", "2", "--k", "1,2", "--to", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "pass@1" in said and "pass@2" in said and "100.0" in said
    row = json.loads((folder / "code.json").read_text())
    assert row["pass_at"]["2"][0] == 1.0 and row["passed"] == [2] * 4 and len(row["sha256"]) == 64
    (folder / "code.json").unlink()
    assert main(["bench", "code", "--resume", str(folder)]) == 0
    again = json.loads((folder / "code.json").read_text())
    assert again["passed"] == row["passed"]
    with Store.open(folder / "trajectories") as store:
        assert sum(1 for _ in store.trajectories()) == 8, "nothing was played again"
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--k", "2"], "1 <= k <= samples"),
        (["--set", "humanevl"], "did you mean 'humaneval'?"),
        (["--set", "humaneval"], "is not the humaneval of openai/human-eval"),
        (["--set", "mbpp-sanitized"], "--accept_license"),
        (["--agent", "policy", "--samples", "2"], "set --temperature 0.8"),
        (["--split", "train"], "no problems in this split"),
        (["--data", "nowhere.jsonl"], "no problems found"),
    ],
)
def test_mistakes_are_told(problems, tmp_path, capsys, words, said):
    path = [] if "--data" in words else [str(problems)]
    assert main(["bench", "code", *path, *words, "--to", str(tmp_path / "run")]) in (1, 2)
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
