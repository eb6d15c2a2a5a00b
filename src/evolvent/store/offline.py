"""Published offline data from local files: the layouts of D4RL and Minari. Nothing is downloaded and nothing unpickled.

D4RL (arXiv 2004.07219) is one HDF5 file of flat arrays with flags where episodes end. Minari is a folder with
`metadata.json` and `main_data.hdf5` (a group an episode), or Arrow files (a folder an episode). `store.minari` writes
the latter's HDF5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, MissingExtra, Problem, SampleInvalid, StoreUnavailable
from evolvent.store.episodes import Episodes, concatenate_episodes

__all__ = ["read_d4rl", "read_minari"]

_EPISODE = re.compile(r"episode_[0-9]{1,12}")
_TUPLE_PART = re.compile(r"(_index_)?[0-9]{1,9}")  # how Minari names the parts of a tuple
_FLAT_ARRAYS = ("observations", "actions", "rewards", "terminals")
_BASE_BYTES, _BYTES_PER_FILE_BYTE = (
    1 << 26,
    100,
)  # a file may hold so many bytes of arrays, and so many for each byte that it has
_ARROW_MAGIC, _RECORD_BATCH = b"ARROW1", 3  # what an Arrow file begins with; the kind of message that holds rows
_MAX_GROUP_DEPTH = 8  # groups in groups of arrays
_EPISODE_ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")


def read_d4rl(path: Path, *, scale: float = 1.0, actions: int = 0, horizon: int | None = None) -> Episodes:
    """Reads a D4RL file.

    Without `next_observations` in the file, the last decision of a truncated episode is left out: its result is not
    known, and its own observation becomes the final one. Decisions after the last end are left out, too, and so are
    episodes that would be empty.

    Args:
        scale: actions are divided by it, so that they lie in -1..1.
        actions: number of discrete actions; 0: actions are numbers.
        horizon: the time limit of the environment in steps. Only files without `timeouts` (D4RL's older layout) need
            it: there, an episode is cut where it has so many steps, as D4RL's own reader does it.
    Raises:
        ConfigError: an invalid horizon.
        MissingExtra: h5py is not installed. StoreUnavailable: no such file, or not HDF5. SampleInvalid: arrays that are
            missing, do not fit each other or hold numbers that are not finite; no whole episode; neither `timeouts` nor
            a horizon.
    """
    if horizon is not None and (type(horizon) is not int or horizon < 1):
        raise ConfigError("invalid horizon", value=horizon, expected="a whole number of steps of at least 1")
    with _open_hdf5(path) as file:
        missing = [name for name in _FLAT_ARRAYS if name not in file]
        if missing:
            raise SampleInvalid(f"{path} does not have the layout of D4RL", value=f"missing {', '.join(missing)}")
        budget = _ByteBudget(path)
        flat = {name: _read_array(file, name, budget) for name in _FLAT_ARRAYS}
        timeouts = _read_array(file, "timeouts", budget) if "timeouts" in file else None
        next_observations = _read_array(file, "next_observations", budget) if "next_observations" in file else None
    sizes = {
        name: len(array)
        for name, array in {**flat, "timeouts": timeouts, "next_observations": next_observations}.items()
        if array is not None
    }
    if len(set(sizes.values())) != 1:
        raise SampleInvalid(f"arrays of {path} differ in length", value=sizes)
    terminals = _to_column(flat["terminals"], np.bool_)
    if timeouts is not None:
        ends = np.flatnonzero(terminals | _to_column(timeouts, np.bool_))
    elif horizon is not None:
        ends = _find_ends(terminals, horizon)
    elif terminals.any():
        raise SampleInvalid(
            f"{path} does not say where episodes met their time limit",
            value="no timeouts",
            expected="timeouts in the file, or the horizon of the environment",
            hint="pass horizon=1000 for D4RL's locomotion tasks, or the limit of yours",
        )
    else:
        ends = np.zeros(0, np.intp)
    episodes, first = [], 0
    for last in ends.tolist():
        has_final = next_observations is not None or bool(terminals[last])
        stop = last + 1 if has_final else last
        final = next_observations[last] if next_observations is not None else flat["observations"][last]
        if stop > first:
            rows = slice(first, stop)
            episodes.append(
                _make_episode(
                    flat["observations"][rows],
                    final,
                    flat["actions"][rows],
                    flat["rewards"][rows],
                    terminated=bool(terminals[last]),
                    action_spec=(scale, actions),
                )
            )
        first = last + 1
    return _concatenate(episodes, path)


def _find_ends(terminals: NDArray[np.bool_], horizon: int) -> NDArray[np.intp]:
    """Finds the last decisions of episodes that end at a terminal or after so many steps.

    >>> _find_ends(np.array([0, 0, 0, 1, 0, 0], bool), 3)
    array([2, 3])
    """
    ends, first = [], 0
    for terminal in np.flatnonzero(terminals).tolist():
        ends += [*range(first + horizon - 1, terminal, horizon), terminal]
        first = terminal + 1
    ends += range(first + horizon - 1, len(terminals), horizon)
    return np.array(ends, np.intp)


def read_minari(
    folder: Path, *, scale: float = 1.0, actions: int = 0, problems: list[Problem] | None = None
) -> Episodes:
    """Reads a Minari data set: the folder that holds `metadata.json`, or the one above it that holds `data`.

    Observations that are dictionaries or tuples of arrays (in HDF5) are joined as Gymnasium flattens them: dictionaries
    in the order of their names, tuples in their own order.

    Args:
        scale: as in `read_d4rl`.
        actions: as in `read_d4rl`.
        problems: receives a problem for every episode whose arrays do not fit each other, and the others are read;
            None: such an episode is an error.
    Raises:
        The errors of `read_d4rl`.
    """
    inner = folder / "data" if (folder / "data" / "metadata.json").is_file() else folder
    try:
        metadata = json.loads((inner / "metadata.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreUnavailable(f"{folder} does not hold a Minari data set", expected="metadata.json") from error
    except (ValueError, RecursionError) as error:
        raise SampleInvalid(f"{inner / 'metadata.json'} is not valid JSON", value=str(error)) from error
    data_format = metadata.get("data_format", "hdf5") if isinstance(metadata, dict) else None
    if data_format not in ("hdf5", "arrow"):
        raise SampleInvalid(f"{folder} has an unknown format", value=data_format, expected="hdf5 or arrow")
    source = _read_minari_groups(inner / "main_data.hdf5") if data_format == "hdf5" else _read_minari_tables(inner)
    episodes = list[Episodes]()
    for name, arrays in source:
        try:
            episodes.append(_parse_minari_episode(name, arrays, (scale, actions)))
        except SampleInvalid as error:
            if problems is None:
                raise
            problems.append(Problem(f"{folder.name}/{name}", str(error), "the episode is left out"))
    return _concatenate(episodes, folder)


def _read_minari_groups(path: Path) -> Iterator[tuple[str, Mapping[str, NDArray[Any]]]]:
    with _open_hdf5(path) as file:
        budget = _ByteBudget(path)
        names = [name for name in file if _EPISODE.fullmatch(name)]
        for name in sorted(names, key=lambda name: int(name.split("_")[1])):
            group = _get_own_object(file, name, budget)
            missing = [
                array_name for array_name in _EPISODE_ARRAYS if not hasattr(group, "keys") or array_name not in group
            ]
            if missing:
                raise SampleInvalid(f"{name} of {path} is incomplete", value=f"missing {', '.join(missing)}")
            yield name, {array_name: _read_array(group, array_name, budget) for array_name in _EPISODE_ARRAYS}


def _read_minari_tables(folder: Path) -> Iterator[tuple[str, Mapping[str, NDArray[Any]]]]:
    """Yields each episode: a folder named by its number, with Arrow files whose last row holds the final
    observation.
    """
    import pyarrow as pa

    episodes = [entry for entry in folder.iterdir() if entry.name.isdecimal()]
    for episode in sorted(episodes, key=lambda entry: int(entry.name)):
        try:
            parts = [_read_arrow(path) for path in sorted(episode.glob("*.arrow"))]
            arrays = {name: np.concatenate([part[name] for part in parts]) for name in _EPISODE_ARRAYS}
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
            raise SampleInvalid(f"{episode} cannot be read", value=str(error)) from error
        yield episode.name, {name: array if name == "observations" else array[:-1] for name, array in arrays.items()}


def _read_arrow(path: Path) -> dict[str, NDArray[Any]]:
    """Reads the columns of an Arrow file, [N, ...] each, message by message; compressed data is refused before
    unpacking.
    """
    import pyarrow as pa

    raw = pa.py_buffer(path.read_bytes())
    if raw.slice(0, len(_ARROW_MAGIC)).to_pybytes() != _ARROW_MAGIC:
        raise pa.ArrowInvalid("not an Arrow file")
    stream = raw.slice(8)
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type == "dictionary" or _is_compressed(message.metadata.to_pybytes()):
            raise SampleInvalid(f"{path} is compressed or dictionary-encoded", expected="plain columns")
    table = pa.ipc.open_stream(stream).read_all().select(list(_EPISODE_ARRAYS))
    for field in table.schema:
        _check_numeric(field.type, f"{field.name} of {path}")
    table.validate(full=True)  # borders of lists that go back and forth would repeat the same numbers for ever
    budget = _ByteBudget(path)
    return {name: _to_array(table[name].combine_chunks(), name, budget) for name in _EPISODE_ARRAYS}


def _is_compressed(metadata: bytes) -> bool:
    """Returns whether an Arrow message has compressed buffers (Message.fbs: message field 2, record batch field 3)."""

    def field_offset(table: int, field: int) -> int:
        vtable = table - int.from_bytes(metadata[table : table + 4], "little", signed=True)
        slot = 4 + 2 * field
        size = int.from_bytes(metadata[vtable : vtable + 2], "little")
        offset = int.from_bytes(metadata[vtable + slot : vtable + slot + 2], "little") if slot < size else 0
        return table + offset if offset else 0

    message = int.from_bytes(metadata[:4], "little")
    kind, header = field_offset(message, 1), field_offset(message, 2)
    if not kind or metadata[kind] != _RECORD_BATCH or not header:
        return False
    return field_offset(header + int.from_bytes(metadata[header : header + 4], "little"), 3) != 0


def _check_numeric(arrow_type: Any, label: str) -> None:
    """Refuses columns that are neither numbers nor lists of numbers."""
    import pyarrow as pa

    for _ in range(_MAX_GROUP_DEPTH):
        if pa.types.is_floating(arrow_type) or pa.types.is_integer(arrow_type) or pa.types.is_boolean(arrow_type):
            return
        if pa.types.is_fixed_size_list(arrow_type) and arrow_type.list_size < 1:
            break
        if not (
            pa.types.is_list(arrow_type)
            or pa.types.is_large_list(arrow_type)
            or pa.types.is_fixed_size_list(arrow_type)
        ):
            break
        arrow_type = arrow_type.value_type
    raise SampleInvalid(f"{label} does not hold numbers", value=str(arrow_type), expected="numbers, or lists of them")


def _to_array(column: Any, name: str, budget: _ByteBudget) -> NDArray[Any]:
    """Converts a column of numbers or of equally long lists to float64 [N, ...]."""
    import pyarrow as pa

    shape = [len(column)]
    while not (
        pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    ):
        if column.null_count:
            raise ValueError(f"{name} has a row without numbers")
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False)) if len(column) else np.ones(1)
        if len(lengths) != 1:
            raise ValueError(f"rows of {name} differ in length")
        shape.append(int(lengths[0]))
        column = column.flatten()
    budget.spend(name, 8 * len(column))
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64).reshape(shape)


def _parse_minari_episode(name: str, arrays: Mapping[str, NDArray[Any]], action_spec: tuple[float, int]) -> Episodes:
    observations, steps = arrays["observations"], len(arrays["rewards"])
    if not steps or len(observations) != steps + 1 or {len(arrays[name]) for name in _EPISODE_ARRAYS[1:]} != {steps}:
        raise SampleInvalid(
            f"arrays of episode {name} differ in length",
            value={key: len(array) for key, array in arrays.items()},
            expected="one observation more than actions, rewards and ends",
        )
    return _make_episode(
        observations[:-1],
        observations[-1],
        arrays["actions"],
        arrays["rewards"],
        terminated=bool(_to_column(arrays["terminations"], np.bool_)[-1]),
        action_spec=action_spec,
    )


def _make_episode(
    observation: NDArray[Any],
    final: NDArray[Any],
    action: NDArray[Any],
    reward: NDArray[Any],
    *,
    terminated: bool,
    action_spec: tuple[float, int],
) -> Episodes:
    scale, actions = action_spec
    steps = len(reward)
    if not observation.size or not action.size:
        raise SampleInvalid("observations or actions have no numbers", value=(observation.shape, action.shape))
    actions_taken = _to_column(action, np.int64) if actions else (action.reshape(steps, -1) / scale).astype(np.float32)
    return Episodes(
        observation=observation.reshape(steps, -1).astype(np.float32),
        final=final.reshape(1, -1).astype(np.float32),
        action=actions_taken,
        reward=_to_column(reward, np.float64),
        lengths=np.array([steps], np.int64),
        terminated=np.array([terminated]),
        actions=actions,
    )


def _to_column(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Converts an array to [N] of this dtype, which must not change a number."""
    if array.size != len(array):
        raise SampleInvalid("more than one number per step", value=array.shape, expected="[N]")
    with np.errstate(invalid="ignore"):
        column: NDArray[Any] = array.ravel().astype(dtype)
    changed = column != array.ravel()
    if column.dtype.kind == "f":
        changed &= ~np.isnan(array.ravel())  # `Episodes` says where it is
    if changed.any():
        raise SampleInvalid(
            "number cannot be converted exactly", value=float(array.ravel()[changed][0]), expected=np.dtype(dtype).name
        )
    return column


def _concatenate(episodes: list[Episodes], path: Path) -> Episodes:
    if not episodes:
        raise SampleInvalid(f"{path} does not hold a complete episode")
    return concatenate_episodes(episodes)


@contextmanager
def _open_hdf5(path: Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra("offline", "data in HDF5") from error
    if not path.exists():
        raise StoreUnavailable(f"{path} does not exist", hint="check the path")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read as HDF5", value=str(error)) from error
    with file:
        yield file


class _ByteBudget:
    """The number of array bytes that may still be read: a small file can describe, or repeat, endlessly many."""

    def __init__(self, path: Path) -> None:
        self.path, self._left = path, _BASE_BYTES + _BYTES_PER_FILE_BYTE * path.stat().st_size

    def spend(self, name: str, size: int) -> None:
        """Takes bytes from the budget; raises SampleInvalid if they exceed it."""
        if size > self._left:
            raise SampleInvalid(
                f"{name} of {self.path} is too large for the file",
                value=f"{size} bytes",
                expected=f"at most {self._left} more",
            )
        self._left -= size


def _get_own_object(group: Any, name: str, budget: _ByteBudget) -> Any:
    """Returns an object of this very file by its name."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise SampleInvalid(f"{name} of {budget.path} is stored outside the file", expected="data inside the file")
    return group[name]


def _sort_parts(names: Iterable[str]) -> list[str]:
    """Sorts the names of a group's parts: those of tuples by their number, all others as texts.

    >>> _sort_parts(["_index_10", "_index_9"]), _sort_parts(["b", "a"])
    (['_index_9', '_index_10'], ['a', 'b'])
    """
    numbers = {name: _TUPLE_PART.fullmatch(name) for name in names}
    if all(numbers.values()):
        return sorted(numbers, key=lambda name: int(name.rpartition("_")[2]))
    return sorted(numbers)


def _read_array(group: Any, name: str, budget: _ByteBudget, *, depth: int = 0) -> NDArray[Any]:
    """Reads a data set of this very file, or a group of them side by side."""
    import h5py

    path = budget.path
    try:
        node = _get_own_object(group, name, budget)
        if isinstance(node, h5py.Group):
            if depth == _MAX_GROUP_DEPTH or not len(node):
                raise SampleInvalid(f"{name} of {path} is empty, or its groups are nested too deeply")
            parts = [_read_array(node, child_name, budget, depth=depth + 1) for child_name in _sort_parts(node)]
            if len({len(part) for part in parts}) != 1 or not len(parts[0]):
                raise SampleInvalid(f"the parts of {name} of {path} differ in length", value=[len(p) for p in parts])
            return np.concatenate([part.reshape(len(part), -1) for part in parts], -1)
        if not isinstance(node, h5py.Dataset) or node.dtype.kind not in "fiub" or node.is_virtual or node.external:
            raise SampleInvalid(f"{name} of {path} does not hold numbers", value=str(node))
        if not node.shape:
            raise SampleInvalid(f"{name} of {path} is a single number or empty", value=str(node))
        budget.spend(name, node.nbytes)
        array: NDArray[Any] = node[...]
    except (OSError, RuntimeError, KeyError) as error:
        raise SampleInvalid(f"{name} of {path} cannot be read", value=str(error)) from error
    return array
