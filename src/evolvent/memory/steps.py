"""The memory of steps: observations, thoughts and actions of demonstrations, retrieved by similar text.

Source: TRAD (arXiv 2403.06221); with metadata as its key it retrieves whole episodes as Synapse (2306.07863)
does.
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

from evolvent.errors import (
    BatchMismatch,
    ConfigError,
    HashMismatch,
    NonFinite,
    Problem,
    SampleInvalid,
    unknown_name_problem,
)
from evolvent.memory.encoders import Encoder, HashedNgrams
from evolvent.memory.index import FlatIndex, Index, Rows, normalize_rows
from evolvent.memory.records import METADATA, THOUGHT, Demonstration, Hit, Key, StepRecord, make_demonstration
from evolvent.memory.saved import StoredKey, StoredMemory, read_memory, write_memory
from evolvent.memory.tables import MemoryTables, demonstration_digest, sanitize
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory, canonical_json

__all__ = ["METADATA", "THOUGHT", "AddReport", "Demonstration", "Filters", "Hit", "Key", "StepMemory", "StepRecord"]

Filters = Mapping[str, str | Collection[str]]
Source = Store | Iterable[Trajectory | Demonstration]
_PROBE = "I took the mug 1 from the table 2. Next, I need to put it on the shelf 3."
_MIN_PROBE_COSINE = 0.999  # cosine of the probe's vectors: the same model on another machine differs in its last bits
_TEXTS_PER_CALL = 1024  # embedded together
_COLUMNS = {"trajectory_id": "trajectory", "task_id": "task_id", "task": "task", "kind": "kind", "metadata": "metadata"}


@dataclass(frozen=True, slots=True)
class AddReport:
    """The result of adding episodes to a memory.

    Args:
        episodes, steps: Numbers of new episodes and steps.
        num_known: Number of episodes that it had already.
        skipped: Key -> number of new steps without a text for it, which are shown in windows but never retrieved by
            it.
        embedded: Number of texts that the encoder embedded; equal texts are embedded once.
    """

    episodes: int
    steps: int
    num_known: int
    skipped: Mapping[str, int]
    embedded: int


@dataclass(frozen=True, slots=True)
class _MemoryState:
    """Everything that `add` replaces at once."""

    tables: MemoryTables
    owners: NDArray[np.int64]  # [N] the episode of each step
    rows: Mapping[Key, NDArray[np.int64]]  # [n] the steps that a key finds
    indexes: Mapping[Key, Index]


class StepMemory:
    """Steps of demonstrations with indexes that retrieve them.

    Args:
        encoder: Embeds texts; None: `HashedNgrams()`.
        key: Key that retrieves steps; of several, `query` uses the first by default.
        index: "flat" compares every step, exactly; "usearch" is for some 200,000 and more (the extra `embed`).
        device: Device of an exact index; None: numpy.
    Raises:
        ConfigError: no key, one key twice, an encoder without a name, an unknown index.
        NonFinite, BatchMismatch: an encoder that does not return one finite vector for a text.
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
            problems.append(
                Problem(
                    "key",
                    f"got {[memory_key.name for memory_key in self.keys]}",
                    "use one key, or several different keys",
                )
            )
        if not isinstance(getattr(self.encoder, "id", None), str):
            problems.append(Problem("encoder", f"{self.encoder!r} has no name", "Named('my-model-1', call)"))
        if index not in ("flat", "usearch"):
            problems.append(Problem("index", f"got {index!r}", "use 'flat' or 'usearch'"))
        if problems:
            raise ConfigError(problems)
        self._index, self._device = index, device
        self._probe = self._embed([_PROBE])[0]
        no_vectors = np.zeros((0, len(self._probe)), np.float32)
        empty = {memory_key: (np.zeros(0, np.int64), no_vectors) for memory_key in self.keys}
        self._state = self._build_state(MemoryTables.from_demonstrations([]), empty, {})

    @classmethod
    def from_trajectories(
        cls,
        source: Source,
        encoder: Encoder | None = None,
        key: Key | Sequence[Key] = THOUGHT,
        *,
        index: Literal["flat", "usearch"] = "flat",
        device: str | None = None,
    ) -> StepMemory:
        """Creates a memory of a store, or of trajectories or demonstrations.

        Raises:
            ConfigError, NonFinite, BatchMismatch, MissingExtra: as the class. SampleInvalid: as `add`.
        """
        memory = cls(encoder, key, index=index, device=device)
        memory.add(source)
        return memory

    # ------------------------------------------------------------------ what it holds

    def __len__(self) -> int:
        """Returns the number of its steps, retrievable or only shown."""
        return int(self._state.tables.steps.num_rows)

    @property
    def trajectory_ids(self) -> list[str]:
        """Returns the ids of its episodes, sorted."""
        return sorted(self._state.tables.place)

    def count_retrievable(self, key: Key | None = None) -> int:
        """Counts the steps that a key retrieves; None: the first key."""
        return len(self._state.rows[self._resolve_key(key)])

    def get_demonstration(self, trajectory_id: str) -> Demonstration:
        """Returns an episode.

        Raises:
            ConfigError: no such episode.
        """
        tables = self._state.tables
        if trajectory_id not in tables.place:
            raise ConfigError([unknown_name_problem("trajectory", trajectory_id, list(tables.place)[:1000])])
        return tables.get_episode(tables.place[trajectory_id])

    @property
    def digest(self) -> str:
        """Computes 32 hex digits of its content and retrieval settings, independent of the order of additions."""
        tables = self._state.tables
        parts = sorted(demonstration_digest(episode) for episode in tables.iterate_episodes())
        text = canonical_json([self.encoder.id, [key.name for key in self.keys], parts])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    # ------------------------------------------------------------------ putting in

    def add(self, source: Source) -> AddReport:
        """Adds episodes. Known ones are not embedded again; after any error the memory is unchanged.

        Args:
            source: A store, trajectories, or demonstrations (`records.make_demonstration` makes one of a trajectory,
                with a custom instruction, kind or metadata).
        Raises:
            SampleInvalid: a known id with another content. ConfigError: trajectories of arrays.
            NonFinite, BatchMismatch: an encoder that does not return one finite vector for a text.
        """
        entries = source.trajectories() if isinstance(source, Store) else source
        new_episodes: dict[str, Demonstration] = {}
        num_known, tables = 0, self._state.tables
        for entry in entries:
            episode = sanitize(entry if isinstance(entry, Demonstration) else make_demonstration(entry))
            episode_number = tables.place.get(episode.trajectory_id)
            earlier_episode = new_episodes.get(episode.trajectory_id) or (
                None if episode_number is None else tables.get_episode(episode_number)
            )
            if earlier_episode is None:
                new_episodes[episode.trajectory_id] = episode
            elif demonstration_digest(earlier_episode) != demonstration_digest(episode):
                raise SampleInvalid(
                    "two different episodes have the same id", value=episode.trajectory_id, hint="change one of the ids"
                )
            else:
                num_known += 1
        ordered = [new_episodes[name] for name in sorted(new_episodes)]
        state, skipped, embedded = self._extend_state(MemoryTables.from_demonstrations(ordered), ordered)
        self._state = state
        return AddReport(len(ordered), sum(len(entry.steps) for entry in ordered), num_known, skipped, embedded)

    def _extend_state(
        self, new_tables: MemoryTables, episodes: Sequence[Demonstration]
    ) -> tuple[_MemoryState, dict[str, int], int]:
        """Returns the state with more episodes, the steps that each key skips, and the number of embedded texts."""
        begin = len(self)
        texts = {key: [text for episode in episodes for text in key.step_texts(episode)] for key in self.keys}
        distinct = list(dict.fromkeys(text for key_texts in texts.values() for text in key_texts if text))
        text_index = {text: index for index, text in enumerate(distinct)}
        vectors = self._embed(distinct)
        new: dict[Key, tuple[NDArray[np.int64], Rows]] = {}
        for key, key_texts in texts.items():
            rows = np.array([index for index, text in enumerate(key_texts) if text], np.int64)
            new[key] = (rows + begin, vectors[[text_index[key_texts[row]] for row in rows]])
        skipped = {
            key.name: sum(not text for text in key_texts) for key, key_texts in texts.items() if key.field != "metadata"
        }
        tables = self._state.tables.extend(new_tables)
        return self._build_state(tables, new, self._state.indexes), skipped, len(distinct)

    def _build_state(
        self,
        tables: MemoryTables,
        new: Mapping[Key, tuple[NDArray[np.int64], Rows]],
        old: Mapping[Key, Index],
        graphs: Mapping[Key, Path] | None = None,
    ) -> _MemoryState:
        order, rows, indexes = tables.rank_steps(), {}, {}
        for key, (new_rows, vectors) in new.items():
            rows[key] = np.concatenate([self._state.rows[key], new_rows]) if key in old else new_rows
            ranks = order[rows[key]]
            if key in old:
                indexes[key] = old[key].extend(vectors, ranks)
                continue
            flat = FlatIndex([vectors], order=ranks, device=self._device)
            if self._index == "flat":
                indexes[key] = flat
            else:
                from evolvent.memory.index import UsearchIndex

                indexes[key] = UsearchIndex(flat, path=(graphs or {}).get(key))
        return _MemoryState(tables, tables.owners(), rows, indexes)

    def _embed(self, texts: Sequence[str]) -> Rows:
        """Computes unit vectors for the texts, `[N, D]`."""
        parts: list[Rows] = []
        for start in range(0, len(texts), _TEXTS_PER_CALL):
            batch = texts[start : start + _TEXTS_PER_CALL]
            try:
                vectors = normalize_rows(
                    self.encoder(batch), description=f"a vector of the encoder {self.encoder.id!r}"
                )
            except NonFinite as error:
                row = start + int(str(error.value).rpartition(" ")[2])
                raise NonFinite(error.what, value=f"row {row}, the text {texts[row][:80]!r}") from error
            width = parts[0].shape[1] if parts else vectors.shape[1]
            if vectors.shape != (len(batch), width):
                raise BatchMismatch(
                    f"the encoder {self.encoder.id!r} does not give a vector for each text",
                    value=vectors.shape,
                    expected=(len(batch), width),
                )
            parts.append(vectors)
        return np.concatenate(parts) if parts else np.zeros((0, len(self._probe)), np.float32)

    # ------------------------------------------------------------------ finding

    def query(
        self,
        texts: Sequence[str],
        k: int,
        *,
        lookup_key: Key | None = None,
        filters: Filters | None = None,
        excluded_ids: Collection[str] = (),
        distinct: bool = True,
    ) -> list[list[Hit]]:
        """Returns the `k` steps nearest to each text, best first; equal cosines by the lower (trajectory id, step).

        Args:
            texts: `[Q]`. Queries, of which the key extracts the relevant part.
            k: 1 or more. Fewer are returned where there are fewer.
            lookup_key: The key; None: the memory's first.
            filters: Filters of episodes: "kind", "task", "trajectory_id", "task_id" or "metadata" -> a value, or
                several of which one must match.
            excluded_ids: Ids of trajectories or of tasks to exclude, such as the task being played.
            distinct: Whether to return at most one step of each trajectory, its best.
        Raises:
            ConfigError: an empty memory, k below 1, a key that it was not built with, an unknown filter.
            NonFinite, BatchMismatch: bad vectors of the encoder for the texts.
        """
        key, state = self._resolve_key(lookup_key), self._state
        problems = [Problem("k", f"got {k}, expected 1 or more")] if k < 1 else []
        problems += [Problem("texts", "got a single text, expected a list of texts")] if isinstance(texts, str) else []
        problems += [unknown_name_problem("filter", name, _COLUMNS) for name in filters or () if name not in _COLUMNS]
        if not len(self):
            problems.append(Problem("memory", "the memory has no steps", "add trajectories first"))
        if problems:
            raise ConfigError(problems)
        extracted = [key.extract(text) for text in texts]
        vectors = self._embed(extracted)
        rows, index = state.rows[key], state.indexes[key]
        allowed = self._filter_episodes(filters or {}, excluded_ids)
        mask = None if allowed is None else allowed[state.owners[rows]]
        if not len(rows) or not len(texts) or (mask is not None and not mask.any()):
            return [[] for _ in texts]
        neighbors = _find_nearest(index, vectors, k, owners=state.owners[rows] if distinct else None, allowed=mask)
        return [[Hit(self._make_record(int(rows[row]), key), score) for row, score in hits] for hits in neighbors]

    def _resolve_key(self, key: Key | None) -> Key:
        resolved = self.keys[0] if key is None else key
        if resolved not in self.keys:
            raise ConfigError(
                [unknown_name_problem("key", resolved.name, [memory_key.name for memory_key in self.keys])]
            )
        return resolved

    def _filter_episodes(self, filters: Filters, excluded_ids: Collection[str]) -> NDArray[np.bool_] | None:
        """Computes which episodes may be retrieved, `[E]`; None: all."""
        episodes = self._state.tables.episodes
        conditions = [
            (_COLUMNS[name], [value] if isinstance(value, str) else list(value)) for name, value in filters.items()
        ]
        masks = [_is_in(episodes.column(column), values) for column, values in conditions]
        if excluded_ids:
            masks += [~_is_in(episodes.column(column), list(excluded_ids)) for column in ("trajectory", "task_id")]
        return np.logical_and.reduce(masks) if masks else None

    def _make_record(self, row: int, key: Key) -> StepRecord:
        """Returns the record of a row of the table of steps, with the text by which the key retrieved it."""
        tables, owner = self._state.tables, int(self._state.owners[row])
        values = {
            name: tables.episodes.column(_COLUMNS[name])[owner].as_py() for name in ("trajectory_id", "task", "kind")
        }
        step_values = {name: tables.steps.column(name)[row].as_py() for name in tables.steps.column_names}
        text = tables.episodes.column("metadata")[owner].as_py() if key.field == "metadata" else step_values[key.field]
        return StepRecord(**values, **step_values, step=row - int(tables.first[owner]), key=key.extract(text))

    # ------------------------------------------------------------------ keeping

    def save(self, folder: Path) -> None:
        """Writes the memory; `load` restores an equivalent one without embedding anything.

        Raises:
            NoSpace, StoreUnavailable: the folder then holds what it held before.
        """
        state = self._state
        stored_keys = [
            StoredKey(key, state.rows[key], state.indexes[key].vectors(), state.indexes[key].graph())
            for key in self.keys
        ]
        write_memory(folder, StoredMemory(self.encoder.id, self._probe, state.tables, tuple(stored_keys)))

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
        """Reads a memory from its folder; its vectors are memory-mapped.

        Args:
            folder: The folder.
            encoder: The encoder that it was built with; None: `HashedNgrams` with the stored settings.
            verify: Whether to compare the hashes of the files, which reads the vectors once.
            index: "flat" or "usearch"; None: as it was saved.
            device: Device of an exact index; None: numpy.
        Raises:
            HashMismatch: another encoder (by name, width, or the vector of the probe text), or a changed file; both
                sides are named. Incomplete, UnknownSchema, CheckpointError: as `saved.read_memory`.
            ConfigError: an encoder that must be passed.
        """
        stored = read_memory(folder, verify=verify)
        encoder = HashedNgrams.from_id(stored.encoder) if encoder is None else encoder
        graphs = {stored_key.key: stored_key.graph for stored_key in stored.keys if isinstance(stored_key.graph, Path)}
        index_kind = index or ("usearch" if graphs else "flat")
        memory = cls(encoder, [stored_key.key for stored_key in stored.keys], index=index_kind, device=device)
        _check_encoder(memory.encoder.id, memory._probe, stored)
        new = {stored_key.key: (stored_key.rows, stored_key.vectors) for stored_key in stored.keys}
        memory._state = memory._build_state(stored.tables, new, {}, graphs)
        return memory


def _is_in(column: pa.ChunkedArray, values: Sequence[str]) -> NDArray[np.bool_]:
    is_member: NDArray[np.bool_] = pc.is_in(column, value_set=pa.array(values, pa.large_string())).to_numpy()
    return is_member


def _check_encoder(name: str, probe: Rows, stored: StoredMemory) -> None:
    """Raises HashMismatch for vectors of another model, even under the same name."""
    sides = [(name, len(probe)), (stored.encoder, len(stored.probe))]
    if sides[0] != sides[1]:
        raise HashMismatch(
            "the memory was embedded by another encoder",
            value=f"{sides[0][0]} ({sides[0][1]} numbers)",
            expected=f"{sides[1][0]} ({sides[1][1]} numbers)",
            hint="load it with the same encoder, or build the memory again",
        )
    cosine = float(probe.astype(np.float64) @ stored.probe.astype(np.float64))
    if cosine < _MIN_PROBE_COSINE:
        raise HashMismatch(
            f"encoder {name!r} has changed since the memory was embedded",
            value=f"cosine {cosine:.4f} of the probe's vectors",
            expected=f"at least {_MIN_PROBE_COSINE}",
            hint="build the memory again, and rename a changed model",
        )


def _find_nearest(
    index: Index, vectors: Rows, k: int, *, owners: NDArray[np.int64] | None, allowed: NDArray[np.bool_] | None
) -> list[list[tuple[int, float]]]:
    """Finds for each vector its rows and scores; with owners the best of each, fetching more until there are k."""
    results: list[list[tuple[int, float]]] = [[] for _ in vectors]
    pending, count = np.arange(len(vectors)), k if owners is None else 2 * k
    while len(pending):
        neighbors = index.search(vectors[pending], min(count, len(index)), allowed=allowed)
        unfinished = []
        for index_in_batch, query in enumerate(pending.tolist()):
            rows, scores = neighbors.rows[index_in_batch], neighbors.scores[index_in_batch]
            inside = rows >= 0
            rows, scores = rows[inside], scores[inside]
            if owners is not None:
                first = np.sort(np.unique(owners[rows], return_index=True)[1])
                rows, scores = rows[first], scores[first]
            if len(rows) < k and bool(inside.all()) and count < len(index):
                unfinished.append(query)
            results[query] = list(zip(rows[:k].tolist(), scores[:k].tolist(), strict=True))
        pending, count = np.array(unfinished, np.int64), count * 2
    return results
