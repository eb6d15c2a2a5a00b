"""The page of a run that only trained: its own figures, none of another verb's, and nothing it cannot say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fabricated import write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_document import outline
from trained import MIB, PARALLEL, cost, evaluated, update, write_training

from evolvent.view import page, read_run
from evolvent.view.charts import Event, Frame, Line, line_chart
from evolvent.view.document import _format_bytes as size
from evolvent.view.document import _format_flops as rate_of_work
from evolvent.view.document import _format_value as value
from evolvent.view.training import TrainingReport, build_training_report

OF_EVOLVE = (
    "Success by round",
    "Before and after",
    "Base, after cloning",
    "Control",
    "train-matched",
    "Exploration",
    "No panel has been evaluated",
    "Nothing to draw",
    "No stage has finished",
    "Tokens generated",
    "episode",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("runs") / "train-1")


def shown(run: Path) -> TrainingReport:
    found = build_training_report(read_run(run))
    assert found is not None
    return found


def lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def bare(folder: Path, rows: list[dict[str, object]], watched: tuple[dict[str, object], ...] = ()) -> Path:
    """A run of `evolvent train` with these rows."""
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"method": "train sft", "state": "running"}))
    lines(folder / "metrics.jsonl", rows)
    lines(folder / "evaluations.jsonl", list(watched))
    return folder


# ---------------------------------------------------------------- what it says


def test_what_was_repeated_after_an_interruption_counts_once_and_its_time_twice(run: Path) -> None:
    found = shown(run)
    assert (found.updates, found.goal, found.repeated, found.skipped) == (40, 40, 4, (7,))
    assert (found.learned, found.unit, found.fed, found.padded) == (4000, "tokens", 12_000, 800)
    assert found.seconds == pytest.approx(12.0 + 10.0)  # 24 updates, then 20, half a second each
    assert found.cpu_s == pytest.approx(11.0)
    assert found.ranks == 4


def test_the_loss_at_the_end_is_the_mean_of_the_last_ten(run: Path) -> None:
    found = shown(run)
    assert (found.first, found.ends) == (4.0, 10)
    assert found.last == pytest.approx(sum(4 / step for step in range(31, 41)) / 10)
    assert "Loss 4 at the first update, 0.1134 over the last 10. 1 of 40 updates was skipped: not finite." in page(
        read_run(run)
    )


def test_memory_is_told_by_kind_and_the_rest_is_what_the_peak_has_beyond(run: Path) -> None:
    found = shown(run)
    assert [(kind.name, kind.size / MIB) for kind in found.memory] == [
        ("parameters", 100),
        ("gradients", 100),
        ("optimizer state", 200),
        ("activations and the rest", 200),
    ]
    assert (found.peak, found.process) == (900 * MIB, 300 * MIB)
    text = page(read_run(run))
    for words in ("optimizer state 200 MiB", "The peak is 900 MiB, of which 300 MiB were there before training"):
        assert words in text


def test_speed_is_told_as_medians_beside_the_ceiling(run: Path) -> None:
    found = shown(run)
    assert (found.gemm_share, found.data_wait, found.ceiling) == (0.31, 0.02, 9.1e10)
    assert found.tokens_per_s == 1000 + 20
    assert "91 GFLOP/s, times 4 ranks" in page(read_run(run))


def test_evaluations_are_series_by_update_with_their_intervals(run: Path) -> None:
    found = shown(run)
    assert [(one.title, one.newest_step, one.newest.value, one.best_step, one.best.value) for one in found.series] == [
        ("success crafting evo", 20, 0.75, 20, 0.75),
        ("success crafting seen", 10, 0.5, 10, 0.5),  # withheld at 20
        ("perplexity", 20, 3.5, 10, 3.25),  # less is better
    ]
    assert [figure.title for figure in found.evaluations] == [one.title for one in found.series]
    chart = str(found.evaluations[0].chart)
    assert "update 20: 75 % (60 % to 85 %)" in chart
    text = page(read_run(run))
    assert "75.0 %<small>60.0 to 85.0</small>" in text
    assert "3.25<small>3 to 3.5</small>" in text
    assert '<td class="num">withheld</td>' in text
    assert (
        "The evaluator <bdi>generation</bdi> failed on the snapshot of update 20: <bdi>EngineError: the output" in text
    )


def test_the_same_number_under_other_settings_is_another_series(tmp_path: Path) -> None:
    watched = (
        evaluated(1, "perplexity", [("perplexity", 4.0, None, None)]),
        evaluated(2, "perplexity", [("perplexity", 9.0, None, None)], settings="b" * 16),
    )
    found = shown(bare(tmp_path, [update(1, 1.0)], watched))
    assert [(one.settings, one.count, one.newest.value) for one in found.series] == [
        ("aaaaaaaa", 1, 4.0),
        ("bbbbbbbb", 1, 9.0),
    ]


def test_of_very_many_numbers_some_are_drawn_and_all_are_in_the_table(tmp_path: Path) -> None:
    names = [f"f1/label {number:03d}" for number in range(60)]
    watched = (evaluated(5, "classification", [(name, 0.5, None, None) for name in names]),)
    run = bare(tmp_path, [update(9, 1.0)], watched)
    assert shown(run).hidden == 36
    text = page(read_run(run))
    assert "36 more numbers are in the table below." in text
    assert all(name in text for name in names)
    assert len(text) < 200_000


# ---------------------------------------------------------------- what it does not say


def test_a_training_has_no_word_of_another_verb_and_no_empty_section(run: Path) -> None:
    text = page(read_run(run))
    found = outline(text)
    assert {link[1:] for link in found.links if link.startswith("#")} == set(found.ids)
    assert found.ids == ["training", "evaluations", "speed", "memory", "cost", "details"]
    body = text[text.index("</style>") :]
    assert [words for words in OF_EVOLVE if words in body] == []
    assert "script" not in found.tags


def test_without_a_watcher_there_are_no_evaluations(run: Path, tmp_path: Path) -> None:
    for file in run.iterdir():
        if file.name != "evaluations.jsonl":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert "valuation" not in page(read_run(tmp_path)).partition("</style>")[2]


def test_a_training_that_has_just_begun_says_so(tmp_path: Path) -> None:
    run = bare(tmp_path, [])
    text = page(read_run(run))
    assert "No update has been logged yet." in text
    assert "while it trains: reload it" in text
    assert "Loss 4 at the only update so far." in page(read_run(bare(tmp_path, [update(1, 0.5)])))
    skipped = update(1, 0.5) | {"loss": None, "grad_norm": None, "skipped": True}
    assert shown(bare(tmp_path, [skipped])).last is None
    assert "</html>" in page(read_run(tmp_path))


def test_other_runs_keep_their_page(tmp_path: Path) -> None:
    assert build_training_report(read_run(write_run(tmp_path / "run", rounds=1, tasks=5))) is None
    trained = write_training(tmp_path / "also")
    (trained / "results.jsonl").write_bytes((tmp_path / "run" / "results.jsonl").read_bytes())
    assert build_training_report(read_run(trained)) is None
    assert "Success by round" in page(read_run(trained))


@pytest.mark.parametrize(
    ("sizes", "ranks"), [(PARALLEL, 4), ({}, 1), ({"pp": "2", "tp": -3, "shard": True, "replicate": 2**70}, 1)]
)
def test_the_layout_is_read_from_settings_that_may_be_anything(
    tmp_path: Path, sizes: dict[str, object], ranks: int
) -> None:
    bare(tmp_path, [update(1, 1.0)])
    config = {"parallel": sizes, "train": {"updates": "many"}}
    (tmp_path / "run.json").write_text(json.dumps({"method": "train dpo", "config": config}))
    found = shown(tmp_path)
    assert (found.ranks, found.goal) == (ranks, None)


@pytest.mark.parametrize(
    ("method", "kind", "unit"),
    [("dpo", "sigmoid", "Pairs"), ("reward", "pairs", "Pairs"), ("reward", "scores", "Tokens"), ("value", 3, "Tokens")],
)
def test_what_is_learned_of_pairs_is_counted_in_pairs(tmp_path: Path, method: str, kind: object, unit: str) -> None:
    bare(tmp_path, [update(1, 1.0)])
    (tmp_path / "run.json").write_text(json.dumps({"method": f"train {method}", "config": {"kind": kind}}))
    assert page(read_run(tmp_path)).count(f"{unit} learned") == 2


# ---------------------------------------------------------------- any file


steps = st.one_of(st.integers(-3, 50), st.sampled_from([0.5, 1e99, -1e99, 2**70, None, "7"]))
numbers = st.one_of(st.none(), st.booleans(), st.floats(), st.sampled_from([0, 1, -1, 1e99, 1e-99, "x"]))
fit_rows = st.builds(
    lambda row, step, loss, norm, lr: row | {"step": step, "loss": loss, "grad_norm": norm, "lr": lr, "skipped": loss},
    st.sampled_from([update(1, 1.0), update(2, -5.0)]),
    steps,
    numbers,
    numbers,
    numbers,
)
cost_rows = st.builds(
    lambda step, share, peak, process: (
        cost(1, 2.0)
        | {
            "step": step,
            "gemm_share": share,
            "peak_bytes": peak,
            "process_bytes": process,
            "tokens_per_s": share,
        }
    ),
    steps,
    numbers,
    numbers,
    numbers,
)
watched_rows = st.builds(
    lambda step, name, value, low, high: evaluated(1, "success", [(name, value, low, high)]) | {"step": step},
    steps,
    st.sampled_from(["success/a/b", "perplexity", "<b>"]),
    numbers,
    numbers,
    numbers,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.one_of(fit_rows, cost_rows), max_size=8), watched=st.lists(watched_rows, max_size=4))
def test_whatever_the_rows_hold_is_drawn(
    tmp_path: Path, rows: list[dict[str, object]], watched: list[dict[str, object]]
) -> None:
    text = page(read_run(bare(tmp_path, rows, tuple(watched))))
    assert text.rstrip().endswith("</html>")
    outline(text)
    assert not re.search(r' (?:d|x|y|cx|cy|width)="[^"]*(?:nan|inf)', text)


def test_hostile_text_is_shown_and_does_nothing(run: Path, tmp_path: Path) -> None:
    evil = '"><script>owned()</script><img src=x onerror=owned()> {{ 7 * 191 }} \u202e'
    trained = write_training(tmp_path / "evil")
    watched = evaluated(3, evil, [(evil, 0.5, 0.1, 0.9)], settings=evil)
    other = evaluated(4, evil, [(evil, 0.5, 0.1, 0.9)]) | {"error": {"kind": evil, "message": evil}}
    lines(trained / "evaluations.jsonl", [watched, other])
    info = json.loads((trained / "run.json").read_text())
    strange = {"name": evil, "created": evil, "command": [evil], "config": {evil: evil}, "method": f"train {evil}"}
    (trained / "run.json").write_text(json.dumps(info | strange))
    text = page(read_run(trained))
    found = outline(text)  # also: no attribute that is a script
    assert set(found.tags) <= set(outline(page(read_run(run))).tags) | {"code", "b"}
    assert "&lt;script&gt;owned()" in text
    assert "1337" not in text
    assert "\u202e" not in text


def test_a_long_training_is_a_small_page(tmp_path: Path) -> None:
    rows = [update(step, step / 10) for step in range(1, 6001)]
    rows[10:] = [row | {"skipped": row["step"] % 3 == 0} for row in rows[10:]]
    text = page(read_run(bare(tmp_path, rows)))
    assert len(text) < 150_000
    assert "1,997 of 6,000 updates were skipped" in text


# ---------------------------------------------------------------- its parts


def test_an_event_is_a_line_across_the_chart_on_a_wedge() -> None:
    frame = Frame("loss", "update", x_range=(0, 10), y_range=(0, 1), width=148, height=140)
    svg = str(line_chart(frame, [Line("loss", "evolve", [(0, 0.5), (10, 0.5)])], events=[Event("update 5 <b>", 5)]))
    assert '<path class="event" d="M88.0 10.0V110.0M84.5 114.0h7l-3.5 -5.5Z"><title>update 5 &lt;b&gt;</title>' in svg
    assert "event" in str(line_chart(Frame("loss", "update"), [], events=[Event("skipped", 3)]))


def test_numbers_are_short() -> None:
    assert [value(number) for number in (None, 0.00039324, 7.9248, 1234.5, -2.5, 5e8)] == [
        "–",
        "0.0003932",
        "7.925",
        "1,234",
        "−2.5",
        "5e+08",
    ]
    assert [size(number) for number in (None, 12, 3 * 2**20, 1.5 * 2**30, 999.4 * 2**30, 1020 * 2**20)] == [
        "–",
        "12 B",
        "3 MiB",
        "1.5 GiB",
        "999 GiB",
        "1,020 MiB",
    ]
    assert (rate_of_work(9.1e10), rate_of_work(7.42e14)) == ("91 GFLOP/s", "742 TFLOP/s")
