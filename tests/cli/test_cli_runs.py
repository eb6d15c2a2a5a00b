"""`evolvent runs`: what is recorded can be listed, shown, taken out, put in, and put in order after a kill."""

from __future__ import annotations

import json

import pytest
from recorded import record

from evolvent.cli.main import main
from evolvent.store.store import Store
from evolvent.worlds.lookup import Lookup


@pytest.fixture
def run(tmp_path):
    record(tmp_path / "runs" / "first")
    return tmp_path / "runs" / "first"


def out(capsys, *words):
    code = main([*map(str, words)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_list(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (run.parent / "second").mkdir()
    (run.parent / "torn").mkdir()
    (run.parent / "torn" / "run.json").write_text('{"state": "fin', encoding="utf-8")
    (run.parent / "torn" / "trajectories").mkdir()
    code, shown, _ = out(capsys, "runs", "list", run.parent)
    assert code == 0
    (line,) = [line for line in shown.splitlines() if "first" in line]
    assert all(part in line for part in ("finished", "collect", "7", "2026-01-02T03:04:05Z"))
    assert "second" not in shown and "torn" in shown
    assert out(capsys, "runs", "list", run / "none")[1] == f"no runs in {run / 'none'}\n"


def test_show(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, shown, _ = out(capsys, "runs", "show", run)
    assert code == 0
    (line,) = [line.split() for line in shown.splitlines() if "explore" in line]
    assert line == ["explore", "lookup/evo/dev", "3", "50.0%", "3", "3"]
    assert shown.startswith("state    finished\nmethod   collect\n") and "1 of them not scored\n" in shown


def test_show_at_forty_columns(run, capsys, monkeypatch):
    """What does not fit beside each other is written below each other; no word is cut."""
    monkeypatch.setenv("COLUMNS", "40")
    code, shown, _ = out(capsys, "runs", "show", run)
    assert code == 0
    assert "explore\n  panel lookup/evo/dev\n  played 3\n  success 50.0%\n  steps 3\n  tokens 3\n" in shown
    _, shown, _ = out(capsys, "runs", "list", run.parent)
    assert "\n  state finished\n  method collect\n  seed 7\n  created 2026-01-02T03:04:05Z\n" in shown


def test_a_run_without_episodes(tmp_path, capsys):
    with Store.open(tmp_path / "trajectories", writing=True):
        pass
    (tmp_path / "report.html").write_text("", encoding="utf-8")
    assert out(capsys, "runs", "show", tmp_path) == (0, f"report   {tmp_path / 'report.html'}\nno episodes\n", "")


def test_show_run_that_stores_no_episodes_names_its_files(tmp_path, capsys):
    (tmp_path / "run.json").write_text('{"verb": "train sequence", "method": "pdt", "state": "finished"}')
    (tmp_path / "policy").mkdir()
    code, shown, _ = out(capsys, "runs", "show", tmp_path)
    assert (code, shown) == (0, f"state    finished\nmethod   pdt\npolicy   {tmp_path / 'policy'}\nno episodes\n")
    code, _, refusal = out(capsys, "runs", "show", tmp_path, "--trajectory", "x")
    assert code == 2 and f"{tmp_path} does not hold episodes" in refusal


def test_show_an_episode(run, capsys):
    first = next(Store.open(run / "trajectories").trajectories())
    code, shown, _ = out(capsys, "runs", "show", run, "--trajectory", first.id)
    assert code == 0
    assert shown.splitlines() == [
        "lookup/evo/dev boss",
        "ended by world",
        "find boss of name0",
        "> answer x   reward 1",
        "right",
        "success True",
    ]
    code, _, said = out(capsys, "runs", "show", run, "--trajectory", "nobody")
    assert code == 1 and "does not hold a trajectory with this id: got nobody" in said


@pytest.mark.parametrize("format", ["jsonl", "messages", "agenttraj", "parquet"])
def test_export(run, capsys, tmp_path, format):
    to = tmp_path / "out"
    code, shown, _ = out(capsys, "runs", "export", run, "--to", to, "--format", format)
    assert (code, shown) == (0, f"3 episodes to {to}\n")
    if format == "parquet":
        import pyarrow.parquet as pq

        assert pq.read_table(to / "trajectories.parquet").num_rows == 3
    elif format == "agenttraj":
        assert len(json.loads(to.read_text(encoding="utf-8"))) == 3
    else:
        assert len(to.read_text(encoding="utf-8").splitlines()) == 3


def test_export_some(run, capsys, tmp_path):
    code, shown, _ = out(capsys, "runs", "export", run, "--to", tmp_path / "won.jsonl", "--success")
    assert code == 0 and shown.startswith("1 episodes")
    assert out(capsys, "runs", "export", run, "--to", tmp_path / "none.jsonl", "--world", "moon")[1].startswith("0 ")


def test_records_come_back_equal(run, capsys, tmp_path):
    out(capsys, "runs", "export", run, "--to", tmp_path / "all.jsonl")
    code, shown, _ = out(capsys, "runs", "import", tmp_path / "all.jsonl", "--to", tmp_path / "again")
    assert (code, shown) == (0, "3 episodes imported, 0 rows left out\n")
    first, second = (Store.open(folder / "trajectories") for folder in (run, tmp_path / "again"))
    assert list(first.trajectories()) == list(second.trajectories())
    code, _, said = out(capsys, "runs", "import", tmp_path / "all.jsonl", "--to", tmp_path / "again")
    assert code == 1 and "already has a trajectory with this id" in said


@pytest.mark.parametrize("format", ["jsonl", "messages", "agenttraj"])
def test_export_import_export_is_the_identity(run, capsys, tmp_path, format):
    first, again = tmp_path / "first", tmp_path / "again"
    out(capsys, "runs", "export", run, "--to", first, "--format", format)
    code, _, said = out(capsys, "runs", "import", first, "--to", tmp_path / "copy", "--format", format)
    assert (code, said) == (0, "")
    out(capsys, "runs", "export", tmp_path / "copy", "--to", again, "--format", format)
    assert first.read_bytes() == again.read_bytes()
    if format != "messages":
        assert {t.task.world for t in Store.open(tmp_path / "copy" / "trajectories").trajectories()} == {"lookup"}


def test_bad_rows_are_left_out_and_named(capsys, tmp_path):
    rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}, {"messages": 3}]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code, shown, _ = out(capsys, "runs", "import", path, "--to", tmp_path / "run", "--format", "messages")
    assert code == 1
    assert "1 episodes imported, 1 rows left out" in shown and shown.startswith("left out: ")


def test_a_folder_of_agenttraj_is_imported(capsys, tmp_path):
    """Every file of an environment, in one run; a folder of tasks alone says what to do with it."""

    def row(item_id):
        turns = [("human", "rules", None), ("gpt", "OK.", False), ("human", "go", None), ("gpt", "Action:\nup", True)]
        return {
            "conversations": [{"from": name, "value": text, "loss": loss} for name, text, loss in turns],
            "item_id": item_id,
        }

    folder = tmp_path / "AgentTraj-L"
    folder.mkdir()
    (folder / "webshop_test.json").write_text('[{"item_id": "webshop_9"}]')
    code, _, error = out(capsys, "runs", "import", folder, "--to", tmp_path / "run")
    assert code == 2 and "names tasks but holds no episodes (webshop_test.json)" in error
    assert "evolvent bench agent-eval --tasks" in error and not (tmp_path / "run").exists()
    (folder / "webshop_train.json").write_text(json.dumps([row("webshop_1"), row("webshop_1")]))
    (folder / "lmrlgym_maze_train.json").write_text(json.dumps([row("lmrlgym_maze_3"), {"item_id": "lmrlgym_maze_4"}]))
    code, shown, _ = out(capsys, "runs", "import", folder, "--to", tmp_path / "run")
    assert code == 1
    assert shown.splitlines()[1] == "lmrlgym_maze 1; webshop 2"
    assert "left out: lmrlgym_maze_train.json:2: " in shown and "3 episodes imported, 1 rows left out" in shown
    with Store.open(tmp_path / "run" / "trajectories") as store:
        ids = [trajectory.id for trajectory in store.trajectories()]
    assert ids == ["lmrlgym_maze_3", "webshop_1", "webshop_1#2"]


def test_files_of_any_form_are_imported(capsys, tmp_path):
    share = {"id": "s", "system": "Be brief.", "conversations": [{"from": "human", "value": "Hi"}]}
    share["conversations"].append({"from": "gpt", "value": "Ho"})
    pair = {"prompt": "q", "chosen": "a", "rejected": "b"}
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps([share, {"id": "t", "conversations": [{"from": "robot", "value": "x"}]}, pair]))
    code, shown, _ = out(capsys, "runs", "import", path, "--to", tmp_path / "run")
    assert code == 1 and shown.splitlines() == [
        "conversations (ShareGPT), 2 rows; preferences, 1 row",
        "left out: mixed.json:2: the speaker of turn 0 is unknown: got robot, expected human, gpt, system, "
        "function_call, observation, tool, or a role of OpenAI's messages",
        "3 episodes imported, 1 rows left out",
    ]
    ids = [trajectory.id for trajectory in Store.open(tmp_path / "run" / "trajectories").trajectories()]
    assert ids == ["s", "mixed-2/chosen", "mixed-2/rejected"]
    dataset = pytest.importorskip("datasets").Dataset.from_list([share, {**share, "id": "u"}])
    dataset.save_to_disk(str(tmp_path / "saved"))
    dataset.to_parquet(str(tmp_path / "share.parquet"))
    for name in ("saved", "share.parquet"):
        code, shown, _ = out(capsys, "runs", "import", tmp_path / name, "--to", tmp_path / f"{name}-run")
        assert code == 0 and shown.startswith("conversations (ShareGPT), 2 rows\n2 episodes imported")


def test_messages_end_with_the_reply_and_begin_with_the_rules(run, capsys, tmp_path):
    first = tmp_path / "first.jsonl"
    assert out(capsys, "runs", "export", run, "--to", first, "--format", "messages", "--ends_with_reply")[0] == 0
    rows = [json.loads(line) for line in first.read_text().splitlines()]
    assert [[message["role"] for message in row["messages"]] for row in rows] == [["user", "assistant"]] * 3
    words = ("runs", "export", run, "--to", tmp_path / "second.jsonl", "--format", "messages", "--instructions")
    assert "does not record its worlds" in out(capsys, *words)[2]
    (run / "config.toml").write_text('worlds = ["lookup"]\n', encoding="utf-8")
    assert out(capsys, *words)[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "second.jsonl").read_text().splitlines()]
    assert {row["messages"][0]["content"] for row in rows} == {Lookup().instructions}
    wrong = ("runs", "export", run, "--to", tmp_path / "x.csv", "--ends_with_reply")
    assert "--ends_with_reply: format csv does not have it (set --format messages)" in out(capsys, *wrong)[2]


def test_episodes_are_a_minari_data_set(run, capsys, tmp_path):
    """Text worlds have a space of texts; what failed is left out and named."""
    pytest.importorskip("h5py")
    words = ("runs", "export", run, "--to", tmp_path / "set", "--format", "minari")
    code, shown, _ = out(capsys, *words)
    assert code == 0 and "2 episodes to " in shown
    assert "left out: " in shown and "the episode is not complete: got the error StepTimeout" in shown
    metadata = json.loads((tmp_path / "set" / "data" / "metadata.json").read_text())
    assert (metadata["total_episodes"], metadata["total_steps"], metadata["data_format"]) == (2, 2, "hdf5")
    assert metadata["dataset_id"] == "evolvent/first-v0"
    assert "already holds a data set" in out(capsys, *words)[2]


def test_recover(run, capsys):
    (segment,) = (run / "trajectories" / "log").glob("seg-*")
    with segment.open("ab") as file:
        file.write(b'{"torn')
    code, shown, _ = out(capsys, "runs", "recover", run)
    assert (code, shown) == (0, "3 episodes kept, 0 interrupted, 6 torn bytes dropped\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "nowhere"], 2, "nowhere is neither a run nor a store"),
        (["export", "RUN", "--to", "x", "--format", "jsnl"], 2, "unknown format 'jsnl' (did you mean 'jsonl'?)"),
        (["export", "RUN"], 2, "--to"),
        (["import", "missing.jsonl", "--to", "x"], 2, "missing.jsonl is not a file"),
        (["import", "RUN", "--to", "x"], 2, "first is not a file"),
        (["import", "RUN/run.parquet", "--to", "x"], 2, "run.parquet is empty: expected rows of JSON lines"),
        (["recover", "nowhere"], 2, "nowhere is neither a run nor a store"),
    ],
)
def test_mistakes(run, capsys, monkeypatch, tmp_path, words, code, said):
    monkeypatch.chdir(tmp_path)
    (run / "run.parquet").write_bytes(b"")
    found, _, error = out(capsys, "runs", *(word.replace("RUN", str(run)) for word in words))
    assert found == code and said in error, error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def newer(run):
    """The log and what is sealed were written by a later version."""
    (segment,) = (run / "trajectories" / "log").glob("seg-*")
    segment.write_bytes(segment.read_bytes().replace(b'{"v":1,', b'{"v":2,'))


def cut(run):
    """The sealed part lost its end."""
    Store.open(run / "trajectories").seal()
    (part,) = (run / "trajectories" / "parquet" / "trajectories").iterdir()
    part.write_bytes(part.read_bytes()[:-100])


def gone(run):
    """The sealed part is not there."""
    Store.open(run / "trajectories").seal()
    (part,) = (run / "trajectories" / "parquet" / "trajectories").iterdir()
    part.unlink()


@pytest.mark.parametrize("verb", ["show", "export", "recover"])
@pytest.mark.parametrize("spoil", [newer, cut, gone], ids=lambda spoil: spoil.__name__)
def test_a_spoiled_store_is_one_sentence(run, capsys, tmp_path, spoil, verb):
    spoil(run)
    words = ["--to", tmp_path / "out.jsonl"] * (verb == "export")
    code, _, said = out(capsys, "runs", verb, run, *words)
    assert code == 1 and said.startswith("error: ") and said.count("\n") == 1, said
    assert str(run / "trajectories") in said
    assert not (tmp_path / "out.jsonl").exists()


def test_damage_is_a_failure_with_its_place(run, capsys):
    (segment,) = (run / "trajectories" / "log").glob("seg-*")
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 4] ^= 1
    segment.write_bytes(raw)
    code, _, said = out(capsys, "runs", "show", run)
    assert code == 1 and segment.name in said and said.count("\n") == 1
