"""`evolvent bench`: two results compared, a study summarised; as tables, as JSON, as a page."""

from __future__ import annotations

import json

import pytest

from evolvent.bench.study import Arm, ArmResult, PrimaryComparison, Study, run_study
from evolvent.cli.main import main


def play(seat):
    """The main arm wins three tasks of four, the others one; which one depends on the seed."""
    won = (seat.seed % 4, (seat.seed + 1) % 4, (seat.seed + 2) % 4) if seat.arm == "evolve" else (seat.seed % 4,)
    return ArmResult(
        {"lookup/evo": [(f"t{n}", f"k{n}", n in won) for n in range(4)]}, tokens={"computed": 5}, cpu_s=1.0
    )


@pytest.fixture
def folder(tmp_path):
    arms = (
        Arm("base", "start", play),
        Arm("evolve", "claim", play, ("base",)),
        Arm("control", "cost", play, ("base",)),
    )
    plan = Study("small", arms, tuple(range(8)), 10, PrimaryComparison("evolve", "control", ("evo",)))
    run_study(plan, tmp_path / "study")
    return tmp_path / "study"


def test_compare(folder, capsys):
    assert main(["bench", "compare", f"{folder}:evolve", f"{folder}:control"]) == 0
    shown = capsys.readouterr().out
    assert "lookup" in shown and "75.0" in shown and "25.0" in shown and "+50.0 [" in shown
    assert "8 seeds, intervals over seeds and kinds of tasks" in shown


def test_compare_one_seed_says_so(folder, capsys):
    assert main(["bench", "compare", f"{folder}:evolve@1", f"{folder}:control@1"]) == 0
    assert "one seed each: intervals are over kinds of tasks only, another seed may differ" in capsys.readouterr().out


def test_compare_as_json(folder, capsys):
    assert main(["bench", "compare", f"{folder}:evolve", f"{folder}:control", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["overall"]["a"], row["overall"]["b"], row["overall"]["difference"]["mean"]) == (0.75, 0.25, 0.5)
    assert row["seeds"] == list(range(8)) and row["rows"][0]["tasks"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "missing verb (known: agent-eval"),
        (["compar"], "did you mean 'compare'?"),
        (["compare", "nowhere"], "the following arguments are required: B"),
        (["compare", "nowhere", "nowhere"], "nowhere is not a folder"),
        (["study", "nowhere"], "does not hold a frozen study"),
        (["study", "nowhere", "--jsn"], "did you mean '--json'?"),
    ],
)
def test_mistakes(words, said, capsys):
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


def test_study_prints_the_table_and_writes_the_page(folder, capsys):
    assert main(["bench", "study", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "evolve improves on control: evolve minus control is +50.0 points" in shown
    assert shown.endswith(f"page {folder / 'study.html'}")
    text = (folder / "study.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "evolve improves on control" in text and "<script" not in text


def test_study_to_another_file_and_folder(folder, tmp_path, capsys):
    assert main(["bench", "study", str(folder), "--to", str(tmp_path / "a b.html")]) == 0
    assert main(["bench", "study", str(folder), "--to", str(tmp_path)]) == 0
    assert (tmp_path / "a b.html").exists() and (tmp_path / "study.html").exists()
    assert not (folder / "study.html").exists()


def test_study_as_json_writes_no_page_unless_asked(folder, tmp_path, capsys):
    assert main(["bench", "study", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "improves"
    assert not (folder / "study.html").exists()
    assert main(["bench", "study", str(folder), "--json", "--to", str(tmp_path / "x.html")]) == 0
    assert json.loads(capsys.readouterr().out)["study"] == "small" and (tmp_path / "x.html").exists()


def test_it_needs_no_torch(folder, command, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('blocked')")
    done = command("bench", "study", folder, PYTHONPATH=str(tmp_path))
    assert (done.returncode, "improves" in done.stdout) == (0, True), done.stderr
