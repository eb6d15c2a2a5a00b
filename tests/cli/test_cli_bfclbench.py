"""`evolvent bench bfcl` as a user meets it: the table, the totals, other names, resuming, mistakes."""

import json

import pytest

from evolvent.bench.bfcl import CategoryRow, MaskedBfcl, category_rows, compute_totals
from evolvent.cli.main import main
from evolvent.errors import ConfigError
from evolvent.grade.call_metrics import score_calls
from evolvent.store.store import Store
from evolvent.worlds.calls.world import CallSet, read_call_samples
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


RATE = {
    "name": "get_rate",
    "description": "Looks up a rate.",
    "parameters": {"year": {"type": "int", "description": "which"}, "unit": {"type": "str", "description": ""}},
}
TIME = {"name": "get_time", "description": "Tells the time.", "parameters": {"city": {"type": "str"}}}
CALL = {"name": "get_rate", "arguments": {"year": 2020, "unit": "kg"}}
HAMMER = [
    {"query": "The rate of 2020 in kg?", "tools": [RATE, TIME], "answers": [CALL]},
    {"query": "Time in Oslo?", "tools": json.dumps([RATE, TIME]), "answers": json.dumps(
        [{"name": "get_time", "arguments": {"city": "Oslo"}}])},
    {"query": "Sing a song.", "tools": [RATE], "answers": []},
    {"query": "no tools here"},
]  # fmt: skip
SEAL = [{"id": "s1", "query": "The rate?", "calling": [{"api": "get_rate", "parameters": {"year": 2020}}]}]
SEAL_TOOLS = [
    {"api_name": tool["name"], "api_description": tool["description"], "parameters": tool["parameters"]}
    for tool in (RATE, TIME)
]
NEXUS = [
    {
        "dataset": "d",
        "prompt": "The rate?",
        "python_function_name": "get_rate",
        "python_args_dict": {"year": 2020},
        "context_functions": ["get_rate", "get_time"],
    }
]
NEXUS_TOOLS = [
    {
        "dataset": "d",
        "name": tool["name"],
        "description": "",
        "args_dicts": [{"name": name, **schema} for name, schema in tool["parameters"].items()],
    }
    for tool in (RATE, TIME)
]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_bench_calls_scores_an_expert_with_full_marks_and_names_the_bad_row(tmp_path, capsys):
    file, folder = tmp_path / "api_bank.json", tmp_path / "run"
    file.write_text(json.dumps(HAMMER), encoding="utf-8")
    assert main(["bench", "calls", str(file), "--output_dir", str(folder)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    row = json.loads((folder / "calls.json").read_text(encoding="utf-8"))
    assert (row["items"], row["exact"], row["not_answered"]) == (3, 3, 0)
    assert row["names"] == row["arguments"] == {"f1": 1.0, "precision": 1.0, "recall": 1.0}
    assert row["abstained"] == 1.0 and row["unparsable"] == 0.0
    assert "3 items; exactly the expected calls: 100.0 %" in output and "called nothing where nothing fits" in output
    assert "api_bank.json, row 3" in output and "lacks tools, answers" in output
    assert main(["bench", "calls", "--resume", str(folder)]) == 0


@pytest.mark.parametrize("form", ["json", "python", "xml"])
def test_layouts_are_told_by_their_fields_and_experts_are_right(tmp_path, form):
    seal = write_lines(tmp_path / "test.jsonl", SEAL)
    write_lines(tmp_path / "tool.jsonl", SEAL_TOOLS)
    nexus, functions = write_lines(tmp_path / "q.jsonl", NEXUS), write_lines(tmp_path / "api.jsonl", NEXUS_TOOLS)
    hammer = write_lines(tmp_path / "hammer.jsonl", HAMMER[:3])
    for samples, _ in (read_call_samples(seal), read_call_samples(nexus, functions), read_call_samples(hammer)):
        world = CallSet(samples, form=form)
        for task in world.tasks("test", "all"):
            env = world.make(task)
            text, info = env.reset()
            assert "get_rate" in text and info["tools"]
            assert env.step(world.expert(task)[0])[1] == 1.0
        assert not world.tasks("train", "all")


def test_a_reply_is_paid_for_exactly_the_expected_calls_and_f1_counts_parts():
    samples, _ = read_call_samples_of(HAMMER[:1])
    world = CallSet(samples)
    (task,) = world.tasks("test", "all")
    five_times = json.dumps([CALL] * 5)
    half = json.dumps([{"name": "get_rate", "arguments": {"year": 2020, "unit": "lb"}}])
    replies = {five_times: (0.0, 1 / 3, 1 / 3), half: (0.0, 1.0, 0.5), json.dumps([CALL]): (1.0, 1.0, 1.0)}
    for reply, (reward, names_f1, arguments_f1) in replies.items():
        env = world.make(task)
        env.reset()
        step = env.step(reply)
        found = (step[1], step[4]["names_f1"], step[4]["arguments_f1"])
        assert found == pytest.approx((reward, names_f1, arguments_f1)), reply
    env = world.make(task)
    env.reset()
    assert env.step('[{"name": "get_rate", "arguments": {"year":')[4]["invalid"] is True
    assert score_calls([None], [samples[0].calls]).unparsable == 1.0


def read_call_samples_of(rows):
    from evolvent.worlds.calls.layouts import read_hammer_row

    return [read_hammer_row(row, f"row/{index}") for index, row in enumerate(rows)], ()


def test_bench_calls_refuses_files_without_rows_or_functions(tmp_path, capsys):
    empty = write_lines(tmp_path / "empty.jsonl", [])
    assert main(["bench", "calls", str(empty)]) == 2
    assert "no usable rows in empty.jsonl" in capsys.readouterr().err
    nexus = write_lines(tmp_path / "q.jsonl", NEXUS)
    assert main(["bench", "calls", str(nexus)]) == 2
    assert "set --tools to its API list" in " ".join(capsys.readouterr().err.split())
    seal = write_lines(tmp_path / "seal.jsonl", SEAL)
    assert main(["bench", "calls", str(seal)]) == 2
    assert "file not found" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="unknown form"):
        CallSet([], form="yaml")
