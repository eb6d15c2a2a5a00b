"""This process among the ranks of a training: its groups, and sums over them. One process needs no process group."""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from evolvent.errors import ConfigError, Problem, RankFailed
from evolvent.learn.parallel.mesh import Mesh

__all__ = ["ALONE", "Meeting", "Ranks", "ranks_of"]

_FAILED, _HERE, _BEAT, _READY = (f"evolvent/{name}" for name in ("failed", "here", "beat", "ready"))
_CALL, _ANSWER, _CAME = (f"evolvent/{name}" for name in ("call", "answer", "came"))
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"
_GRACE_S, _PAUSE_S = 5.0, 0.05  # how long ranks that lost another wait for its own words, and between two looks

Dim = Literal["pp", "replicate", "shard", "tp", "dp"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where this process stands.

    Attributes:
        mesh: the layout. device: of this process. devices: torch's mesh with dimensions pp, replicate, shard, tp, and
            dp, which is the product of replicate and shard; None in a single process.
    """

    mesh: Mesh
    device: torch.device
    devices: DeviceMesh | None = None

    def group(self, dim: Dim) -> dist.ProcessGroup | None:
        """The ranks along a dimension through this one; None in a single process."""
        return None if self.devices is None else self.devices.get_group(dim)

    def at(self, dim: Dim) -> int:
        """This rank's number along a dimension."""
        return 0 if self.devices is None else dist.get_rank(self.group(dim))

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return 0 if self.devices is None else dist.get_rank()

    @property
    def leads(self) -> bool:
        """Whether this is the one rank that writes and speaks for all."""
        return self.rank == 0

    def sum(self, value: Tensor, *dims: Dim) -> Tensor:
        """The sum over the ranks along dimensions, everywhere; in place."""
        for dim in dims:
            group = self.group(dim)
            if group is not None and group.size() > 1:
                dist.all_reduce(value, group=group)
        return value


ALONE = Ranks(Mesh(), torch.device("cpu"))


class Meeting:
    """What the ranks that torchrun started share beside their process groups: here what failed first is told once.

    Use it in a `with` statement around all that may fail. A process that torchrun did not start meets nobody.

    Args:
        timeout: seconds after which waiting for a silent rank ends; may be changed.
    Raises:
        RankFailed: on leaving, on every rank but the one that failed first, which raises what it raised. `told` says
            whether that rank has told it. Where it died without a word, one of the others names it, and is not `told`.
    """

    def __init__(self, timeout: float = 600.0) -> None:
        self.timeout = timeout
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.store: Any = None

    def __enter__(self) -> Meeting:
        if self.world > 1 and {"RANK", "MASTER_ADDR"} <= set(os.environ):
            store = next(iter(rendezvous("env://", timeout=timedelta(seconds=self.timeout))))[0]
            kept = os.environ.get(_AGENT) == "True"  # by an agent that may start us more than once
            self.store = dist.distributed_c10d.PrefixStore(self._agreed(store), store) if kept else store
        return self

    def _agreed(self, store: Any) -> str:
        """A name that all ranks of this start have in common and no earlier start had.

        torchrun's agents keep one store over all restarts (pytorch issue 135712), and no number that they set is both
        new at every start and the same on every host. The addresses and failures of ranks that have ended would be
        taken for those of living ones. So every rank calls with a word of its own, and the first answers with the name.

        Raises:
            RankFailed: another rank did not come within the timeout.
        """
        word, end = secrets.token_hex(8), time.monotonic() + self.timeout
        if self.rank:
            store.set(f"{_CALL}/{self.rank}", word)
            try:
                name = str(store.get(f"{_ANSWER}/{word}").decode())
            except dist.DistStoreError as error:
                raise self._alone([0]) from error
            store.set(f"{name}/{_CAME}/{self.rank}", "")
            return name
        missing = list(range(1, self.world))
        while missing:
            if time.monotonic() > end:
                raise self._alone(missing)
            for rank in missing:  # also those that have ended: who does not come is answered again
                if store.check([f"{_CALL}/{rank}"]):
                    store.set(f"{_ANSWER}/{store.get(f'{_CALL}/{rank}').decode()}", word)
            missing = [rank for rank in missing if not store.check([f"{word}/{_CAME}/{rank}"])]
            time.sleep(_PAUSE_S if missing else 0)
        return word

    def _alone(self, missing: Sequence[int]) -> RankFailed:
        who = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))} have"
        return RankFailed(f"{who} not begun", value=f"nothing for {self.timeout:.0f} s", hint="is its host there?")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.store is None or not isinstance(error, Exception):
            return
        first = self._after(error) if _lost(error) else self._claim(f"rank {self.rank}: {error}")
        if first is not None:
            failed = RankFailed("another rank failed", value=first, hint="resume when it is mended")
            failed.told = True
            raise failed from error
        if self.rank == 0 and os.environ.get(_AGENT) != "True":
            self.store.set(f"{_HERE}/0", "")
            self._missing(told=True)  # the store goes when this process does

    def _after(self, error: Exception) -> str | None:
        """Wait for the words of the rank that failed first, and return them; where it has none, name it."""
        try:
            self.store.set(f"{_HERE}/{self.rank}", "")
            missing = self._missing()
        except RuntimeError:  # the store went away with rank 0: the next one speaks
            missing = [0]
            if self.rank != 1:
                return "rank 0 died"
        who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        first = self._claim(f"rank {self.rank} lost {who}")
        if first is not None or not missing:
            return first
        what = f"{who} died, or {'was' if len(missing) == 1 else 'were'} silent for too long"
        hint = "what it printed may say why; resume when it is mended"
        raise RankFailed(what, value=_brief(error), hint=hint) from error

    def _missing(self, *, told: bool = False) -> list[int]:
        """The ranks of which nothing was heard in the time that they need; `told`: whether this rank failed first."""
        end = time.monotonic() + min(_GRACE_S, self.timeout)
        missing = list(range(self.world))
        while missing and time.monotonic() < end and (told or not self.store.check([_FAILED])):
            missing = [rank for rank in missing if not self.store.check([f"{_HERE}/{rank}"])]
            time.sleep(_PAUSE_S)
        return missing

    def _claim(self, text: str) -> str | None:
        """Tell the ranks what failed first; returns what another rank told before, or None."""
        try:
            found = self.store.compare_set(_FAILED, "", text).decode()
        except RuntimeError:
            return None
        return None if found == text else str(found)

    def first(self, work: Callable[[], None]) -> None:
        """Rank 0 does something alone, however long it takes; the others wait while it lives.

        Raises:
            RankFailed: rank 0 failed, or was silent for `timeout` seconds.
        """
        if self.store is None:
            work()
        elif self.rank == 0:
            done = threading.Event()
            beat = threading.Thread(target=self._beat, args=(done,), daemon=True)
            beat.start()
            try:
                work()
            finally:
                done.set()
                beat.join()
            self.store.set(_READY, "")
        else:
            self._wait()

    def _beat(self, done: threading.Event) -> None:
        with suppress(RuntimeError):
            while not done.wait(min(1.0, self.timeout / 5)):
                self.store.add(_BEAT, 1)

    def _wait(self) -> None:
        seen, since = -1, time.monotonic()
        while not self.store.check([_READY]):
            count = self.store.add(_BEAT, 0)
            if count != seen:
                seen, since = count, time.monotonic()
            if self.store.check([_FAILED]) or time.monotonic() - since > self.timeout:
                raise RankFailed("rank 0 did not get ready", value=f"nothing for {time.monotonic() - since:.0f} s")
            time.sleep(_PAUSE_S)


@contextmanager
def ranks_of(
    mesh: Mesh, *, device: str = "cpu", timeout: float = 600.0, meeting: Meeting | None = None
) -> Iterator[Ranks]:
    """Join the process group that torchrun describes in the environment, and leave it at the end.

    A group that is there already is used, and stays. One process needs none.

    Args:
        device: "cpu" or "cuda"; on CUDA each rank takes the device of its local number.
        timeout: seconds after which waiting for a silent rank ends.
        meeting: one that has begun; None: one of its own.
    Raises:
        ConfigError: a mesh of several ranks in a process that torchrun did not start. RankFailed: see `Meeting`.
    """
    if mesh.size == 1:
        yield Ranks(mesh, torch.device(device))
        return
    with ExitStack() as stack:
        if not dist.is_initialized():
            met = stack.enter_context(Meeting(timeout)) if meeting is None else meeting
            _join(met, mesh, device, timeout)
            stack.callback(dist.destroy_process_group)  # before others are waited for: they learn of it by that
        local = int(os.environ.get("LOCAL_RANK", "0"))
        here = torch.device("cuda", local) if device == "cuda" else torch.device(device)
        sizes = (mesh.pp, mesh.replicate, mesh.shard, mesh.tp)
        devices = init_device_mesh(here.type, sizes, mesh_dim_names=("pp", "replicate", "shard", "tp"))
        devices["replicate", "shard"]._flatten("dp")
        yield Ranks(mesh, here, devices)


def _join(meeting: Meeting, mesh: Mesh, device: str, timeout: float) -> None:
    if meeting.store is None:
        launch = f"torchrun --nproc-per-node {mesh.size} -m evolvent ..."
        raise ConfigError([Problem("parallel", f"{mesh} needs {mesh.size} processes", f"start it with: {launch}")])
    limit = timedelta(seconds=timeout)
    meeting.store.set_timeout(limit)
    backend = "nccl" if device == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend, store=meeting.store, rank=meeting.rank, world_size=meeting.world, timeout=limit
        )
    except RuntimeError as error:  # all of them are there: they have met in the store
        hint = "if all hosts are up, name the interface that joins them on each: GLOO_SOCKET_IFNAME=eth0"
        what = f"the ranks do not reach each other; got {_brief(error)}"
        raise ConfigError([Problem("network", what, hint)]) from None  # of its cause it would count as a lost rank


def _brief(error: Exception) -> str:
    """The first sentence of what a backend says, without the place in its source."""
    return re.sub(r"\[\S*\.(cc|h):\d+\] ", "", str(error)).partition(". ")[0]


def _lost(error: BaseException | None) -> bool:
    """Whether an error says, or comes of one that says, that another rank is gone, silent or has failed."""
    if error is None or isinstance(error, (dist.DistError, RankFailed)):
        return error is not None
    words = ("gloo", "nccl", "connection closed", "timed out", "connection reset")
    said = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    return said or _lost(error.__cause__)
