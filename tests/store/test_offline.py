"""The layouts of D4RL and Minari, read from files that are written here by h5py and pyarrow."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SampleInvalid, StoreUnavailable
from evolvent.store.episodes import concatenate_episodes
from evolvent.store.offline import _find_ends, read_d4rl, read_minari
from tests.sequence_support import ragged

h5py = pytest.importorskip("h5py")


def flat(tmp_path, **changed):
    """Three episodes of 2, 3 and 2 steps: ended, cut, and never finished."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(7, 3)),
        "actions": rng.uniform(-2, 2, (7, 2)),
        "rewards": rng.normal(size=7),
        "terminals": np.array([0, 1, 0, 0, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 1, 0, 0], bool),
        **changed,
    }
    path = tmp_path / "flat.hdf5"
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file[name] = array
    return path, arrays


def test_d4rl_without_what_came_next(tmp_path):
    path, arrays = flat(tmp_path)
    found = read_d4rl(path, scale=2.0)
    assert found.lengths.tolist() == [2, 2] and found.terminated.tolist() == [True, False]
    np.testing.assert_allclose(found.observation, arrays["observations"][:4], rtol=1e-6)
    np.testing.assert_allclose(found.final[1], arrays["observations"][4], rtol=1e-6)
    np.testing.assert_allclose(found.action, arrays["actions"][:4] / 2, rtol=1e-6)
    np.testing.assert_allclose(found.reward, arrays["rewards"][:4])


def test_d4rl_with_what_came_next(tmp_path):
    after = np.random.default_rng(1).normal(size=(7, 3))
    path, _ = flat(tmp_path, next_observations=after)
    found = read_d4rl(path, scale=2.0)
    assert found.lengths.tolist() == [2, 3]
    np.testing.assert_allclose(found.final, after[[1, 4]], rtol=1e-6)


def test_read_d4rl_without_timeouts_needs_the_horizon(tmp_path):
    """Episodes of 5 (cut), 3 (ended) and 5 (cut) steps under a limit of 5, in D4RL's older layout."""
    after = np.arange(1.0, 14.0)[:, None]
    arrays = {
        "observations": np.arange(13.0)[:, None],
        "actions": np.zeros((13, 1)),
        "rewards": np.arange(13.0),
        "terminals": np.arange(13) == 7,
        "timeouts": None,
    }
    path, _ = flat(tmp_path, **arrays)
    with pytest.raises(SampleInvalid, match=r"time limit(.|\n)*horizon=1000"):
        read_d4rl(path)
    # Without next_observations, the last decision of a cut episode is left out, as where the file has timeouts.
    short = read_d4rl(path, horizon=5)
    assert short.lengths.tolist() == [4, 3, 4] and short.terminated.tolist() == [False, True, False]
    assert short.final.ravel().tolist() == [4.0, 7.0, 12.0]
    path, _ = flat(tmp_path, **arrays, next_observations=after)
    whole = read_d4rl(path, horizon=5)
    assert whole.lengths.tolist() == [5, 3, 5] and whole.final.ravel().tolist() == [5.0, 8.0, 13.0]
    flags, _ = flat(tmp_path, **{**arrays, "timeouts": np.isin(np.arange(13), (4, 12))}, next_observations=after)
    assert read_d4rl(flags, horizon=2).digest == whole.digest, "timeouts of the file come first"
    for horizon in (0, True, 2.5):
        with pytest.raises(ConfigError, match="horizon"):
            read_d4rl(path, horizon=horizon)


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 12))
def test_find_ends_agrees_with_counting(terminals, horizon):
    expected, steps = [], 0
    for index, terminal in enumerate(terminals):
        steps += 1
        if terminal or steps == horizon:
            expected.append(index)
            steps = 0
    assert _find_ends(np.array(terminals, bool), horizon).tolist() == expected


def test_read_minari_keeps_the_order_of_a_tuple(tmp_path):
    """Minari names the parts of a tuple _index_0 to _index_11; as texts, 10 and 11 come before 2."""
    data = ragged(3, 2)
    folder = minari(tmp_path / "set", data)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        for name, group in file.items():
            del group["observations"]
            rows = len(group["rewards"]) + 1
            for part in range(12):
                group[f"observations/_index_{part}"] = np.full((rows, 1), float(part))
            assert name.startswith("episode_")
    assert (read_minari(folder).observation == np.arange(12.0, dtype=np.float32)).all()


def test_what_is_not_d4rl(tmp_path):
    for changed, match in (
        ({"rewards": None}, "missing"),
        ({"rewards": np.zeros(6)}, "length"),
        ({"terminals": np.zeros(7, bool), "timeouts": None}, "complete episode"),
        ({"actions": np.array([b"x"] * 7)}, "numbers"),
    ):
        path, _ = flat(tmp_path, **changed)
        with pytest.raises(SampleInvalid, match=match):
            read_d4rl(path)
    path, _ = flat(tmp_path, rewards=np.array([0, np.nan, 0, 0, 0, 0, 0]))
    with pytest.raises(SampleInvalid, match="reward of episode 0, step 1"):
        read_d4rl(path)
    (tmp_path / "text.hdf5").write_text("no")
    for name in ("text.hdf5", "none.hdf5"):
        with pytest.raises(StoreUnavailable):
            read_d4rl(tmp_path / name)
    path, _ = flat(tmp_path, rewards=None)
    with h5py.File(path, "a") as file:
        file["rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")
    with pytest.raises(SampleInvalid):
        read_d4rl(path)


def minari(folder, data, *, nested=False):
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "metadata.json").write_text(json.dumps({"data_format": "hdf5"}))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for number, first in enumerate(data.starts):
            rows, group = slice(first, first + data.lengths[number]), file.create_group(f"episode_{number}")
            seen = np.concatenate([data.observation[rows], data.final[[number]]])
            if nested:
                group["observations/a"], group["observations/b"] = seen[:, :1], seen[:, 1:]
            else:
                group["observations"] = seen
            group["actions"], group["rewards"] = data.action[rows], data.reward[rows]
            ends = np.arange(data.lengths[number]) == data.lengths[number] - 1
            group["terminations"] = ends & data.terminated[number]
            group["truncations"] = ends & ~data.terminated[number]
    return folder


@pytest.mark.parametrize("nested", [False, True])
def test_minari_in_hdf5(tmp_path, nested):
    data = ragged(*range(1, 13), terminated=[True, False] * 6)
    folder = minari(tmp_path / "set", data, nested=nested)
    assert read_minari(folder).digest == data.digest, "episode 10 comes after episode 2"
    assert read_minari(folder / "data").digest == data.digest


def test_minari_in_arrow(tmp_path):
    data = ragged(3, 2, terminated=[False, True])
    (tmp_path / "metadata.json").write_text(json.dumps({"data_format": "arrow"}))
    for number, first in enumerate(data.starts):
        n = int(data.lengths[number])
        rows, ends = slice(first, first + n), [False] * (n - 1) + [True]
        columns = {
            "observations": numbers([*data.observation[rows], data.final[number]]),
            "actions": numbers([*data.action[rows], np.zeros(2, np.float32)]),
            "rewards": [*data.reward[rows].tolist(), 0.0],
            "terminations": [*(end and bool(data.terminated[number]) for end in ends), False],
            "truncations": [*(end and not data.terminated[number] for end in ends), False],
        }
        ds.write_dataset(
            pa.table({**columns, "episode_id": [number] * (n + 1)}),
            tmp_path,
            format="arrow",
            partitioning=["episode_id"],
            existing_data_behavior="overwrite_or_ignore",
        )
    assert read_minari(tmp_path).digest == data.digest
    (tmp_path / "1" / "part-0.arrow").write_bytes(b"torn")
    with pytest.raises(SampleInvalid, match="cannot be read"):
        read_minari(tmp_path)


def numbers(rows):
    """A column of rows of equal length, as Minari writes one."""
    array = np.stack(rows)
    return pa.FixedSizeListArray.from_arrays(array.ravel(), array.shape[1])


def test_what_is_not_minari(tmp_path):
    with pytest.raises(StoreUnavailable):
        read_minari(tmp_path)
    folder = minari(tmp_path / "set", concatenate_episodes([ragged(2)]))
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = np.zeros(3)
    with pytest.raises(SampleInvalid, match="arrays of episode"):
        read_minari(folder)
    (folder / "data" / "metadata.json").write_text(json.dumps({"data_format": "zip"}))
    with pytest.raises(SampleInvalid, match="unknown form"):
        read_minari(folder)
    (folder / "data" / "metadata.json").write_text("{")
    with pytest.raises(SampleInvalid, match="JSON"):
        read_minari(folder)


def test_one_ragged_episode_is_named_and_the_others_are_read(tmp_path):
    data = ragged(2, 3, 1)
    folder = minari(tmp_path / "set", data)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1/rewards"]
        file["episode_1/rewards"] = np.zeros(7)
    problems = []
    assert read_minari(folder, problems=problems).digest == data.select([0, 2]).digest
    assert [problem.where for problem in problems] == ["set/episode_1"]
    assert "arrays of episode episode_1 differ in length" in problems[0].what


def hdf5(tmp_path, name, array):
    """A file of D4RL's layout in which one array is another."""
    path, _ = flat(tmp_path)
    with h5py.File(path, "a") as file:
        if name in file:
            del file[name]
        file[name] = array
    return path


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("rewards", 1.0),
        ("rewards", np.zeros((7, 2))),
        ("terminals", np.zeros((7, 2), bool)),
        ("observations", np.zeros((7, 0))),
        ("next_observations", np.zeros((2, 3))),
        ("terminals", np.full(7, 0.5)),
        ("actions", h5py.Empty("f")),
    ],
)
def test_arrays_of_other_shapes_are_refused(tmp_path, name, array):
    with pytest.raises(SampleInvalid):
        read_d4rl(hdf5(tmp_path, name, array))


def test_choices_are_whole_numbers(tmp_path):
    chosen = np.array([0, 1, 2, 1, 0, 0, 0], float)
    assert read_d4rl(hdf5(tmp_path, "actions", chosen), actions=3).action.tolist() == [0, 1, 2, 1]
    with pytest.raises(SampleInvalid, match="number cannot be converted exactly"):
        read_d4rl(hdf5(tmp_path, "actions", chosen + 0.5), actions=3)


def test_a_small_file_that_describes_endless_data(tmp_path):
    path, _ = flat(tmp_path)
    with h5py.File(path, "a") as file:
        del file["observations"]
        file.create_dataset("observations", (10**12, 3), "f8", chunks=(1024, 3))
    with pytest.raises(SampleInvalid, match="is too large for the file"):
        read_d4rl(path)
    with h5py.File(path, "a") as file:
        del file["observations"]
        group = file.create_group("observations")
        group["again"] = group
    with pytest.raises(SampleInvalid, match="is empty, or its groups are nested too deeply"):
        read_d4rl(path)


def test_episodes_of_other_files_are_refused(tmp_path):
    folder = minari(tmp_path / "set", ragged(2, 3))
    path = folder / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file, h5py.File(folder / "data" / "other.hdf5", "w") as other:
        file.copy("episode_1", other)
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink("other.hdf5", "/episode_1")
    with pytest.raises(SampleInvalid, match="is stored outside the file"):
        read_minari(folder)
    for wrong in (np.zeros(3), None):
        with h5py.File(path, "a") as file:
            del file["episode_1"]
            if wrong is not None:
                file["episode_1"] = wrong
            else:
                file.copy("episode_0", "episode_1")
                del file["episode_1/terminations"]
                file["episode_1/terminations"] = np.zeros(0, bool)
        with pytest.raises(SampleInvalid):
            read_minari(folder)


def arrow(tmp_path, table, *, rows=2, **options):
    """A data set of Minari whose only episode is this table, by its own writer's layout."""
    (tmp_path / "metadata.json").write_text(json.dumps({"data_format": "arrow"}))
    (tmp_path / "0").mkdir(exist_ok=True)
    path = tmp_path / "0" / "part-0.arrow"
    with pa.OSFile(str(path), "wb") as sink:
        writer = pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options))
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
        writer.close()
    return path


def columns(**changed):
    flags = {"terminations": [False, True, False], "truncations": [False] * 3}
    return pa.table(
        {
            "observations": numbers([np.ones(2)] * 3),
            "actions": [0.5, -0.5, 0.0],
            "rewards": [1.0, 2.0, 0.0],
            **flags,
            **changed,
        }
    )


def test_arrow_in_several_batches(tmp_path):
    arrow(tmp_path, columns(actions=[[0.5], [-0.5], [0.0]]))
    found = read_minari(tmp_path)
    assert found.reward.tolist() == [1.0, 2.0] and found.action.tolist() == [[0.5], [-0.5]] and found.terminated.all()


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_arrow_is_refused_before_it_is_unpacked(tmp_path, codec):
    rows = 1_000_000  # 48 MB of zeros in a few kB
    zeros = pa.array(np.zeros(rows))
    table = pa.table(
        {
            "observations": zeros,
            "actions": zeros,
            "rewards": zeros,
            "terminations": np.zeros(rows, bool),
            "truncations": np.zeros(rows, bool),
        }
    ).combine_chunks()
    path = arrow(tmp_path, table, rows=rows, compression=codec)
    before = pa.total_allocated_bytes()
    with pytest.raises(SampleInvalid, match="compressed"):
        read_minari(tmp_path)
    assert pa.total_allocated_bytes() - before < 2 * path.stat().st_size + 4_000_000


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", "y", "z"]),
        pa.nulls(3),
        pa.array([1.0, 1.0, 2.0]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.array([1.0])),
        pa.array([[1.0], [1.0, 2.0], [1.0]]),
        pa.array([[1.0], None, [1.0]]),
        pa.array([[], [], []], pa.list_(pa.float64(), 0)),
    ],
)
def test_arrow_columns_that_are_no_numbers(tmp_path, column):
    arrow(tmp_path, columns(observations=column))
    with pytest.raises(SampleInvalid):
        read_minari(tmp_path)


def test_arrow_lists_that_repeat_themselves(tmp_path):
    """Borders that go back and forth would make a large array of a small file."""
    borders = pa.array([0, 1000, 0, 1000], pa.int32())
    again = pa.Array.from_buffers(
        pa.list_(pa.float64()), 3, [None, borders.buffers()[1]], children=[pa.array(np.zeros(1000))]
    )
    arrow(tmp_path, columns(observations=again))
    with pytest.raises(SampleInvalid):
        read_minari(tmp_path)


def test_an_end_that_is_not_a_number_is_no_end(tmp_path):
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        file["observations"], file["actions"] = np.zeros((3, 1)), np.zeros((3, 1))
        file["rewards"], file["terminals"] = np.zeros(3), np.array([0.0, np.nan, 1.0])
    with pytest.raises(SampleInvalid, match="number cannot be converted exactly"):
        read_d4rl(tmp_path / "d4rl.hdf5")
