"""`evolvent search --stop`: rows beside whole votes, what is said of false stops and tokens, mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evolvent.belief.stopping import Agreement, Decided
from evolvent.cli.main import main
from evolvent.cli.search import describe_early_stops, parse_detectors
from evolvent.errors import ConfigError
from evolvent.view.searches import SearchRow, parse_search_row

WORDS = [
    "search",
    "--worlds",
    "problems",
    "--tiers",
    "seen",
    "--limit",
    "3",
    "--methods",
    "self-consistency",
    "--search.value",
    "none",
    "--search.paths",
    "7",
    "--search.max_tokens",
    "12",
    "--search.temperature",
    "0.001",
]


def test_a_run_with_detectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "run"
    assert main([*WORDS, "--stop", "decided,agreement:.7", "--trees", "1", "--to", str(folder)]) == 0
    told = capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "searches.jsonl").read_text(encoding="utf-8").splitlines()]
    assert list(dict.fromkeys(row["method"] for row in rows)) == [
        "greedy",
        "samples",
        "samples decided",
        "samples agreement:.7",
    ]
    for arm in ("samples decided", "samples agreement:.7"):
        assert f"problems, {arm}: " in told and "of the generated tokens of samples saved" in told
    whole = {row["task"]: row for row in rows if row["method"] == "samples"}
    for row in rows:
        if row["method"] == "samples decided":
            assert row["answer"] == whole[row["task"]]["answer"] and row["success"] == whole[row["task"]]["success"]
            assert row["samples"] + row["spared"] == 7 and bool(row["stopped"]) == bool(row["spared"])
    assert {path.name.rpartition("-")[0] for path in (folder / "trees").iterdir()} == {
        "greedy",
        "samples",
        "samples-decided",
        "samples-agreement_.7",
    }
    before = (folder / "searches.jsonl").read_bytes()
    assert main(["search", "--resume", str(folder)]) == 0
    assert (folder / "searches.jsonl").read_bytes() == before


def test_mistakes_are_told_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = main([*WORDS, "--stop", "decidet,std:1", "--to", str(tmp_path / "run")])
    told = capsys.readouterr().err
    assert code == 2 and "did you mean 'decided'" in told and "needs positions, but votes do not have positions" in told
    assert not (tmp_path / "run").exists()
    assert main([*WORDS, "--stop", "decided,decided", "--to", str(tmp_path / "run")]) == 2


def test_detectors_of_votes():
    assert parse_detectors(["decided", "agreement:.6:least=4"]) == [Decided(), Agreement(0.6, 4)]
    with pytest.raises(ConfigError) as told:
        parse_detectors(["std:1", "trace:1", "nothing", "decided or std:1"])
    assert len(told.value.problems) == 4


def row(task: str, method: str, *, success: bool | None, generated: int, stopped: str = "") -> SearchRow:
    found = parse_search_row(
        {
            "world": "w",
            "task": task,
            "method": method,
            "success": success,
            "samples": 4,
            "spent": {"generated": generated},
            "stopped": stopped,
            "budget": None,
        }
    )
    assert found is not None
    return found


def test_false_stops_and_tokens_by_hand():
    whole = [row("a", "samples", success=True, generated=60), row("b", "samples", success=True, generated=40)]
    early = [
        row("a", "samples decided", success=True, generated=30, stopped="why"),
        row("b", "samples decided", success=False, generated=20, stopped="why"),
    ]
    (line,) = describe_early_stops([*whole, *early])
    assert line.startswith("w, samples decided: 2 of 2 ended early, 1 of them wrong (false stops 50.0 %, ")
    assert line.endswith("; 50.0 % of the generated tokens of samples saved")
    (alone,) = describe_early_stops([early[0]])
    assert "saved" not in alone  # nothing to compare with
    (lost,) = describe_early_stops([replace(early[0], success=None)])
    assert lost == "w, samples decided: 1 of 1 ended early"  # no truth, no rate
    assert describe_early_stops(whole) == []
