"""A corpus to share: the same files everywhere, clean splits, and readable by AgentGym's readers and by `datasets`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest

from evolvent.agents.plain import Expert, Random
from evolvent.cli.main import main
from evolvent.curate.corpus import item_ids, write_part
from evolvent.errors import SampleInvalid
from evolvent.rollout.episode import collect
from evolvent.store.exchange import read_agenttraj
from evolvent.trajectory import Start
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.panel import Sizes, list_tasks

WORLD = Lookup(sizes=Sizes(train=30, dev=20, test=20))
WORDS = [
    "collect",
    "--experts",
    "--worlds",
    "lookup,maze",
    "--base",
    "4",
    "--large",
    "6",
    "--expanded",
    "3",
    "--times",
    "2",
    "--eval",
    "5",
]


def played(agent, split="train", n=5):
    starts = [Start(task) for task in WORLD.tasks(split, "seen")[:n]]
    return list(collect({WORLD.name: WORLD}, starts, agent, engine=None))


def test_items_are_numbered_over_all_panels():
    names = item_ids(WORLD)
    tasks = list_tasks(WORLD)
    assert [names[task.id] for task in tasks[:2]] == ["lookup_0", "lookup_1"]
    assert tasks[0] == WORLD.tasks("train", "seen")[0] and tasks[-1] == WORLD.tasks("test", "longer")[-1]
    assert (
        len(names) == len(tasks) == sum(len(WORLD.tasks(s, t)) for s in ("train", "dev", "test") for t in WORLD.tiers)
    )


def test_a_part_is_written_in_the_order_of_its_tasks(tmp_path):
    episodes = played(Expert())
    row = write_part(tmp_path, "base", WORLD, trajectories=reversed(episodes))
    path = tmp_path / row.path
    assert (row.rows, row.steps) == (5, sum(len(one.steps) for one in episodes))
    assert row.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() and row.bytes == path.stat().st_size
    read = read_agenttraj(path)
    assert not read.invalid
    assert [one.meta["item_id"] for one in read.trajectories] == [f"lookup_{n}" for n in range(5)]
    assert [one.actions for one in read.trajectories] == [one.actions for one in episodes]


@pytest.mark.parametrize("episodes", [lambda: played(Expert(), "test"), lambda: played(Random())])
def test_test_tasks_and_failures_are_no_demonstrations(tmp_path, episodes):
    with pytest.raises(SampleInvalid, match="is not a demonstration of world"):
        write_part(tmp_path, "base", WORLD, trajectories=episodes())
    assert not list(tmp_path.rglob("*.json"))


def test_the_command_writes_the_same_corpus_again_and_goes_on(tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*WORDS, "--to", str(first)]) == 0
    assert main([*WORDS, "--to", str(second)]) == 0
    manifest = json.loads((first / "manifest.json").read_text())
    assert manifest == json.loads((second / "manifest.json").read_text())
    assert set(manifest["files"]) == {
        *(f"{part}/{world}_train.json" for part in ("base", "large") for world in ("lookup", "maze")),
        *(f"expanded/{world}-worded_train.json" for world in ("lookup", "maze")),
        *(f"eval/{world}_test.json" for world in ("lookup", "maze")),
    }
    for name, row in manifest["files"].items():
        assert hashlib.sha256((first / name).read_bytes()).hexdigest() == row["sha256"]
    assert manifest["files"]["large/lookup_train.json"]["rows"] == 12, "six of each of the two trained tiers"
    assert manifest["files"]["expanded/maze-worded_train.json"]["rows"] == 6
    (first / "base" / "maze_train.json").unlink()
    capsys.readouterr()
    assert main(["collect", "--experts", "--resume", str(first)]) == 0
    assert "maze, 0 episodes" in capsys.readouterr().out
    assert json.loads((first / "manifest.json").read_text()) == manifest


def test_as_many_tasks_are_told_in_other_words_as_asked_for_however_few_forms_there_are(tmp_path):
    """The maze has two forms: three tasks told five times over are still three tasks."""
    words = [word if word != "2" else "5" for word in WORDS]
    assert main([*words, "--to", str(tmp_path / "corpus")]) == 0
    for name, forms in (("maze", 2), ("lookup", 4)):
        told = json.loads((tmp_path / "corpus" / "expanded" / f"{name}-worded_train.json").read_text())
        goals = Counter(str(row["conversations"][2]["value"]).rpartition("goal")[2] for row in told)
        assert len(told) == 3 * forms
        assert name != "maze" or set(goals.values()) == {2}


def test_splits_are_clean_and_datasets_loads_every_part(tmp_path):
    datasets = pytest.importorskip("datasets")
    assert main([*WORDS, "--to", str(tmp_path / "corpus")]) == 0
    parts = {
        part: datasets.load_dataset(str(tmp_path / "corpus"), part, split=split, cache_dir=str(tmp_path / "cache"))
        for part, split in (("base", "train"), ("large", "train"), ("expanded", "train"), ("eval", "test"))
    }
    assert [parts[part].num_rows for part in parts] == [8, 18, 12, 25]
    items = {part: set(rows["item_id"]) for part, rows in parts.items()}
    assert items["base"] < items["large"]
    assert not items["large"] & items["eval"]
    turns = parts["base"][0]["conversations"]
    assert [turn["loss"] for turn in turns[:4]] == [None, False, None, True]


def test_a_large_part_smaller_than_base_is_refused(capsys):
    assert main(["collect", "--experts", "--base", "9", "--large", "3"]) == 2
    assert "large: got 3, expected at least 9, the value of base" in capsys.readouterr().err
