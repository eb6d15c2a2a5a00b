"""The actor: worlds, an engine and the weights of a version on a node of a cluster. It plays the slices that
it receives.

    hello()             its versions, process and node; its worlds are created
    play(slice, ...)    start a slice of episodes, searches or labelings; weights that it lacks come with it
    more(count, s)      continue until so many have ended, or so much time has passed, and return them
    stop()              abandon the slice

Between two calls nothing runs: a caller that stops asking leaves no busy actor behind. Errors return as
messages, so that no exception is ever pickled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.engine.driver import run_jobs
from evolvent.errors import ConfigError, EngineError, EvolventError, VersionMismatch, boundary
from evolvent.models.policy import Policy
from evolvent.reward.labelling import LabellingConfig
from evolvent.rollout.episode import BranchedStarts, BranchOrigins, Limits, collect
from evolvent.rollout.search import SearchPlayer as Searcher
from evolvent.rollout.search import search_starts
from evolvent.scale.judging import JUDGE, combine_engines, make_scorer
from evolvent.scale.local_backend import LocalBackend
from evolvent.scale.ray_versions import check_versions
from evolvent.scale.ray_wire import (
    PolicyFiles,
    agent_from_row,
    build_message,
    load_policy_files,
    parse_message,
    start_from_row,
    trajectory_from_line,
    trajectory_to_line,
)
from evolvent.search.settings import ForestConfig, SearchConfig
from evolvent.trajectory import JsonObject, sample_seed, trajectory_name
from evolvent.worlds.base import World

__all__ = ["Player", "PlayerBackend"]

EndedItem = tuple[str, JsonObject, bytes]  # key, what is told of it, the line of its trajectory (or nothing)


@dataclass(frozen=True)
class _Slice:
    """A part of a job, as received.

    Attributes:
        head: Values that all slices of the job share: operation, agent, seed.
        rows, lines: Its items: JSON values and, for labelings, trajectories.
        parents: Trajectories that branches start from.
    """

    head: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    lines: Sequence[bytes]
    parents: Sequence[bytes]


class PlayerBackend(LocalBackend):
    """A `LocalBackend` that returns ended items instead of storing them; the same engine, agents and worlds."""

    def play_slice(self, job_slice: _Slice, policies: Mapping[str, Policy]) -> Iterator[EndedItem]:
        """Yields the episodes of a slice, as they end."""
        head, policy = job_slice.head, policies.get("policy")
        agent = agent_from_row(head["agent"], policy)
        parents = {trajectory.id: trajectory for trajectory in map(trajectory_from_line, job_slice.parents)}
        origins = BranchOrigins(parents)
        starts = [start_from_row(row) for row in job_slice.rows]
        name, replayed_before = partial(trajectory_name, stage=head["name"]), 0
        playing = collect(
            self.worlds,
            BranchedStarts(starts, origins),
            agent,
            engine=None if policy is None else self.serve_policy(policy),
            seed=head["seed"],
            slots=self.slots,
            limits=Limits(**head["limits"]),
            name=name,
        )
        with closing(playing) as episodes:
            for trajectory in episodes:
                replayed, replayed_before = origins.replayed - replayed_before, origins.replayed
                yield trajectory.id, {"replayed": replayed} if replayed else {}, trajectory_to_line(trajectory)

    def search_slice(self, job_slice: _Slice, policies: Mapping[str, Policy]) -> Iterator[EndedItem]:
        """Yields the searches of a slice, as they end."""
        head, policy, scoring_policy = job_slice.head, policies["policy"], policies.get("judge", policies["policy"])
        kind = ForestConfig if head["forest"] else SearchConfig
        search = kind.model_validate(head["how"])
        scorer = (
            make_scorer(scoring_policy, search, model=None if scoring_policy is policy else JUDGE)
            if search.uses_judge
            else None
        )
        engine = self.serve_policy(policy)
        if scorer is not None and scoring_policy is not policy:
            engine = combine_engines(
                policy, scoring_policy, engine=engine, value_engine=self._engine_of_judge(scoring_policy)
            )
        starts = [start_from_row(row) for row in sorted(job_slice.rows, key=lambda row: not row.get("tree"))]
        trees = sum(bool(row.get("tree")) for row in job_slice.rows)
        outcomes = search_starts(
            self.worlds,
            starts,
            search,
            player=Searcher(policy, engine, scorer),
            seed=head["seed"],
            slots=self.slots,
            trees=trees,
            name=partial(trajectory_name, stage=head["name"]),
        )
        with closing(outcomes) as searches:
            for outcome in searches:
                info = {
                    "spent": asdict(outcome.spent),
                    "ended_by": outcome.ended_by,
                    "dropped": outcome.dropped,
                    "answers": [dict(mapping) for mapping in outcome.answers],
                    "passed": outcome.passed,
                    "stopped": outcome.stopped,
                    "spared": outcome.spared,
                    "tree": dict(outcome.tree),
                    "forest": [dict(mapping) for mapping in outcome.forest],
                }
                yield outcome.trajectory.id, info, trajectory_to_line(outcome.trajectory)

    def label_slice(self, job_slice: _Slice, policies: Mapping[str, Policy]) -> Iterator[EndedItem]:
        """Yields the labelings of a slice, as they end."""
        head, policy = job_slice.head, policies["policy"]
        labeler, data = (
            LabellingConfig.model_validate(head["how"]),
            [trajectory_from_line(line) for line in job_slice.lines],
        )
        jobs = (
            labeler.work(
                policy,
                trajectory,
                partial(self._grade_text, trajectory.task),
                seed=sample_seed(head["seed"], trajectory.id),
                slow=self.worlds[trajectory.task.world].run_in_thread,
            )
            for trajectory in data
        )
        with closing(run_jobs(jobs, self.serve_policy(policy), slots=self.slots)) as labellings:
            for finished in labellings:
                info: dict[str, Any] = {"rows": finished.value or []}
                if finished.error is not None:
                    info["error"] = str(finished.error)
                yield data[finished.index].id, info, b""

    def start_slice(self, job_slice: _Slice, policies: Mapping[str, Policy]) -> Iterator[EndedItem]:
        """Starts the operation that the slice requests."""
        operations: dict[str, Callable[[_Slice, Mapping[str, Policy]], Iterator[EndedItem]]] = {
            "play": self.play_slice,
            "search": self.search_slice,
            "label": self.label_slice,
        }
        return operations[job_slice.head["do"]](job_slice, policies)


class Player:
    """The actor; see the module. Ray runs it in a separate process; it also works without Ray.

    Args:
        setup: A message: `worlds` as [module:function, arguments], the `versions` of the run and of its worlds,
            torch's `threads`.
    """

    def __init__(self, setup: bytes) -> None:
        self._setup = parse_message(setup)[0]
        self._verbs: PlayerBackend | None = None
        self._policies: dict[str, Policy] = {}
        self._bases: dict[str, Policy] = {}
        self._going: Iterator[EndedItem] | None = None
        self._told: dict[str, int] = {}

    def hello(self) -> bytes:
        """Creates the worlds; returns a message with `pid`, or with an `error`."""
        return _to_message(self._hello)

    def play(self, slice_message: bytes, *contents: NDArray[np.uint8]) -> bytes:
        """Starts a slice, and abandons the previous one.

        Args:
            slice_message: A message: the request, its policies, and the digests of the following files. Policies of the
                previous slice that this slice lacks are dropped.
            contents: Files of policies that the previous slice lacked, without a base that it had.
        """
        return _to_message(lambda: self._play(slice_message, contents))

    def more(self, count: int, within_s: float) -> bytes:
        """Returns the items that ended since the last call: a message with `rows`, a line each, `usage` and the flag
        `end`.

        Args:
            count: Maximum number of items.
            within_s: Seconds to continue, but always until one item has ended.
        """
        rows: list[Any] = []
        lines: list[bytes] = []
        end = _to_message(lambda: self._more(rows, lines, count, time.monotonic() + within_s))
        return build_message({**parse_message(end)[0], "rows": rows, "usage": self._usage()}, lines)

    def stop(self) -> None:
        """Stops the current slice, if there is one."""
        going, self._going = self._going, None
        if going is not None:
            going.close()  # type: ignore[attr-defined]

    def _hello(self) -> dict[str, Any]:
        check_versions(self._setup["versions"])
        torch.set_num_threads(self._setup["threads"])
        function_path, arguments = self._setup["worlds"]
        module, _, function = function_path.partition(":")
        with boundary(EngineError, "worlds cannot be made on a node of the cluster", made=function_path):
            worlds: dict[str, World] = getattr(import_module(module), function)(*arguments)
        world_versions = {name: world.version for name, world in worlds.items()}
        if world_versions != self._setup["made"]:
            raise VersionMismatch(
                "worlds of a cluster node differ from the run",
                value=world_versions,
                expected=self._setup["made"],
            )
        self._verbs = PlayerBackend(worlds)
        return {"pid": os.getpid()}

    def _play(self, slice_message: bytes, contents: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
        self.stop()
        head, lines = parse_message(slice_message)
        backend = self._verbs
        if backend is None:
            raise ConfigError("a player received a job before it made its worlds", value=head["do"])
        files = {role: PolicyFiles(row["names"], row["limit"]) for role, row in head["policies"].items()}
        files_by_digest = dict(zip(head["contents"], contents, strict=True))
        self._policies = {
            policy_files.digest: self._load_policy(policy_files, files_by_digest) for policy_files in files.values()
        }
        bases = {policy_files.base_digest for policy_files in files.values()}
        self._bases = {digest: base for digest, base in self._bases.items() if digest in bases}
        policies = {role: self._policies[policy_files.digest] for role, policy_files in files.items()}
        num_parents = head["parents"]
        backend.slots = head["slots"]
        job_slice = _Slice(head, head["rows"], lines[num_parents:], lines[:num_parents])
        self._going = backend.start_slice(job_slice, policies)
        return {}

    def _load_policy(self, files: PolicyFiles, contents: Mapping[str, NDArray[np.uint8]]) -> Policy:
        """Loads the policy of the files, unless it is loaded already."""
        loaded = self._policies.get(files.digest)
        if loaded is not None:
            return loaded
        with TemporaryDirectory(prefix="evolvent-") as folder:
            return load_policy_files(Path(folder), files, contents, bases=self._bases)

    def _more(self, rows: list[Any], lines: list[bytes], count: int, deadline: float) -> dict[str, Any]:
        for key, info, line in self._going or ():
            rows.append([key, info])
            lines.append(line or b"\n")
            if len(rows) >= count or time.monotonic() >= deadline:
                return {"end": False}
        self._going = None
        return {"end": True}

    def _usage(self) -> dict[str, int]:
        """Returns the counts since the last call."""
        totals = dict(self._verbs.usage()) if self._verbs is not None else {}
        differences = {name: count - self._told.get(name, 0) for name, count in totals.items()}
        self._told = totals
        return {name: count for name, count in differences.items() if count}


def _to_message(call: Callable[[], dict[str, Any]]) -> bytes:
    """Returns the result of a call as a message, or the error that it raised."""
    try:
        with boundary(EngineError, "a player failed"):
            return build_message(call())
    except EvolventError as error:
        return build_message({"error": [type(error).__name__, str(error)], "end": True})
