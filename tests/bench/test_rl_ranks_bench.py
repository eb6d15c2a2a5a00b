"""The benchmark of ranks: what it compares, and what it keeps of parts that were not measured again."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

import pytest

from benchmarks import rl_ranks


def write_metrics(folder: Path, **losses: float) -> Path:
    """Writes the iterations of a run, `step1=...` and so on; a number that only one run has is not compared."""
    folder.mkdir()
    rows = [
        {"kind": "practise", "step": int(name.removeprefix("step")), "loss": loss, "updates": 3, folder.name: 1.0}
        for name, loss in losses.items()
    ]
    text = "".join(json.dumps(row) + "\n" for row in [{"kind": "stage", "step": 1, "loss": 9.0}, *rows])
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_differences_are_shares_of_values_above_one(tmp_path):
    one = write_metrics(tmp_path / "one", step1=0.5, step2=4.0)
    two = write_metrics(tmp_path / "two", step1=0.25, step2=5.0)
    assert rl_ranks._difference(one, two) == 0.25  # 1 of 4, and .25 below 1
    assert rl_ranks._difference(one, write_metrics(tmp_path / "three", step1=0.5, step2=8.0), [1]) == 0.0
    assert isnan(rl_ranks._difference(one, write_metrics(tmp_path / "four", step1=0.5, step2=float("nan"))))
    assert rl_ranks._count_updates(one) == 6 and rl_ranks._count_updates(one, [2]) == 3


def test_a_part_that_is_measured_again_leaves_the_others_as_they_were_kept(tmp_path, monkeypatch):
    path = tmp_path / "rl_ranks.json"
    measured: list[str] = []

    def measure(name):
        return lambda plan, folder: measured.append(name) or {f"figure of {name}": len(measured)}

    monkeypatch.setattr(rl_ranks, "PARTS", {name: measure(name) for name in rl_ranks.PARTS})
    rl_ranks.main(["--save", str(path)])
    assert measured == ["runs", "lag", "efficiency"]
    rl_ranks.main(["--parts", "lag", "--save", str(path)])
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [kept[f"figure of {name}"] for name in rl_ranks.PARTS] == [1, 4, 3]
    rl_ranks.main(["--quick", "--save", str(path)])
    assert measured[4:] == ["runs", "lag"]
    assert "figure of efficiency" not in json.loads(path.read_text(encoding="utf-8")), "a whole run's"
    with pytest.raises(SystemExit):
        rl_ranks.main(["--parts", "all"])
