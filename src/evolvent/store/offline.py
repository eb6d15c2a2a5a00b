"""Published offline data from local files: the layouts of D4RL and Minari. Nothing is downloaded and nothing unpickled.

D4RL (arXiv 2004.07219) is one HDF5 file of flat arrays with flags where episodes end. Minari is a folder with
`metadata.json` and `main_data.hdf5` (a group an episode), or Arrow files (a folder an episode).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import MissingExtra, SampleInvalid, StoreUnavailable
from evolvent.store.episodes import Episodes, joined

__all__ = ["read_d4rl", "read_minari"]

_EPISODE = re.compile(r"episode_[0-9]{1,12}")
_FLAT = ("observations", "actions", "rewards", "terminals")
_ROOM, _DENSE = 1 << 26, 100  # a file may hold so many bytes of arrays, and so many for each byte that it has
_ARROW, _BATCH = b"ARROW1", 3  # what an Arrow file begins with; the kind of message that holds rows
_DEEP = 8  # groups in groups of arrays
_EACH = ("observations", "actions", "rewards", "terminations", "truncations")


def read_d4rl(path: Path, *, scale: float = 1.0, actions: int = 0) -> Episodes:
    """Read one of D4RL's files.

    Where it holds no `next_observations`, the last decision of an episode that was cut is left out: what came of it is
    not known, and its own observation becomes the final one. So is what follows the last end. An episode of which
    nothing is left is left out.

    Args:
        scale: actions are divided by it, so that they lie in -1..1. actions: how many discrete ones there are.
    Raises:
        MissingExtra: h5py is not installed. StoreUnavailable: no such file, or none of HDF5. SampleInvalid: arrays that
            are missing, do not fit each other or hold numbers that are not finite; no whole episode.
    """
    with _opened(path) as file:
        missing = [name for name in _FLAT if name not in file]
        if missing:
            raise SampleInvalid(f"{path} is not of D4RL's layout", value=f"without {', '.join(missing)}")
        room = _Room(path)
        flat = {name: _array(file, name, room) for name in _FLAT}
        cut = _array(file, "timeouts", room) if "timeouts" in file else np.zeros(len(flat["rewards"]), np.bool_)
        after = _array(file, "next_observations", room) if "next_observations" in file else None
    sizes = {
        name: len(array)
        for name, array in {**flat, "timeouts": cut, "next_observations": after}.items()
        if array is not None
    }
    if len(set(sizes.values())) != 1:
        raise SampleInvalid(f"arrays of {path} differ in length", value=sizes)
    over, cut = _column(flat["terminals"], np.bool_), _column(cut, np.bool_)
    ends = np.flatnonzero(over | cut)
    parts, first = [], 0
    for last in ends.tolist():
        known = after is not None or bool(over[last])
        stop = last + 1 if known else last
        final = after[last] if after is not None else flat["observations"][last]
        if stop > first:
            rows = slice(first, stop)
            parts.append(
                _episode(
                    flat["observations"][rows],
                    final,
                    flat["actions"][rows],
                    flat["rewards"][rows],
                    terminated=bool(over[last]),
                    how=(scale, actions),
                )
            )
        first = last + 1
    return _whole(parts, path)


def read_minari(folder: Path, *, scale: float = 1.0, actions: int = 0) -> Episodes:
    """Read a data set of Minari: the folder that holds `metadata.json`, or the one above it that holds `data`.

    Observations that are dictionaries or tuples of arrays (in HDF5) are joined in the order of their names.

    Args:
        scale, actions: as `read_d4rl` takes them.
    Raises:
        What `read_d4rl` raises.
    """
    inner = folder / "data" if (folder / "data" / "metadata.json").is_file() else folder
    try:
        metadata = json.loads((inner / "metadata.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreUnavailable(f"{folder} holds no data set of Minari", expected="metadata.json") from error
    except (ValueError, RecursionError) as error:
        raise SampleInvalid(f"{inner / 'metadata.json'} is no JSON", value=str(error)) from error
    form = metadata.get("data_format", "hdf5") if isinstance(metadata, dict) else None
    if form not in ("hdf5", "arrow"):
        raise SampleInvalid(f"{folder} is of an unknown form", value=form, expected="hdf5 or arrow")
    source = _minari_groups(inner / "main_data.hdf5") if form == "hdf5" else _minari_tables(inner)
    return _whole([_minari_episode(name, found, (scale, actions)) for name, found in source], folder)


def _minari_groups(path: Path) -> Iterator[tuple[str, Mapping[str, NDArray[Any]]]]:
    with _opened(path) as file:
        room = _Room(path)
        names = [name for name in file if _EPISODE.fullmatch(name)]
        for name in sorted(names, key=lambda name: int(name.split("_")[1])):
            group = _own(file, name, room)
            missing = [each for each in _EACH if not hasattr(group, "keys") or each not in group]
            if missing:
                raise SampleInvalid(f"{name} of {path} is not whole", value=f"without {', '.join(missing)}")
            yield name, {each: _array(group, each, room) for each in _EACH}


def _minari_tables(folder: Path) -> Iterator[tuple[str, Mapping[str, NDArray[Any]]]]:
    """Each episode is a folder named by its number, with Arrow files whose last row holds the final observation."""
    import pyarrow as pa

    episodes = [each for each in folder.iterdir() if each.name.isdecimal()]
    for episode in sorted(episodes, key=lambda each: int(each.name)):
        try:
            parts = [_arrow(path) for path in sorted(episode.glob("*.arrow"))]
            found = {name: np.concatenate([part[name] for part in parts]) for name in _EACH}
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
            raise SampleInvalid(f"{episode} cannot be read", value=str(error)) from error
        yield episode.name, {name: array if name == "observations" else array[:-1] for name, array in found.items()}


def _arrow(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of an Arrow file, `[N, ...]` each. Read is the stream inside the file, piece by piece, so that what
    is compressed is refused before it is unpacked."""
    import pyarrow as pa

    raw = pa.py_buffer(path.read_bytes())
    if raw.slice(0, len(_ARROW)).to_pybytes() != _ARROW:
        raise pa.ArrowInvalid("no Arrow file")
    stream = raw.slice(8)
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type == "dictionary" or _compressed(message.metadata.to_pybytes()):
            raise SampleInvalid(f"{path} is compressed, or encoded by a dictionary", expected="plain columns")
    table = pa.ipc.open_stream(stream).read_all().select(list(_EACH))
    for field in table.schema:
        _plain(field.type, f"{field.name} of {path}")
    table.validate(full=True)  # borders of lists that go back and forth would repeat the same numbers for ever
    room = _Room(path)
    return {name: _numbers(table[name].combine_chunks(), name, room) for name in _EACH}


def _compressed(metadata: bytes) -> bool:
    """Whether a piece of an Arrow stream says that its buffers are compressed (Message.fbs: field 2 of a message is its
    header, field 3 of a batch of rows the compression)."""

    def at(table: int, field: int) -> int:
        vtable = table - int.from_bytes(metadata[table : table + 4], "little", signed=True)
        slot = 4 + 2 * field
        size = int.from_bytes(metadata[vtable : vtable + 2], "little")
        offset = int.from_bytes(metadata[vtable + slot : vtable + slot + 2], "little") if slot < size else 0
        return table + offset if offset else 0

    message = int.from_bytes(metadata[:4], "little")
    kind, header = at(message, 1), at(message, 2)
    if not kind or metadata[kind] != _BATCH or not header:
        return False
    return at(header + int.from_bytes(metadata[header : header + 4], "little"), 3) != 0


def _plain(kind: Any, where: str) -> None:
    """Refuse columns that are no numbers, and no lists of them of one length or of their own."""
    import pyarrow as pa

    for _ in range(_DEEP):
        if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return
        if pa.types.is_fixed_size_list(kind) and kind.list_size < 1:
            break
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            break
        kind = kind.value_type
    raise SampleInvalid(f"{where} holds no numbers", value=str(kind), expected="numbers, or lists of them")


def _numbers(column: Any, name: str, room: _Room) -> NDArray[Any]:
    """`[N, ...]` float64 of a column of numbers or of equally long lists."""
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
    room.take(name, 8 * len(column))
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64).reshape(shape)


def _minari_episode(name: str, found: Mapping[str, NDArray[Any]], how: tuple[float, int]) -> Episodes:
    seen, steps = found["observations"], len(found["rewards"])
    if not steps or len(seen) != steps + 1 or {len(found[name]) for name in _EACH[1:]} != {steps}:
        raise SampleInvalid(
            f"episode {name} is ragged",
            value={key: len(array) for key, array in found.items()},
            expected="one observation more than all else",
        )
    return _episode(
        seen[:-1],
        seen[-1],
        found["actions"],
        found["rewards"],
        terminated=bool(_column(found["terminations"], np.bool_)[-1]),
        how=how,
    )


def _episode(
    observation: NDArray[Any],
    final: NDArray[Any],
    action: NDArray[Any],
    reward: NDArray[Any],
    *,
    terminated: bool,
    how: tuple[float, int],
) -> Episodes:
    scale, actions = how
    steps = len(reward)
    if not observation.size or not action.size:
        raise SampleInvalid("observations or actions of no numbers", value=(observation.shape, action.shape))
    taken = _column(action, np.int64) if actions else (action.reshape(steps, -1) / scale).astype(np.float32)
    return Episodes(
        observation=observation.reshape(steps, -1).astype(np.float32),
        final=final.reshape(1, -1).astype(np.float32),
        action=taken,
        reward=_column(reward, np.float64),
        lengths=np.array([steps], np.int64),
        terminated=np.array([terminated]),
        actions=actions,
    )


def _column(array: NDArray[Any], kind: Any) -> NDArray[Any]:
    """`[N]` of this dtype, which must not change a number."""
    if array.size != len(array):
        raise SampleInvalid("more than one number a step", value=array.shape, expected="[N]")
    with np.errstate(invalid="ignore"):
        found: NDArray[Any] = array.ravel().astype(kind)
    odd = found != array.ravel()
    if found.dtype.kind == "f":
        odd &= ~np.isnan(array.ravel())  # `Episodes` says where it is
    if odd.any():
        raise SampleInvalid(
            "a number that is none of its kind", value=float(array.ravel()[odd][0]), expected=np.dtype(kind).name
        )
    return found


def _whole(parts: list[Episodes], path: Path) -> Episodes:
    if not parts:
        raise SampleInvalid(f"{path} holds no whole episode")
    return joined(parts)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra("offline", "data in HDF5") from error
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read as HDF5", value=str(error)) from error
    with file:
        yield file


class _Room:
    """How many bytes of arrays may still be read from a file: a small one can describe, or repeat, endlessly many."""

    def __init__(self, path: Path) -> None:
        self.path, self._left = path, _ROOM + _DENSE * path.stat().st_size

    def take(self, name: str, size: int) -> None:
        """Take some of it; SampleInvalid where it is not there."""
        if size > self._left:
            raise SampleInvalid(
                f"{name} of {self.path} is out of all proportion to the file",
                value=f"{size} bytes",
                expected=f"at most {self._left} more",
            )
        self._left -= size


def _own(group: Any, name: str, room: _Room) -> Any:
    """What lies in this very file under a name."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise SampleInvalid(f"{name} of {room.path} lies in another file or place", expected="data of the file itself")
    return group[name]


def _array(group: Any, name: str, room: _Room, *, deep: int = 0) -> NDArray[Any]:
    """A data set of this very file, or a group of them side by side."""
    import h5py

    path = room.path
    try:
        found = _own(group, name, room)
        if isinstance(found, h5py.Group):
            if deep == _DEEP or not len(found):
                raise SampleInvalid(f"{name} of {path} is empty, or groups in groups without end")
            parts = [_array(found, each, room, deep=deep + 1) for each in sorted(found)]
            if len({len(part) for part in parts}) != 1 or not len(parts[0]):
                raise SampleInvalid(f"the parts of {name} of {path} differ in length", value=[len(p) for p in parts])
            return np.concatenate([part.reshape(len(part), -1) for part in parts], -1)
        if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "fiub" or found.is_virtual or found.external:
            raise SampleInvalid(f"{name} of {path} holds no numbers of its own", value=str(found))
        if not found.shape:
            raise SampleInvalid(f"{name} of {path} is a single number, or nothing", value=str(found))
        room.take(name, found.nbytes)
        array: NDArray[Any] = found[...]
    except (OSError, RuntimeError, KeyError) as error:
        raise SampleInvalid(f"{name} of {path} cannot be read", value=str(error)) from error
    return array
