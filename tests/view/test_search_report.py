"""What searches came to, on the page: cells by hand, what is withheld, charts, trees, and files of anybody."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from searched_run import searched_tree, write_searches, write_tree
from test_document import outline

from evolvent.cli.main import main
from evolvent.search.export import tree_row
from evolvent.stats import wilson_interval
from evolvent.view import page, read_run
from evolvent.view.charts import Frame, Line, line_chart, log_ticks
from evolvent.view.document import build_search_report
from evolvent.view.searches import SearchRow, aggregate_cells, parse_search_row


def row(task: str, method: str, success: bool | None, **more: Any) -> SearchRow:
    given = {
        "world": "w",
        "kind": task[0],
        "task": task,
        "method": method,
        "budget": 100,
        "of": "generated",
        "success": success,
        "passed": True,
        "ended_by": "done",
        "cpu_s": 2.0,
        "spent": {"generated": 10, "computed": 20, "expansions": 3},
        **more,
    }
    found = parse_search_row(given)
    assert found is not None
    return found


def test_a_cell_by_hand():
    rows = [
        row("a1", "mcts", True),
        row(
            "a2",
            "mcts",
            False,
            ended_by="generated",
            dropped=2,
            samples=4,
            spent={"generated": 30, "computed": 40, "expansions": 5},
            passed=False,
            cpu_s=1.0,
        ),
    ]
    (cell,) = aggregate_cells(rows)
    assert (cell.n, cell.errors, cell.rate, cell.passed) == (2, 0, wilson_interval(1, 2), 0.5)
    assert (cell.generated, cell.computed, cell.expansions, cell.cpu_s) == (20, 30, 4, 1.5)
    assert (cell.samples, cell.limited, cell.dropped, cell.against) == (2, 0.5, 2, None)


def test_an_episode_that_nobody_could_score_withholds_the_rate():
    (cell,) = aggregate_cells(
        [row("a", "mcts", True), row("b", "mcts", None, passed=None, error="GraderTimeout: too long")]
    )
    assert (cell.rate, cell.errors, cell.passed) == (None, 1, None)


def test_a_search_done_again_counts_once_as_it_came_out_last():
    (cell,) = aggregate_cells([row("a", "mcts", None), row("b", "mcts", True), row("a", "mcts", True)])
    assert (cell.n, cell.rate) == (2, wilson_interval(2, 2))


def test_the_difference_from_best_of_n_is_paired_by_task():
    rows = [row(f"{kind}{n}", "mcts", kind != "c") for kind in "abc" for n in range(2)]
    rows += [row(f"{kind}{n}", "best_of_n", kind == "a") for kind in "abc" for n in range(2)]
    best, found = aggregate_cells(rows)
    assert (best.method, best.against) == ("best_of_n", None)
    assert found.against is not None and math.isclose(found.against.mean, 1 / 3)
    assert (found.against.low, found.against.high) == (-1, 1), "three kinds tell nothing"
    assert aggregate_cells(rows[:-1])[1].against is None, "another set of tasks"
    assert aggregate_cells([*rows, row("a0", "best_of_n", None)])[1].against is None, "not scored"


def test_cells_stand_by_world_then_baselines_first_then_budget():
    given = [("mcts", 500), ("mcts", 100), ("best_of_n", 100), ("beam", 100), ("greedy", None), ("samples", 100)]
    found = aggregate_cells([row("a", method, True, budget=budget) for method, budget in given])
    assert [(cell.method, cell.budget) for cell in found] == [
        ("greedy", None),
        ("samples", 100),
        ("best_of_n", 100),
        ("mcts", 100),
        ("mcts", 500),
        ("beam", 100),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"world": "w"},
        {"world": "w", "task": "t", "method": "m", "budget": "many"},
        {"world": "w", "task": [], "method": "m"},
    ],
)
def test_lines_that_tell_of_no_search_are_none(given):
    assert parse_search_row(given) is None


def test_what_nobody_counted_is_not_zero():
    (cell,) = aggregate_cells([row("a", "mcts", True, spent={"generated": 5}), row("b", "mcts", True)])
    assert cell.computed is None and cell.generated == 7.5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_searches(tmp_path_factory.mktemp("runs") / "search-1")


def test_the_page_shows_every_cell_chart_and_tree(run: Path):
    data = read_run(run)
    text, shown = page(data), build_search_report(data)
    assert shown is not None
    found = outline(text)
    assert not {"script", "img", "link", "iframe", "object", "form"} & set(found.tags)
    assert {link[1:] for link in found.links} == set(found.ids) == {"accuracy", "searches", "trees", "details"}
    table = text[text.index('<table class="searches">') :]
    for cell in shown.rows:
        assert cell.rate is not None
        ends = f"{100 * cell.rate.mean:.1f} %<small>{100 * cell.rate.low:.1f} to {100 * cell.rate.high:.1f}</small>"
        assert ends in table and f"{cell.generated:,.0f}" in table
    assert [len(figures) for _, figures in shown.worlds] == [3, 3]
    assert all(text.count(f">{name}</span>") >= 1 for name in ("greedy", "samples", "best_of_n", "mcts", "beam"))
    assert len(text.encode()) < 1_000_000 and text.count('class="tree"') == 2
    assert "of its 2,749 nodes" in text.lower() and "dropped children" in text
    assert "In countdown mcts at 8,000 is right in" in text


def test_charts_stand_at_what_was_spent_not_at_what_was_allowed(run: Path):
    chart = str(build_search_report(read_run(run)).worlds[0][1][0].chart)
    assert "mcts, generated tokens of a task 420:" in chart and "task 500:" not in chart


def test_the_command_writes_it_too(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["view", str(run), "--to", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page(read_run(run))


def test_trees_that_fill_the_page_are_named_instead(tmp_path: Path):
    folder = write_searches(tmp_path / "run", tasks=4)
    large = tree_row(searched_tree(depth=9, width=4, paths=300))
    for number in range(4):
        write_tree(folder, f"mcts-500-{number}", large, task=f"t{number}")
    text = page(read_run(folder))
    assert text.count('class="tree"') == 2 and "is in <code>trees/mcts-500-" in text
    assert len(text.encode()) < 1_000_000


HOSTILE = "</style></details><script>alert(1)</script><b onclick=x>\u202e{{ 7*7 }}"


def test_files_of_anybody_are_text(tmp_path: Path):
    folder = write_searches(tmp_path / "run", tasks=4)
    lines = [json.loads(line) for line in (folder / "searches.jsonl").read_text(encoding="utf-8").splitlines()]
    bad = [
        {
            **line,
            **dict.fromkeys(("world", "method", "of", "answer", "ended_by", "kind", "tier"), HOSTILE),
            "success": None,
            "error": HOSTILE,
        }
        for line in lines[:3]
    ]
    odd = [
        {"world": 3, "method": True, "task": "x", "budget": 1e99},
        {
            "world": "w",
            "method": "m",
            "task": "t",
            "spent": {"generated": -4, "computed": "x"},
            "cpu_s": "inf",
            "samples": "x",
        },
        7,
        None,
    ]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, *bad, *odd]) + '{"torn'
    (folder / "searches.jsonl").write_text(text, encoding="utf-8")
    write_tree(
        folder,
        "hostile",
        {**tree_row(searched_tree(depth=2)), "title": HOSTILE, "ended_by": HOSTILE},
        world=HOSTILE,
        method=HOSTILE,
        answer=HOSTILE,
        task="s",
    )
    (folder / "trees" / "torn.json").write_text('{"tree": ', encoding="utf-8")
    shown = page(read_run(folder))
    found = outline(shown)
    assert "script" not in found.tags and "\u202e" not in shown and shown.count("7*7") > 5
    assert "could not be scored" in shown and "withheld" in shown
    assert "torn.json is not readable as JSON" in shown and "unreadable lines" in shown


def test_a_logarithmic_axis():
    """Equal factors are equally wide, and its ticks are round."""
    assert log_ticks(50, 10_000) == [100, 1000, 10_000] and log_ticks(90, 1100, 8) == [100, 200, 500, 1000]
    assert log_ticks(130, 170) == [130 + 10 * step for step in range(5)]
    frame = Frame("t", "x", y_range=(0, 1), log_x=True)
    chart = str(line_chart(frame, [Line("a", "plus", [(10, 0.1), (100, 0.5), (1000, 0.9)], [(10, 0, 0.3)] * 2)]))
    line = chart[chart.index('class="line') :].partition(' d="M')[2].partition('"')[0].split("L")
    places = [float(part.split()[0]) for part in line]
    assert math.isclose(places[1] - places[0], places[2] - places[1], abs_tol=0.11)
    line_chart(frame, [])
