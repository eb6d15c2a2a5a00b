"""This process among the ranks of a training: its groups, and sums over them. One process needs no process group.

The shape of a layout: number of ranks in each direction.

Nothing here needs torch's process groups: impossible layouts are refused before a model is built.

Log-probabilities and samples where every rank of the tp dimension has the logits of its own slice of the
vocabulary.

Shapes: `N` positions, `V` tokens, `P = V / tp` tokens per rank. No rank ever holds `[N, V]` logits.
"""

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
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional as F

from evolvent.errors import ConfigError, Problem, RankFailed
from evolvent.learn.settings import Mesh, Parallelism, Schedule

__all__ = [
    "SINGLE_PROCESS",
    "Mesh",
    "Parallelism",
    "RankCoordinator",
    "Ranks",
    "Schedule",
    "join_ranks",
    "vocab_entropy",
    "vocab_logprobs",
    "vocab_sample",
]


_FAILED, _HERE, _BEAT, _READY = (f"evolvent/{name}" for name in ("failed", "here", "beat", "ready"))
_CALL, _ANSWER, _CAME = (f"evolvent/{name}" for name in ("call", "answer", "came"))
_AGENT_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"
_GRACE_S, _PAUSE_S = 5.0, 0.05  # how long ranks that lost another wait for its own words, and between two looks

Dim = Literal["pp", "replicate", "shard", "tp", "dp"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ranks.

    Attributes:
        mesh: the layout.
        device: of this process.
        devices: torch's mesh with dimensions pp, replicate, shard, tp, and dp, which is the product of replicate
            and shard; None in a single process.
    """

    mesh: Mesh
    device: torch.device
    devices: DeviceMesh | None = None

    def group(self, dim: Dim) -> dist.ProcessGroup | None:
        """Returns the ranks along a dimension through this one; None in a single process."""
        return None if self.devices is None else self.devices.get_group(dim)

    def rank_along(self, dim: Dim) -> int:
        """Returns this rank's number along a dimension."""
        return 0 if self.devices is None else dist.get_rank(self.group(dim))

    @property
    def rank(self) -> int:
        """Returns this rank's number among all."""
        return 0 if self.devices is None else dist.get_rank()

    @property
    def is_leader(self) -> bool:
        """Returns whether this is the one rank that writes and reports for all."""
        return self.rank == 0

    def sum(self, value: Tensor, *dims: Dim) -> Tensor:
        """Sums over the ranks along dimensions, everywhere; in place."""
        for dim in dims:
            group = self.group(dim)
            if group is not None and group.size() > 1:
                dist.all_reduce(value, group=group)
        return value

    def gather(self, payload: bytes, *, group: dist.ProcessGroup | None = None) -> list[bytes]:
        """Returns the bytes of every rank, in the order of ranks, on all ranks; nothing is pickled.

        Args:
            payload: the bytes of this rank.
            group: a group of `open_side_group`; None: the group that the main thread uses.
        """
        if self.devices is None:
            return [payload]
        device = self.device if group is None else torch.device("cpu")
        sizes = torch.zeros(self.mesh.size, dtype=torch.int64, device=device)
        sizes[self.rank] = len(payload)
        dist.all_reduce(sizes, group=group)
        counts = sizes.tolist()
        own_bytes = torch.zeros(max(1, *counts), dtype=torch.uint8)
        own_bytes[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else 0
        gathered = [torch.empty_like(own_bytes, device=device) for _ in counts]
        dist.all_gather(gathered, own_bytes.to(device), group=group)
        return [part[:count].cpu().numpy().tobytes() for part, count in zip(gathered, counts, strict=True)]

    def open_side_group(self, *, timeout_s: float) -> dist.ProcessGroup | None:
        """Opens a second group of all ranks, in main memory, for what runs beside the main thread's updates.

        All ranks call it together. Calls on different groups never mix, whichever thread comes first.

        Args:
            timeout_s: seconds after which waiting for a silent rank ends.
        Returns:
            the group; None in a single process.
        """
        if self.devices is None:
            return None
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        return group

    def wait(self) -> None:
        """Waits until all ranks have come here."""
        self.gather(b"")


SINGLE_PROCESS = Ranks(Mesh(), torch.device("cpu"))


class RankCoordinator:
    """Coordinates the ranks that torchrun started beside their process groups, and reports the first failure once.

    Use it in a `with` statement around everything that may fail. A process that torchrun did not start has no other
    ranks.

    Args:
        timeout: seconds after which waiting for a silent rank ends; may be changed.
    Raises:
        RankFailed: on leaving, on every rank except the one that failed first, which raises its own error.
            `is_reported` says whether that rank has reported it. Where it died silently, one of the others names it,
            not `is_reported`.
    """

    def __init__(self, timeout: float = 600.0) -> None:
        self.timeout = timeout
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.store: Any = None

    def __enter__(self) -> RankCoordinator:
        if self.world > 1 and {"RANK", "MASTER_ADDR"} <= set(os.environ):
            store = next(iter(rendezvous("env://", timeout=timedelta(seconds=self.timeout))))[0]
            is_agent_store = os.environ.get(_AGENT_VARIABLE) == "True"  # by an agent that may start us more than once
            self.store = (
                dist.distributed_c10d.PrefixStore(self._agree_on_name(store), store) if is_agent_store else store
            )
        return self

    def _agree_on_name(self, store: Any) -> str:
        """Returns a name that all ranks of this start have in common and no earlier start had.

        torchrun's agents keep one store over all restarts (pytorch issue 135712), and no number that they set is both
        new at every start and the same on every host. The addresses and failures of ended ranks would be mistaken for
        those of living ones. So every rank sends a random name, and the first rank answers with the common name.

        Raises:
            RankFailed: another rank did not appear within the timeout.
        """
        own_name, end = secrets.token_hex(8), time.monotonic() + self.timeout
        if self.rank:
            store.set(f"{_CALL}/{self.rank}", own_name)
            try:
                name = str(store.get(f"{_ANSWER}/{own_name}").decode())
            except dist.DistStoreError as error:
                raise self._missing_error([0]) from error
            store.set(f"{name}/{_CAME}/{self.rank}", "")
            return name
        missing = list(range(1, self.world))
        while missing:
            if time.monotonic() > end:
                raise self._missing_error(missing)
            for rank in missing:  # also those that have ended: who does not come is answered again
                if store.check([f"{_CALL}/{rank}"]):
                    store.set(f"{_ANSWER}/{store.get(f'{_CALL}/{rank}').decode()}", own_name)
            missing = [rank for rank in missing if not store.check([f"{own_name}/{_CAME}/{rank}"])]
            time.sleep(_PAUSE_S if missing else 0)
        return own_name

    def _missing_error(self, missing: Sequence[int]) -> RankFailed:
        subject = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))} have"
        return RankFailed(
            f"{subject} not started", value=f"nothing for {self.timeout:.0f} s", hint="check that its host is reachable"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.store is None or not isinstance(error, Exception):
            return
        first = (
            self._await_first_failure(error)
            if _is_rank_loss(error)
            else self._report_failure(f"rank {self.rank}: {error}")
        )
        if first is not None:
            failed = RankFailed("another rank failed", value=first, hint="fix the cause, then resume")
            failed.is_reported = True
            raise failed from error
        if self.rank == 0 and os.environ.get(_AGENT_VARIABLE) != "True":
            self.store.set(f"{_HERE}/0", "")
            self._await_ranks(is_first_failure=True)  # the store goes when this process does

    def _await_first_failure(self, error: Exception) -> str | None:
        """Waits for the report of the rank that failed first, and returns it; where there is none, names that rank."""
        try:
            self.store.set(f"{_HERE}/{self.rank}", "")
            missing = self._await_ranks()
        except RuntimeError:  # the store went away with rank 0: the next one speaks
            missing = [0]
            if self.rank != 1:
                return "rank 0 died"
        subject = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        first_failure = self._report_failure(f"rank {self.rank} lost {subject}")
        if first_failure is not None or not missing:
            return first_failure
        message = f"{subject} died, or {'was' if len(missing) == 1 else 'were'} silent for too long"
        hint = "read its output, fix the cause, then resume"
        raise RankFailed(message, value=_first_sentence(error), hint=hint) from error

    def _await_ranks(self, *, is_first_failure: bool = False) -> list[int]:
        """Returns the ranks that did not respond in time; `is_first_failure`: whether this rank failed first."""
        end = time.monotonic() + min(_GRACE_S, self.timeout)
        missing = list(range(self.world))
        while missing and time.monotonic() < end and (is_first_failure or not self.store.check([_FAILED])):
            missing = [rank for rank in missing if not self.store.check([f"{_HERE}/{rank}"])]
            time.sleep(_PAUSE_S)
        return missing

    def _report_failure(self, text: str) -> str | None:
        """Reports to the ranks what failed first; returns what another rank reported before, or None."""
        try:
            reported = self.store.compare_set(_FAILED, "", text).decode()
        except RuntimeError:
            return None
        return None if reported == text else str(reported)

    def run_on_leader(self, work: Callable[[], None]) -> None:
        """Runs work on rank 0 alone, however long it takes; the others wait while it lives.

        Raises:
            RankFailed: rank 0 failed, or was silent for `timeout` seconds.
        """
        if self.store is None:
            work()
        elif self.rank == 0:
            is_finished = threading.Event()
            heartbeat = threading.Thread(target=self._send_heartbeats, args=(is_finished,), daemon=True)
            heartbeat.start()
            try:
                work()
            finally:
                is_finished.set()
                heartbeat.join()
            self.store.set(_READY, "")
        else:
            self._wait_for_leader()

    def _send_heartbeats(self, finished: threading.Event) -> None:
        with suppress(RuntimeError):
            while not finished.wait(min(1.0, self.timeout / 5)):
                self.store.add(_BEAT, 1)

    def _wait_for_leader(self) -> None:
        last_count, last_time = -1, time.monotonic()
        while not self.store.check([_READY]):
            count = self.store.add(_BEAT, 0)
            if count != last_count:
                last_count, last_time = count, time.monotonic()
            if self.store.check([_FAILED]) or time.monotonic() - last_time > self.timeout:
                raise RankFailed(
                    "rank 0 was not ready in time", value=f"nothing for {time.monotonic() - last_time:.0f} s"
                )
            time.sleep(_PAUSE_S)


@contextmanager
def join_ranks(
    mesh: Mesh, *, device: str = "cpu", timeout: float = 600.0, coordinator: RankCoordinator | None = None
) -> Iterator[Ranks]:
    """Joins the process group that torchrun describes in the environment, and leaves it at the end.

    An existing group is used, and stays. One process needs none.

    Args:
        device: "cpu" or "cuda"; on CUDA each rank takes the device of its local number.
        timeout: seconds after which waiting for a silent rank ends.
        coordinator: one that has begun; None: a new one.
    Raises:
        ConfigError: a mesh of several ranks in a process that torchrun did not start.
        RankFailed: see `RankCoordinator`.
    """
    if mesh.size == 1:
        yield Ranks(mesh, torch.device(device))
        return
    with ExitStack() as stack:
        if not dist.is_initialized():
            active_coordinator = stack.enter_context(RankCoordinator(timeout)) if coordinator is None else coordinator
            _init_process_group(active_coordinator, mesh, device, timeout)
            stack.callback(dist.destroy_process_group)  # before others are waited for: they learn of it by that
        local = int(os.environ.get("LOCAL_RANK", "0"))
        own_device = torch.device("cuda", local) if device == "cuda" else torch.device(device)
        sizes = (mesh.pp, mesh.replicate, mesh.shard, mesh.tp)
        devices = init_device_mesh(own_device.type, sizes, mesh_dim_names=("pp", "replicate", "shard", "tp"))
        devices["replicate", "shard"]._flatten("dp")
        yield Ranks(mesh, own_device, devices)


def _init_process_group(coordinator: RankCoordinator, mesh: Mesh, device: str, timeout: float) -> None:
    if coordinator.store is None:
        launch = f"torchrun --nproc-per-node {mesh.size} -m evolvent ..."
        raise ConfigError([Problem("parallel", f"{mesh} needs {mesh.size} processes", f"start it with: {launch}")])
    limit = timedelta(seconds=timeout)
    coordinator.store.set_timeout(limit)
    backend = "nccl" if device == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend, store=coordinator.store, rank=coordinator.rank, world_size=coordinator.world, timeout=limit
        )
    except RuntimeError as error:  # all of them are there: they have met in the store
        hint = "check that all hosts are up, and set their network interface on each, such as GLOO_SOCKET_IFNAME=eth0"
        message = f"the ranks cannot reach each other: got {_first_sentence(error)}"
        raise ConfigError([Problem("network", message, hint)]) from None  # of its cause it would count as a lost rank


def _first_sentence(error: Exception) -> str:
    """Returns the first sentence of a backend's message, without its source location."""
    return re.sub(r"\[\S*\.(cc|h):\d+\] ", "", str(error)).partition(". ")[0]


def _is_rank_loss(error: BaseException | None) -> bool:
    """Returns whether an error, or one of its causes, says that another rank is gone, silent or has failed."""
    if error is None or isinstance(error, (dist.DistError, RankFailed)):
        return error is not None
    phrases = ("gloo", "nccl", "connection closed", "timed out", "connection reset")
    is_backend_error = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in phrases)
    return is_backend_error or _is_rank_loss(error.__cause__)


_ROWS = 256  # positions whose noise is drawn at once: it covers the whole vocabulary


def vocab_logprobs(logits: Tensor, ids: Tensor, ranks: Ranks) -> Tensor:
    """Computes `log p` of tokens in float32, shaped like `ids` and equal on all ranks; differentiable once in the
    logits.

    Args:
        logits: `[N, P]`, this rank's slice, in the order of ranks; all of them where tp is 1.
        ids: `[N]` or `[N, k]`, token ids of the whole vocabulary, the same on all ranks.
    """
    group = ranks.group("tp")
    if group is not None and group.size() > 1:
        columns = ids if ids.dim() == logits.dim() else ids.unsqueeze(-1)
        logprobs: Tensor = _LogProbs.apply(logits, columns, ranks.rank_along("tp") * logits.shape[-1], group)  # type: ignore[no-untyped-call]
        return logprobs.view_as(ids)
    if ids.dim() == 1:
        return -F.cross_entropy(logits.float(), ids, reduction="none")
    float_logits = logits.float()
    return float_logits.gather(-1, ids) - float_logits.logsumexp(-1, keepdim=True)


class _LogProbs(torch.autograd.Function):
    """`x_y - log sum exp x` over slices. Its gradient is local: `g (1[y] - p)` in each slice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, first: int, group: dist.ProcessGroup) -> Tensor:
        slice_ = logits.float()
        is_local = (ids >= first) & (ids < first + slice_.shape[-1])
        columns = torch.where(is_local, ids - first, 0)
        local_log_sum = slice_.logsumexp(-1, keepdim=True)
        top = local_log_sum.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        sums = torch.cat(
            [(local_log_sum - top).exp(), torch.where(is_local, slice_.gather(-1, columns) - top, 0.0)], dim=-1
        )
        dist.all_reduce(sums, group=group)
        log_remainder = sums[..., :1].log()
        ctx.save_for_backward(logits, top + log_remainder, columns, is_local)
        return sums[..., 1:] - log_remainder

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, total, columns, is_local = ctx.saved_tensors
        gradient = (logits.float() - total).exp_().mul_(-grad.sum(-1, keepdim=True))
        gradient.scatter_add_(-1, columns, torch.where(is_local, grad, 0.0))
        return gradient.to(logits.dtype), None, None, None


def vocab_entropy(logits: Tensor, ranks: Ranks) -> Tensor:
    """Computes `-sum_v p_v log p_v` of `softmax(logits)` in nats, float32 `[N]`, equal on all ranks; differentiable
    once.

    Args:
        logits: `[N, P]`, this rank's slice.
    """
    group = ranks.group("tp")
    if group is not None and group.size() > 1:
        entropy: Tensor = _Entropy.apply(logits, group)  # type: ignore[no-untyped-call]
        return entropy
    logp = logits.float().log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


class _Entropy(torch.autograd.Function):
    """`H = log Z - E[x]` over slices. Its gradient is local: `-p (log p + H)` in each slice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, group: dist.ProcessGroup) -> Tensor:
        slice_ = logits.float()
        top = slice_.amax(-1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        shifted = slice_ - top[:, None]
        weights = shifted.exp()
        sums = torch.stack([weights.sum(-1), (weights * shifted).sum(-1)])
        dist.all_reduce(sums, group=group)
        log_remainder = sums[0].log()
        entropy = log_remainder - sums[1] / sums[0]
        ctx.save_for_backward(logits, top + log_remainder, entropy)
        return entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, total, entropy = ctx.saved_tensors
        logp = logits.float() - total[:, None]
        gradient = -logp.exp() * (logp + entropy[:, None]) * grad[:, None]
        return gradient.to(logits.dtype), None


@torch.no_grad()
def vocab_sample(logits: Tensor, ranks: Ranks, generator: torch.Generator | None = None) -> Tensor:
    """Samples one token per position from `softmax(logits)`, `[N]`, the same on all ranks of the tp dimension.

    The largest of logit plus Gumbel noise is such a sample (Gumbel-max), and a maximum can be found slice by slice.
    Every rank draws the noise of the whole vocabulary and uses its part, so that a sample does not depend on tp.

    Args:
        logits: `[N, P]`, this rank's slice.
        generator: in the same state on all ranks of the dimension; None: torch's own.
    """
    size, first = logits.shape[-1], ranks.rank_along("tp") * logits.shape[-1]
    best, ids = [], []
    for rows in torch.split(logits, _ROWS):
        noise = torch.empty(len(rows), size * ranks.mesh.tp, device=rows.device).exponential_(generator=generator)
        score, column = (rows.float() - noise[:, first : first + size].log()).max(-1)
        best.append(score)
        ids.append(column + first)
    best_pairs = torch.stack([torch.cat(best).double(), torch.cat(ids).double()])  # [2, N]; a double holds any id
    if ranks.mesh.tp > 1:
        parts = [torch.empty_like(best_pairs) for _ in range(ranks.mesh.tp)]
        dist.all_gather(parts, best_pairs, group=ranks.group("tp"))
        stacked = torch.stack(parts)
        best_pairs = stacked.gather(0, stacked[:, :1].argmax(0, keepdim=True).expand(1, 2, -1))[0]
    return best_pairs[1].long()
