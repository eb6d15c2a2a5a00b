"""The memory of steps: what others saw, thought and did, found by a text that is like theirs.

Source: TRAD (arXiv 2403.06221); with metadata as its key it retrieves whole episodes as Synapse (2306.07863) does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, HashMismatch, NonFinite, Problem, SampleInvalid, unknown
from evolvent.memory.encoders import Encoder, HashedNgrams
from evolvent.memory.index import FlatIndex, Index, Rows, unit_rows
from evolvent.memory.records import METADATA, THOUGHT, Demonstration, Hit, Key, StepRecord, demonstration
from evolvent.memory.saved import Kept, Looked, read_memory, write_memory
from evolvent.memory.tables import Tables, digest, readable
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory, canonical_json

__all__ = ["METADATA", "THOUGHT", "Added", "Demonstration", "Hit", "Key", "StepMemory", "StepRecord", "Where"]

Where = Mapping[str, str | Collection[str]]
Source = Store | Iterable[Trajectory | Demonstration]
_PROBE = "I took the mug 1 from the table 2. Next, I need to put it on the shelf 3."
_SAME = 0.999  # cosine of the probe's vectors: the same model on another machine differs in its last bits
_TEXTS = 1024  # embedded together
_COLUMNS = {"trajectory_id": "trajectory", "task_id": "task_id", "task": "task", "kind": "kind", "metadata": "metadata"}


@dataclass(frozen=True, slots=True)
class Added:
    """What a memory made of what it was handed.

    Args:
        episodes, steps: new ones. known: episodes that it had already.
        skipped: key -> new steps without a text for it, which are shown in windows and never found by that key.
        embedded: texts that the encoder was asked for; equal texts are embedded once.
    """

    episodes: int
    steps: int
    known: int
    skipped: Mapping[str, int]
    embedded: int


@dataclass(frozen=True, slots=True)
class _State:
    """Everything that `add` replaces at once."""

    tables: Tables
    owners: NDArray[np.int64]  # [N] the episode of each step
    rows: Mapping[Key, NDArray[np.int64]]  # [n] the steps that a key finds
    indexes: Mapping[Key, Index]


class StepMemory:
    """Steps of demonstrations and what finds them.

    Args:
        encoder: embeds texts; None: `HashedNgrams()`.
        key: what steps are found by; several, and the first is the one that `query` uses unless told.
        index: "flat" looks at every step, exactly; "usearch" is for some 200,000 and more (the extra `embed`).
        device: where an exact index computes; None: numpy.
    Raises:
        ConfigError: no key, one key twice, an encoder without a name, an unknown index.
        NonFinite, BatchMismatch: an encoder that does not give one finite vector for a text.
        MissingExtra: usearch is not installed.
    """

    def __init__(
        self,
        encoder: Encoder | None = None,
        key: Key | Sequence[Key] = THOUGHT,
        *,
        index: Literal["flat", "usearch"] = "flat",
        device: str | None = None,
    ) -> None:
        self.encoder: Encoder = HashedNgrams() if encoder is None else encoder
        self.keys = (key,) if isinstance(key, Key) else tuple(key)
        problems = []
        if not self.keys or len(set(self.keys)) < len(self.keys):
            problems.append(Problem("key", f"got {[one.name for one in self.keys]}", "one key, or several others"))
        if not isinstance(getattr(self.encoder, "id", None), str):
            problems.append(Problem("encoder", f"{self.encoder!r} has no name", "Named('my-model-1', call)"))
        if index not in ("flat", "usearch"):
            problems.append(Problem("index", f"got {index!r}", "flat or usearch"))
        if problems:
            raise ConfigError(problems)
        self._index, self._device = index, device
        self._probe = self._embedded([_PROBE])[0]
        nothing = np.zeros((0, len(self._probe)), np.float32)
        empty = {one: (np.zeros(0, np.int64), nothing) for one in self.keys}
        self._state = self._made(Tables.of([]), empty, {})

    @classmethod
    def from_trajectories(
        cls,
        store: Source,
        encoder: Encoder | None = None,
        key: Key | Sequence[Key] = THOUGHT,
        *,
        index: Literal["flat", "usearch"] = "flat",
        device: str | None = None,
    ) -> StepMemory:
        """A memory of a store, or of trajectories or demonstrations.

        Raises:
            ConfigError, NonFinite, BatchMismatch, MissingExtra: as the class. SampleInvalid: as `add`.
        """
        memory = cls(encoder, key, index=index, device=device)
        memory.add(store)
        return memory

    # ------------------------------------------------------------------ what it holds

    def __len__(self) -> int:
        """How many steps it holds, found or only shown."""
        return int(self._state.tables.steps.num_rows)

    @property
    def ids(self) -> list[str]:
        """The ids of its episodes, sorted."""
        return sorted(self._state.tables.place)

    def found_by(self, key: Key | None = None) -> int:
        """How many steps a key finds; None: the first key."""
        return len(self._state.rows[self._chosen(key)])

    def demonstration(self, trajectory_id: str) -> Demonstration:
        """An episode, whole.

        Raises:
            ConfigError: no such episode.
        """
        tables = self._state.tables
        if trajectory_id not in tables.place:
            raise ConfigError([unknown("trajectory", trajectory_id, list(tables.place)[:1000])])
        return tables.episode(tables.place[trajectory_id])

    @property
    def digest(self) -> str:
        """32 hex digits of what it holds and how it is found; the same in whatever order it came."""
        tables = self._state.tables
        parts = sorted(digest(found) for found in tables.all())
        text = canonical_json([self.encoder.id, [key.name for key in self.keys], parts])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    # ------------------------------------------------------------------ putting in

    def add(self, store: Source) -> Added:
        """Remember more episodes. What is known is not embedded again; where anything fails, nothing has changed.

        Args:
            store: a store, trajectories, or demonstrations (`records.demonstration` makes one of a trajectory, with an
                instruction, a kind or metadata of your own).
        Raises:
            SampleInvalid: an id that is known with another content. ConfigError: trajectories of arrays.
            NonFinite, BatchMismatch: an encoder that does not give one finite vector for a text.
        """
        handed = store.trajectories() if isinstance(store, Store) else store
        fresh: dict[str, Demonstration] = {}
        known, tables = 0, self._state.tables
        for one in handed:
            found = readable(one if isinstance(one, Demonstration) else demonstration(one))
            place = tables.place.get(found.trajectory_id)
            before = fresh.get(found.trajectory_id) or (None if place is None else tables.episode(place))
            if before is None:
                fresh[found.trajectory_id] = found
            elif digest(before) != digest(found):
                raise SampleInvalid(
                    "two episodes of one id differ", value=found.trajectory_id, hint="give one of them another id"
                )
            else:
                known += 1
        ordered = [fresh[name] for name in sorted(fresh)]
        state, skipped, embedded = self._with(Tables.of(ordered), ordered)
        self._state = state
        return Added(len(ordered), sum(len(one.steps) for one in ordered), known, skipped, embedded)

    def _with(self, more: Tables, found: Sequence[Demonstration]) -> tuple[_State, dict[str, int], int]:
        """The state with more episodes, the steps that each key skips, and how many texts were embedded."""
        begin = len(self)
        texts = {key: [text for one in found for text in key.texts(one)] for key in self.keys}
        distinct = list(dict.fromkeys(text for each in texts.values() for text in each if text))
        place = {text: at for at, text in enumerate(distinct)}
        vectors = self._embedded(distinct)
        new: dict[Key, tuple[NDArray[np.int64], Rows]] = {}
        for key, each in texts.items():
            rows = np.array([at for at, text in enumerate(each) if text], np.int64)
            new[key] = (rows + begin, vectors[[place[each[row]] for row in rows]])
        skipped = {key.name: sum(not text for text in each) for key, each in texts.items() if key.field != "metadata"}
        tables = self._state.tables.extended(more)
        return self._made(tables, new, self._state.indexes), skipped, len(distinct)

    def _made(
        self,
        tables: Tables,
        new: Mapping[Key, tuple[NDArray[np.int64], Rows]],
        old: Mapping[Key, Index],
        graphs: Mapping[Key, Path] | None = None,
    ) -> _State:
        order, rows, indexes = tables.order(), {}, {}
        for key, (fresh, vectors) in new.items():
            rows[key] = np.concatenate([self._state.rows[key], fresh]) if key in old else fresh
            place = order[rows[key]]
            if key in old:
                indexes[key] = old[key].extended(vectors, place)
                continue
            flat = FlatIndex([vectors], order=place, device=self._device)
            if self._index == "flat":
                indexes[key] = flat
            else:
                from evolvent.memory.approximate import UsearchIndex

                indexes[key] = UsearchIndex(flat, path=(graphs or {}).get(key))
        return _State(tables, tables.owners(), rows, indexes)

    def _embedded(self, texts: Sequence[str]) -> Rows:
        """`[N, D]` rows of length 1 for the texts."""
        parts: list[Rows] = []
        for at in range(0, len(texts), _TEXTS):
            some = texts[at : at + _TEXTS]
            try:
                made = unit_rows(self.encoder(some), what=f"a vector of the encoder {self.encoder.id!r}")
            except NonFinite as error:
                row = at + int(str(error.value).rpartition(" ")[2])
                raise NonFinite(error.what, value=f"row {row}, the text {texts[row][:80]!r}") from error
            width = parts[0].shape[1] if parts else made.shape[1]
            if made.shape != (len(some), width):
                raise BatchMismatch(
                    f"the encoder {self.encoder.id!r} does not give a vector for each text",
                    value=made.shape,
                    expected=(len(some), width),
                )
            parts.append(made)
        return np.concatenate(parts) if parts else np.zeros((0, len(self._probe)), np.float32)

    # ------------------------------------------------------------------ finding

    def query(
        self,
        texts: Sequence[str],
        k: int,
        *,
        by: Key | None = None,
        where: Where | None = None,
        without: Collection[str] = (),
        distinct: bool = True,
    ) -> list[list[Hit]]:
        """The `k` steps nearest to each text, best first; equal cosines by the lower (trajectory id, step).

        Args:
            texts: `[Q]` what is looked for; of each the part counts that the key cuts out.
            k: 1 or more. Fewer are given where there are fewer.
            by: which key; None: the memory's first.
            where: what the episodes must be: "kind", "task", "trajectory_id", "task_id" or "metadata" -> a value, or
                several of which one must fit.
            without: ids of trajectories or of tasks that must not be found: what is being played.
            distinct: at most one step of each trajectory, its best.
        Raises:
            ConfigError: an empty memory, k below 1, a key that it was not built with, an unknown filter.
            NonFinite, BatchMismatch: what the encoder gave for the texts.
        """
        key, state = self._chosen(by), self._state
        problems = [Problem("k", f"got {k}", "1 or more")] if k < 1 else []
        problems += [Problem("texts", "got one text", "a list of texts")] if isinstance(texts, str) else []
        problems += [unknown("filter", name, _COLUMNS) for name in where or () if name not in _COLUMNS]
        if not len(self):
            problems.append(Problem("memory", "got one without a step", "add trajectories first"))
        if problems:
            raise ConfigError(problems)
        cut = [key.cut(text) for text in texts]
        vectors = self._embedded(cut)
        rows, index = state.rows[key], state.indexes[key]
        allowed = self._allowed(where or {}, without)
        mask = None if allowed is None else allowed[state.owners[rows]]
        if not len(rows) or not len(texts) or (mask is not None and not mask.any()):
            return [[] for _ in texts]
        found = _nearest(index, vectors, k, owners=state.owners[rows] if distinct else None, allowed=mask)
        return [[Hit(self._record(int(rows[row]), key), score) for row, score in each] for each in found]

    def _chosen(self, key: Key | None) -> Key:
        chosen = self.keys[0] if key is None else key
        if chosen not in self.keys:
            raise ConfigError([unknown("key", chosen.name, [known.name for known in self.keys])])
        return chosen

    def _allowed(self, where: Where, without: Collection[str]) -> NDArray[np.bool_] | None:
        """`[E]` which episodes may be found; None: all."""
        episodes = self._state.tables.episodes
        wanted = [(_COLUMNS[name], [value] if isinstance(value, str) else list(value)) for name, value in where.items()]
        masks = [_among(episodes.column(column), values) for column, values in wanted]
        if without:
            masks += [~_among(episodes.column(column), list(without)) for column in ("trajectory", "task_id")]
        return np.logical_and.reduce(masks) if masks else None

    def _record(self, row: int, key: Key) -> StepRecord:
        """The record of a row of the table of steps, with the text that the key found it by."""
        tables, owner = self._state.tables, int(self._state.owners[row])
        values = {
            name: tables.episodes.column(_COLUMNS[name])[owner].as_py() for name in ("trajectory_id", "task", "kind")
        }
        seen = {name: tables.steps.column(name)[row].as_py() for name in tables.steps.column_names}
        text = tables.episodes.column("metadata")[owner].as_py() if key.field == "metadata" else seen[key.field]
        return StepRecord(**values, **seen, step=row - int(tables.first[owner]), key=key.cut(text))

    # ------------------------------------------------------------------ keeping

    def save(self, folder: Path) -> None:
        """Write the memory; `load` gives one that answers alike, and embeds nothing.

        Raises:
            NoSpace, StoreUnavailable: the folder then holds what it held before.
        """
        state = self._state
        looked = [
            Looked(key, state.rows[key], state.indexes[key].vectors(), state.indexes[key].graph()) for key in self.keys
        ]
        write_memory(folder, Kept(self.encoder.id, self._probe, state.tables, tuple(looked)))

    @classmethod
    def load(
        cls,
        folder: Path,
        encoder: Encoder | None = None,
        *,
        verify: bool = True,
        index: Literal["flat", "usearch"] | None = None,
        device: str | None = None,
    ) -> StepMemory:
        """A memory from its folder; its vectors are mapped into memory, not read.

        Args:
            encoder: the one that it was built with; None: `HashedNgrams` as it was.
            verify: compare the hashes of the files, which reads the vectors once.
            index: "flat" or "usearch"; None: as it was saved.
        Raises:
            HashMismatch: another encoder (by name, width, or the vector of the probe text), or a changed file; both
                sides are named. Incomplete, UnknownSchema, CheckpointError: as `saved.read_memory`.
            ConfigError: an encoder that is not handed in.
        """
        kept = read_memory(folder, verify=verify)
        encoder = HashedNgrams.of_id(kept.encoder) if encoder is None else encoder
        graphs = {one.key: one.graph for one in kept.looked if isinstance(one.graph, Path)}
        chosen = index or ("usearch" if graphs else "flat")
        memory = cls(encoder, [one.key for one in kept.looked], index=chosen, device=device)
        _same_encoder(memory.encoder.id, memory._probe, kept)
        new = {one.key: (one.rows, one.vectors) for one in kept.looked}
        memory._state = memory._made(kept.tables, new, {}, graphs)
        return memory


def _among(column: pa.ChunkedArray, values: Sequence[str]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(column, value_set=pa.array(values, pa.large_string())).to_numpy()
    return found


def _same_encoder(name: str, probe: Rows, kept: Kept) -> None:
    """Refuse vectors of another model, even under the same name."""
    sides = [(name, len(probe)), (kept.encoder, len(kept.probe))]
    if sides[0] != sides[1]:
        raise HashMismatch(
            "the memory was embedded by another encoder",
            value=f"{sides[0][0]} ({sides[0][1]} numbers)",
            expected=f"{sides[1][0]} ({sides[1][1]} numbers)",
            hint="load it with that one, or build it again",
        )
    cosine = float(probe.astype(np.float64) @ kept.probe.astype(np.float64))
    if cosine < _SAME:
        raise HashMismatch(
            f"the encoder {name!r} is not what it was when the memory was embedded",
            value=f"cosine {cosine:.4f} of the probe's vectors",
            expected=f"at least {_SAME}",
            hint="build it again, and give another model another name",
        )


def _nearest(
    index: Index, vectors: Rows, k: int, *, owners: NDArray[np.int64] | None, allowed: NDArray[np.bool_] | None
) -> list[list[tuple[int, float]]]:
    """For each vector its rows and scores; with owners the best of each, fetching more until there are k."""
    made: list[list[tuple[int, float]]] = [[] for _ in vectors]
    waiting, count = np.arange(len(vectors)), k if owners is None else 2 * k
    while len(waiting):
        found = index.search(vectors[waiting], min(count, len(index)), allowed=allowed)
        left = []
        for at, query in enumerate(waiting.tolist()):
            rows, scores = found.rows[at], found.scores[at]
            inside = rows >= 0
            rows, scores = rows[inside], scores[inside]
            if owners is not None:
                first = np.sort(np.unique(owners[rows], return_index=True)[1])
                rows, scores = rows[first], scores[first]
            if len(rows) < k and bool(inside.all()) and count < len(index):
                left.append(query)
            made[query] = list(zip(rows[:k].tolist(), scores[:k].tolist(), strict=True))
        waiting, count = np.array(left, np.int64), count * 2
    return made
