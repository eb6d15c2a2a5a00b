"""The actor: worlds, an engine and the weights of a version, somewhere on a cluster. It plays what it is handed.

    hello()             who it is: versions, process, node; its worlds are made
    play(slice, ...)    begin a slice of episodes, searches or labellings; weights that it does not have come with it
    more(count, s)      go on until so many have ended, or so long has passed, and hand them over
    stop()              give up the slice

Between two calls nothing moves: whoever asks no more, because it has ended or is at another thing, leaves no actor
playing. Errors come back as messages, so that no exception is ever pickled.
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

from evolvent.engine.driver import drive
from evolvent.errors import ConfigError, EngineError, EvolventError, VersionMismatch, boundary
from evolvent.models.policy import Policy
from evolvent.reward.labelling import Labelling
from evolvent.rollout.branches import Branching, Origins
from evolvent.rollout.collect import collect
from evolvent.rollout.episode import Limits
from evolvent.rollout.search import Player as Searcher
from evolvent.rollout.search import searching
from evolvent.scale.judging import JUDGE, judged, scorer_of
from evolvent.scale.local_backend import LocalVerbs
from evolvent.scale.ray_versions import check_versions
from evolvent.scale.ray_wire import Files, agent_of, line_of, message, parts_of, policy_in, start_of, trajectory_of
from evolvent.search.settings import ForestConfig, SearchConfig
from evolvent.trajectory import sample_seed, trajectory_name
from evolvent.worlds.base import World

__all__ = ["Made", "Player"]

Ended = tuple[str, dict[str, Any], bytes]  # key, what is told of it, the line of its trajectory (or nothing)


@dataclass(frozen=True)
class _Slice:
    """A part of a job, as it arrived.

    Attributes:
        head: what all slices of the job have in common: what is done, by whom, from which seed.
        rows, lines: its items, JSON values and, for labellings, trajectories. parents: what branches leave.
    """

    head: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    lines: Sequence[bytes]
    parents: Sequence[bytes]


class Made(LocalVerbs):
    """`LocalVerbs` that hand over what has ended instead of storing it; the same engine, agents and worlds."""

    def played(self, part: _Slice, policies: Mapping[str, Policy]) -> Iterator[Ended]:
        """Episodes of a slice, as they end."""
        head, policy = part.head, policies.get("policy")
        agent = agent_of(head["agent"], policy)
        parents = {one.id: one for one in map(trajectory_of, part.parents)}
        origins = Origins(parents)
        starts = [start_of(row) for row in part.rows]
        name, before = partial(trajectory_name, stage=head["name"]), 0
        playing = collect(
            self.worlds,
            Branching(starts, origins),
            agent,
            engine=None if policy is None else self.engine(policy),
            seed=head["seed"],
            slots=self.slots,
            limits=Limits(**head["limits"]),
            name=name,
        )
        with closing(playing) as episodes:
            for one in episodes:
                replayed, before = origins.replayed - before, origins.replayed
                yield one.id, {"replayed": replayed} if replayed else {}, line_of(one)

    def searched(self, part: _Slice, policies: Mapping[str, Policy]) -> Iterator[Ended]:
        """Searches of a slice, as they end."""
        head, policy, own = part.head, policies["policy"], policies.get("judge", policies["policy"])
        kind = ForestConfig if head["forest"] else SearchConfig
        how = kind.model_validate(head["how"])
        scorer = scorer_of(own, how, model=None if own is policy else JUDGE) if how.judged else None
        engine = self.engine(policy)
        if scorer is not None and own is not policy:
            engine = judged(policy, own, engine=engine, judging=self._judging(own))
        starts = [start_of(row) for row in sorted(part.rows, key=lambda row: not row.get("tree"))]
        trees = sum(bool(row.get("tree")) for row in part.rows)
        found = searching(
            self.worlds,
            starts,
            how,
            player=Searcher(policy, engine, scorer),
            seed=head["seed"],
            slots=self.slots,
            trees=trees,
            name=partial(trajectory_name, stage=head["name"]),
        )
        with closing(found) as searches:
            for one in searches:
                told = {
                    "spent": asdict(one.spent),
                    "ended_by": one.ended_by,
                    "dropped": one.dropped,
                    "answers": [dict(each) for each in one.answers],
                    "passed": one.passed,
                    "stopped": one.stopped,
                    "spared": one.spared,
                    "tree": dict(one.tree),
                    "forest": [dict(each) for each in one.forest],
                }
                yield one.trajectory.id, told, line_of(one.trajectory)

    def labelled(self, part: _Slice, policies: Mapping[str, Policy]) -> Iterator[Ended]:
        """Labellings of a slice, as they end."""
        head, policy = part.head, policies["policy"]
        how, data = Labelling.model_validate(head["how"]), [trajectory_of(line) for line in part.lines]
        works = (
            how.work(
                policy,
                one,
                partial(self._correct, one.task),
                seed=sample_seed(head["seed"], one.id),
                slow=self.worlds[one.task.world].blocking,
            )
            for one in data
        )
        with closing(drive(works, self.engine(policy), slots=self.slots)) as labellings:
            for done in labellings:
                told: dict[str, Any] = {"rows": done.value or []}
                if done.error is not None:
                    told["error"] = str(done.error)
                yield data[done.index].id, told, b""

    def begun(self, part: _Slice, policies: Mapping[str, Policy]) -> Iterator[Ended]:
        """Whatever the slice asks for."""
        how: dict[str, Callable[[_Slice, Mapping[str, Policy]], Iterator[Ended]]] = {
            "play": self.played,
            "search": self.searched,
            "label": self.labelled,
        }
        return how[part.head["do"]](part, policies)


class Player:
    """See the module. Ray makes one in a process of its own; it also works without Ray.

    Args:
        setup: a message: `worlds` as [module:function, arguments], the `versions` of the run and of its worlds, torch's
            `threads`.
    """

    def __init__(self, setup: bytes) -> None:
        self._setup = parts_of(setup)[0]
        self._verbs: Made | None = None
        self._policies: dict[str, Policy] = {}
        self._going: Iterator[Ended] | None = None
        self._told: dict[str, int] = {}

    def hello(self) -> bytes:
        """Make the worlds; a message with `pid`, or with an `error`."""
        return _answered(self._hello)

    def play(self, told: bytes, *contents: NDArray[np.uint8]) -> bytes:
        """Begin a slice, and give up the one before.

        Args:
            told: a message: what is asked for, by which policies, and the digests of what follows. Policies that the
                slice before had, and this one has not, are forgotten.
            contents: the files of policies that the slice before had not.
        """
        return _answered(lambda: self._play(told, contents))

    def more(self, count: int, within_s: float) -> bytes:
        """What has ended since the last time: a message with `rows`, a line each, `usage` and whether it is the `end`.

        Args:
            count: at most so many. within_s: go on for so long, but always until one has ended.
        """
        rows: list[Any] = []
        lines: list[bytes] = []
        end = _answered(lambda: self._more(rows, lines, count, time.monotonic() + within_s))
        return message({**parts_of(end)[0], "rows": rows, "usage": self._usage()}, lines)

    def stop(self) -> None:
        """Give up the slice, if there is one."""
        going, self._going = self._going, None
        if going is not None:
            going.close()  # type: ignore[attr-defined]

    def _hello(self) -> dict[str, Any]:
        check_versions(self._setup["versions"])
        torch.set_num_threads(self._setup["threads"])
        where, arguments = self._setup["worlds"]
        module, _, function = where.partition(":")
        with boundary(EngineError, "worlds cannot be made on a node of the cluster", made=where):
            worlds: dict[str, World] = getattr(import_module(module), function)(*arguments)
        made = {name: world.version for name, world in worlds.items()}
        if made != self._setup["made"]:
            raise VersionMismatch(
                "a node of the cluster has other worlds than the run", value=made, expected=self._setup["made"]
            )
        self._verbs = Made(worlds)
        return {"pid": os.getpid()}

    def _play(self, told: bytes, contents: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
        self.stop()
        head, lines = parts_of(told)
        verbs = self._verbs
        if verbs is None:
            raise ConfigError("a player was asked to play before it made its worlds", value=head["do"])
        files = {role: Files(row["names"], row["limit"]) for role, row in head["policies"].items()}
        known = dict(zip(head["contents"], contents, strict=True))
        self._policies = {one.digest: self._policy(one, known) for one in files.values()}
        policies = {role: self._policies[one.digest] for role, one in files.items()}
        parents = head["parents"]
        verbs.slots = head["slots"]
        part = _Slice(head, head["rows"], lines[parents:], lines[:parents])
        self._going = verbs.begun(part, policies)
        return {}

    def _policy(self, files: Files, contents: Mapping[str, NDArray[np.uint8]]) -> Policy:
        """The policy that the files are."""
        known = self._policies.get(files.digest)
        if known is not None:
            return known
        with TemporaryDirectory(prefix="evolvent-") as folder:
            return policy_in(Path(folder), files, contents)

    def _more(self, rows: list[Any], lines: list[bytes], count: int, until: float) -> dict[str, Any]:
        for key, told, line in self._going or ():
            rows.append([key, told])
            lines.append(line or b"\n")
            if len(rows) >= count or time.monotonic() >= until:
                return {"end": False}
        self._going = None
        return {"end": True}

    def _usage(self) -> dict[str, int]:
        """What was counted since the last time."""
        now = dict(self._verbs.usage()) if self._verbs is not None else {}
        since = {name: count - self._told.get(name, 0) for name, count in now.items()}
        self._told = now
        return {name: count for name, count in since.items() if count}


def _answered(call: Callable[[], dict[str, Any]]) -> bytes:
    """What a call returns as a message, or the error that it ended in."""
    try:
        with boundary(EngineError, "a player failed"):
            return message(call())
    except EvolventError as error:
        return message({"error": [type(error).__name__, str(error)], "end": True})
