"""Reading a run directory: values arrive typed, and nothing a file holds can make reading or drawing fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fabricated import write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.view import page, read_run

FILES = ("run.json", "metrics.jsonl", "stages.jsonl", "results.jsonl", "floors.json", "examples.json")


def test_values_arrive_typed(tmp_path: Path) -> None:
    data = read_run(write_run(tmp_path / "run", rounds=1, tasks=20))
    assert (data.info.method, data.info.seed, data.info.arms) == ("agentevol", "0", ("evolve", "control"))
    assert [(stage.arm, stage.round, stage.verb) for stage in data.stages[:3]] == [
        ("base", 0, "fit"),
        ("base", 0, "evaluate"),
        ("evolve", 1, "collect"),
    ]
    assert {row.arm for row in data.results} == {"base", "evolve", "control"}
    assert all(len(row.outcomes) == row.n == 20 for row in data.results)
    assert data.floors["lookup", "evo"] == {"random": 0.04, "blind_replay": 0.03, "expert": 1.0}
    assert data.metrics[0].values.keys() == {"loss", "lr", "grad_norm", "tokens_per_s"}
    assert data.examples[0].steps[1].invalid
    assert data.notes == ()


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run not found"):
        read_run(tmp_path / "nowhere")


def test_an_empty_directory_is_a_report_without_figures(tmp_path: Path) -> None:
    text = page(read_run(tmp_path))
    assert "No panel has been evaluated yet." in text
    assert "No stage has finished yet." in text


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_shown_as_far_as_it_goes(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", rounds=1, tasks=5)
    whole = (run / name).read_bytes()
    for cut in range(0, len(whole), max(1, len(whole) // 7)):
        (run / name).write_bytes(whole[:cut])
        data = read_run(run)
        assert "</html>" in page(data)
        if name.endswith(".jsonl"):
            assert data.notes == ()  # a torn last line is normal while a run goes on
    (run / name).unlink()
    assert "</html>" in page(read_run(run))


def test_a_broken_line_in_the_middle_is_passed_over_and_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=1, tasks=5)
    lines = (run / "stages.jsonl").read_text().splitlines()
    (run / "stages.jsonl").write_text("\n".join([lines[0], '{"index": ', "[1]", *lines[1:]]) + "\n")
    data = read_run(run)
    assert len(data.stages) == len(lines)
    assert data.notes == ("stages.jsonl has 2 unreadable lines, passed over",)
    assert "stages.jsonl has 2 unreadable lines, passed over." in page(data)


def test_nan_and_too_deep_values_are_no_values(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"time_s": 1, "loss": NaN}\n{"time_s": 2, "loss": 1e999}\n{"time_s": 3}\n')
    (tmp_path / "examples.json").write_text("[" * 100_000)
    data = read_run(tmp_path)
    assert [(row.time_s, dict(row.values)) for row in data.metrics] == [(2.0, {}), (3.0, {})]
    assert (
        data.notes
        == ("metrics.jsonl has 1 unreadable line, passed over", "examples.json is not readable as JSON")[::-1]
    )


def test_a_row_written_twice_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=1, tasks=5)
    before = read_run(run)
    text = (run / "results.jsonl").read_text()
    (run / "results.jsonl").write_text(text + text)
    assert read_run(run).results == before.results


keys = st.sampled_from(
    [
        "index",
        "seconds",
        "name",
        "verb",
        "arm",
        "round",
        "counts",
        "time_s",
        "kind",
        "loss",
        "step",
        "world",
        "tier",
        "n",
        "mean",
        "low",
        "high",
        "errors",
        "outcomes",
        "steps",
        "tokens",
        "logprob",
        "action",
        "config",
        "state",
        "success",
        "stage",
        "task",
        "split",
        "generated",
        "reward",
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["evolve", "base", "control", "fit", "evaluate", 0, 1, 2**70, -1, 1e308, -1e308]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=12
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(keys, values, max_size=14), max_size=4), other=values)
def test_any_json_in_any_file_is_drawn(tmp_path: Path, rows: list[dict[str, object]], other: object) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in FILES:
        (tmp_path / name).write_text(
            lines if name.endswith("l") else json.dumps(rows if name == "examples.json" else other)
        )
    text = page(read_run(tmp_path))
    assert text.rstrip().endswith("</html>")
    assert not re.search(r' (?:d|x|y|cx|cy|width)="[^"]*(?:nan|inf)', text)


def test_huge_numbers_stay_on_the_drawing(tmp_path: Path) -> None:
    rows = [{"time_s": k, "kind": "fit", "step": k, "loss": 1.7e308 * (-1) ** k} for k in range(300)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "stages.jsonl").write_text('{"index": 0, "seconds": 1.7e308}\n{"index": 1, "seconds": 1.7e308}\n')
    assert not re.search(r' (?:d|x|y|cx|cy|width)="[^"]*(?:nan|inf)', page(read_run(tmp_path)))
