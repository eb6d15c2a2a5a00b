"""Minari data sets that are written here: by layout, by our reader, and by the package where it is installed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evolvent.errors import ConfigError, ErrorRecord, SampleInvalid
from evolvent.store.minari import write_minari, write_minari_episodes
from evolvent.store.offline import read_minari
from evolvent.trajectory import Score, Step, Task, Trajectory
from tests.sequence_support import ragged

h5py = pytest.importorskip("h5py")


def episode(name, steps, final="", *, ended_by="world", score=None, error=None):
    task = Task("w", "1", {"name": name})
    return Trajectory(name, task, tuple(steps), final, ended_by, score or Score(), error=error)


def walk(name, length=2, **more):
    """Positions of two numbers, actions 0, 1, 2, ..."""
    steps = [Step(np.full(2, n, np.float32), np.array(n), 1.0) for n in range(length)]
    return episode(name, steps, np.full(2, length, np.float32), **more)


def metadata_of(folder):
    return json.loads((folder / "data" / "metadata.json").read_text())


def test_episodes_of_numbers_come_back(tmp_path):
    data = ragged(*range(1, 13), terminated=[True, False] * 6)
    assert write_minari_episodes(data, tmp_path) == 12
    assert read_minari(tmp_path).digest == data.digest, "episode 10 comes after episode 2"
    metadata = metadata_of(tmp_path)
    assert (metadata["total_episodes"], metadata["total_steps"]) == (12, 78)
    space = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-np.inf] * 3, "high": [np.inf] * 3}
    assert json.loads(metadata["observation_space"]) == space


def test_trajectories_of_numbers_come_back_with_discrete_actions(tmp_path):
    assert write_minari([walk("a"), walk("b", 3, ended_by="horizon")], tmp_path) == 2
    found = read_minari(tmp_path, actions=3)
    assert (found.lengths.tolist(), found.terminated.tolist()) == ([2, 3], [True, False])
    assert found.action.tolist() == [0, 1, 0, 1, 2]
    assert found.final.tolist() == [[2, 2], [3, 3]]
    action_space = json.loads(metadata_of(tmp_path)["action_space"])
    assert action_space == {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}
    with h5py.File(tmp_path / "data" / "main_data.hdf5") as file:
        group = file["episode_1"]
        assert dict(group.attrs) == {"id": 1, "total_steps": 3}
        assert group["observations"].shape == (4, 2)
        assert (group["terminations"][:].tolist(), group["truncations"][:].tolist()) == (
            [False] * 3,
            [False, False, True],
        )


def test_texts_have_a_space_of_their_characters(tmp_path):
    """An episode whose steps have no reward has its score in the last one."""
    talks = [
        episode("a", [Step("hé", "go", None), Step("", "up", None)], "end", score=Score(0.5, 0.5, False)),
        episode("b", [Step("ho", "go", 2.0)], "hum"),
    ]
    assert write_minari(talks, tmp_path) == 2
    spaces = {name: json.loads(metadata_of(tmp_path)[f"{name}_space"]) for name in ("observation", "action")}
    assert spaces == {
        "observation": {"type": "Text", "min_length": 0, "max_length": 3, "charset": "dehmnoué"},
        "action": {"type": "Text", "min_length": 2, "max_length": 2, "charset": "gopu"},
    }
    with h5py.File(tmp_path / "data" / "main_data.hdf5") as file:
        assert [text.decode() for text in file["episode_0/observations"][:]] == ["hé", "", "end"]
        assert file["episode_0/rewards"][:].tolist() == [0.0, 0.5]
    with pytest.raises(SampleInvalid, match="does not hold numbers"):
        read_minari(tmp_path)


BAD = {
    "error": (walk("x", ended_by="error", error=ErrorRecord("Boom", "m", 0)), "not complete: got the error Boom"),
    "empty": (episode("x", []), "not complete: got no steps"),
    "last": (
        episode("x", walk("y").steps),
        "the observations of the episode do not fit each other: got texts and arrays",
    ),
    "ragged": (episode("x", walk("y").steps, np.zeros(3)), "the observations of the episode do not fit each other"),
    "other": (
        episode("x", [Step(np.zeros(3), np.array(0), 1.0)], np.zeros(3)),
        "differ from those of the first episode",
    ),
    "nan": (episode("x", [Step(np.zeros(2), np.array(0), np.nan)], np.zeros(2)), "a reward is not finite"),
    "nul": (episode("x", [Step("a\0b", "c", 1.0)], ""), "cannot be stored in HDF5"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_episode_that_does_not_fit_is_named_and_the_others_are_written(tmp_path, name):
    bad, reason = BAD[name]
    problems = []
    assert write_minari([walk("a"), bad, walk("b")], tmp_path / "set", problems=problems) == 2
    assert [problem.where for problem in problems] == ["x"] and reason in problems[0].what
    assert len(read_minari(tmp_path / "set", actions=2).lengths) == 2
    with pytest.raises(SampleInvalid, match="episode 'x' cannot be written"):
        write_minari([walk("a"), bad], tmp_path / "other")
    assert not list((tmp_path / "other" / "data").iterdir()), "nothing is left behind"


def test_a_data_set_is_not_overwritten_and_nothing_is_no_data_set(tmp_path):
    with pytest.raises(SampleInvalid, match="the data set would be empty"):
        write_minari([], tmp_path)
    write_minari([walk("a")], tmp_path)
    with pytest.raises(ConfigError, match="already holds a data set"):
        write_minari([walk("b")], tmp_path)


@pytest.mark.parametrize("kind", ["numbers", "texts", "images"])
def test_the_package_reads_it(tmp_path, kind):
    minari = pytest.importorskip("minari")
    frames = [Step(np.full((2, 2, 3), n, np.uint8), np.array(n), 1.0) for n in range(3)]
    episodes = {
        "numbers": [walk("a"), walk("b", 3)],
        "texts": [episode("a", [Step("hé", "go", 1.0)], "end")],
        "images": [episode("a", frames, np.zeros((2, 2, 3), np.uint8))],
    }[kind]
    write_minari(episodes, tmp_path, dataset_id="test/walk-v1")
    dataset = minari.MinariDataset(tmp_path / "data")
    assert (dataset.total_episodes, dataset.spec.dataset_name) == (len(episodes), "walk")
    for found, written in zip(dataset.iterate_episodes(), episodes, strict=True):
        assert found.rewards.tolist() == list(written.rewards)
        assert all(dataset.observation_space.contains(observation) for observation in found.observations)
        assert all(dataset.action_space.contains(action) for action in found.actions)
        seen = [*(step.observation for step in written.steps), written.final_observation]
        assert all(np.array_equal(one, other) for one, other in zip(found.observations, seen, strict=True))
