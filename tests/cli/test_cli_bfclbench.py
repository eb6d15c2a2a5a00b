"""`evolvent bench bfcl` as a user meets it: the table, the totals, other names, resuming, mistakes."""

import json

import pytest

from evolvent.bench.bfcl import CategoryRow, MaskedBfcl, category_rows, compute_totals
from evolvent.cli.main import main
from evolvent.store.store import Store
from tests.worlds.bfcl_mini import CATEGORIES, build


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return build(tmp_path_factory.mktemp("bfcl"))


def test_experts_are_right_in_any_names(data, tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["bench", "bfcl", str(data), "--categories", ",".join(CATEGORIES), "--to", str(folder)]
    assert main(words) == 1, "relevance items have no gold calls, so no expert"
    said = " ".join(capsys.readouterr().out.split())
    row = json.loads((folder / "bfcl.json").read_text())
    for name in ("simple_python", "parallel", "live_simple", "irrelevance", "multi_turn_base"):
        right, items, lost = row["plain"][name]
        assert right == items > 0 == lost, name
    assert row["masked"]["simple_python"][0] == row["plain"]["simple_python"][0]
    assert "multi_turn_base" not in row["masked"] and row["lost_to_names"][0] == 0.0
    assert "totals of the leaderboard" in said and "lost to other names: +0.0" in said
    with Store.open(folder / "trajectories") as store:
        kept = {one.id: one for one in store.trajectories()}
    (folder / "bfcl.json").unlink()
    assert main(["bench", "bfcl", "--resume", str(folder)]) == 1
    assert json.loads((folder / "bfcl.json").read_text())["plain"] == row["plain"]
    with Store.open(folder / "trajectories") as store:
        again = {one.id: one for one in store.trajectories()}
    lost = {name for name, one in kept.items() if one.error is not None}
    assert set(again) == set(kept) | {f"{name}~1" for name in lost}, "only what was lost is played again"
    assert category_rows(kept.values()) == category_rows(again[name] for name in kept)
    capsys.readouterr()


def test_names_are_other_ones_and_answers_in_old_names_are_wrong(data):
    world = MaskedBfcl(data, categories=("simple_python", "irrelevance"), seed=3)
    for task in world.tasks("test", "non_live"):
        env = world.make(task)
        shown, _ = env.reset()
        item = world.item(task)
        assert not any(f'"{tool.name}"' in shown for tool in item.tools)
        plain = super(MaskedBfcl, world).expert(task)
        assert env.step(plain[0])[1] == 0.0
        env.reset()
        assert env.step(world.expert(task)[0])[1] == 1.0
        other = MaskedBfcl(data, categories=("simple_python",), seed=4)
        (again,) = [one for one in other.tasks("test", "non_live") if one.spec == task.spec]
        assert again.id != task.id and other.make(again).reset()[0] != shown


def test_conversations_alone_are_played_without_other_names(data, tmp_path, capsys):
    words = ["bench", "bfcl", str(data), "--categories", "multi_turn_base", "--to", str(tmp_path / "run")]
    assert main(words) == 0
    row = json.loads((tmp_path / "run" / "bfcl.json").read_text())
    assert row["masked"] == {} and row["lost_to_names"] is None and "live_simple_106-63-0" in row["bad_items"]
    capsys.readouterr()


def test_the_totals_are_the_leaderboards():
    found = [
        CategoryRow("simple_python", 10, 9, 0),
        CategoryRow("simple_java", 10, 6, 0),
        CategoryRow("simple_javascript", 10, 3, 0),
        CategoryRow("multiple", 4, 2, 0),
        CategoryRow("parallel", 4, 1, 0),
        CategoryRow("parallel_multiple", 4, 0, 0),
        CategoryRow("live_simple", 30, 30, 0),
        CategoryRow("live_multiple", 10, 0, 0),
        CategoryRow("irrelevance", 2, 1, 0),
        CategoryRow("live_irrelevance", 2, 2, 0),
        CategoryRow("multi_turn_base", 5, 5, 1),
    ]
    made = compute_totals(found)
    assert made["simple"] == pytest.approx(0.6)
    assert made["non_live"] == pytest.approx((0.6 + 0.5 + 0.25 + 0) / 4)
    live = 258 / (258 + 1053 + 16 + 24)
    assert made["live"] == pytest.approx(live) and made["irrelevance"] == pytest.approx(0.75)
    assert made["multi_turn"] == pytest.approx(1.25 / 4), "what is judged counts, and categories not played count 0"
    assert made["overall"] == pytest.approx(0.03375 + 0.1 * live + 0.075 + 0.3 * 0.3125)
    assert compute_totals([])["overall"] == 0.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--categories", "simple_pyton"], "did you mean 'simple_python'?"),
        (["--form", "yaml"], "python"),
        (["--categories", "simple_java"], "simple_java"),
    ],
)
def test_mistakes_are_told(data, tmp_path, capsys, words, said):
    assert main(["bench", "bfcl", str(data), *words, "--to", str(tmp_path / "run")]) in (1, 2)
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
