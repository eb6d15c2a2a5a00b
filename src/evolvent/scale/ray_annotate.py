"""Annotation by a frozen policy on a cluster: the same columns as in process, window by window, in order.

    parts (here) -- windows of 512 --> annotators, the policy's files put once --> parts, columns

A window is the unit that `learn.annotate` sorts, so on the same processors the columns are equal bit by bit.
Ray restarts an annotator whose node was lost, and repeats its windows: repeating a request changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.errors import EndpointError, EngineError, EvolventError, boundary
from evolvent.learn.annotate import WINDOW, annotate
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.policy import Policy
from evolvent.scale.ray_cluster import Placement, count_player_slots
from evolvent.scale.ray_players import make_error
from evolvent.scale.ray_wire import PolicyFiles, load_policy_files, read_policy_files
from evolvent.trajectory import JsonObject

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Annotator", "annotate_on_cluster"]


AnnotationResult = tuple[list[TokenSequence], tuple[str, str] | None]


class Annotator:
    """A policy on a node of the cluster.

    Args:
        files: `names` and `limit`, see `ray_wire.PolicyFiles`, and `contents`, the digests of the following
            arguments, in order.
        annotate_options: Keyword arguments of `learn.annotate.annotate`.
        placement: `threads` of torch, and the `device`.
    """

    def __init__(
        self,
        files: JsonObject,
        annotate_options: JsonObject,
        placement: JsonObject,
        *contents: NDArray[np.uint8],
    ) -> None:
        torch.set_num_threads(placement["threads"])
        self._asked = dict(annotate_options)
        with TemporaryDirectory(prefix="evolvent-") as folder:
            files_by_digest = dict(zip(files["contents"], contents, strict=True))
            self._policy = load_policy_files(Path(folder), PolicyFiles(files["names"], files["limit"]), files_by_digest)
        self._policy.model.to(placement["device"])

    def say(self, window: Sequence[TokenSequence]) -> AnnotationResult:
        """Returns the same token sequences with their columns, or the kind and text of an error."""
        try:
            with boundary(EngineError, "annotating failed"):
                return list(annotate(self._policy, window, **self._asked)), None
        except EvolventError as error:
            return [], (type(error).__name__, str(error))


_AHEAD = 2  # windows of an annotator: one that it works on, one that waits
_RETRIES = 3  # lives of an annotator after its first, and tries of a window after its first


def annotate_on_cluster(
    policy: Policy,
    sequences: Iterable[TokenSequence],
    *,
    ray: ModuleType,
    vocabulary: str,
    teacher_k: int | None = None,
    batch_tokens: int | None = None,
    placement: Placement | None = None,
    threads: int = 1,
) -> Iterator[TokenSequence]:
    """Runs `learn.annotate.annotate` on a cluster: the same sequences, in order, with the same columns.

    Args:
        policy: The frozen policy.
        sequences: Token sequences.
        vocabulary, teacher_k, batch_tokens: See `annotate`.
        ray: Ray's module, connected (`ray_cluster.connect`).
        placement: Resources of an annotator; their number is `players`, and the waiting times are those of players.
        threads: Threads of torch in each annotator; equal numbers give equal columns bit by bit.
    Raises:
        Errors of `annotate`. EndpointError: the cluster is gone, or it lost an annotator four times.
    """
    annotate_options = {"vocabulary": vocabulary, "teacher_k": teacher_k, "max_tokens_per_forward": batch_tokens}
    annotate(policy, (), **annotate_options)  # type: ignore[arg-type]  # refuses here, before anything travels
    return _annotate_windows(
        policy, iter(sequences), annotate_options, ray=ray, placement=placement or Placement(), threads=threads
    )


def _annotate_windows(
    policy: Policy,
    sequences: Iterator[TokenSequence],
    annotate_options: Mapping[str, Any],
    *,
    ray: Any,
    placement: Placement,
    threads: int,
) -> Iterator[TokenSequence]:
    actors, object_refs = _start_annotators(policy, annotate_options, ray=ray, placement=placement, threads=threads)
    pending_calls: deque[Any] = deque()
    num_windows = 0
    try:
        while True:
            while len(pending_calls) < _AHEAD * len(actors) and (window := list(islice(sequences, WINDOW))):
                pending_calls.append(actors[num_windows % len(actors)].say.remote(window))
                num_windows += 1
            if not pending_calls:
                return
            yield from _get_result(ray, pending_calls.popleft(), placement.silent_s)
    finally:
        for actor in actors:
            ray.kill(actor)
        object_refs.clear()  # until here: an annotator that begins anew reads the files again


def _start_annotators(
    policy: Policy, annotate_options: Mapping[str, Any], *, ray: Any, placement: Placement, threads: int
) -> tuple[list[Any], list[Any]]:
    """Starts annotators with the policy; its files are put once and live as long as the references."""
    files, contents = read_policy_files(policy)
    needs = {"num_cpus": placement.cpus, "num_gpus": placement.gpus, "resources": dict(placement.resources)}
    actor = ray.remote(Annotator).options(
        **needs, max_restarts=_RETRIES, max_task_retries=_RETRIES, scheduling_strategy="SPREAD"
    )
    file_settings = {"names": dict(files.names), "limit": files.limit, "contents": list(contents)}
    object_refs = [ray.put(data) for data in contents.values()]
    worker_settings = {"threads": threads, "device": "cuda" if placement.gpus else "cpu"}
    count = placement.players or count_player_slots(ray, placement)
    return [
        actor.remote(file_settings, dict(annotate_options), worker_settings, *object_refs) for _ in range(count)
    ], object_refs


def _get_result(ray: Any, call: Any, silent_s: float) -> list[TokenSequence]:
    """Returns the annotated sequences of a window."""
    ray_errors = ray.exceptions
    try:
        window_result, error = ray.get(call, timeout=silent_s)
    except ray_errors.GetTimeoutError as problem:
        raise EndpointError("the Ray cluster has not returned a window", value=f"for {silent_s:g} s") from problem
    except ray_errors.RayError as problem:
        raise EndpointError("the Ray cluster lost an annotator repeatedly", value=str(problem)[:200]) from problem
    if error is not None:
        raise make_error(*error)
    sequences: list[TokenSequence] = window_result
    return sequences
