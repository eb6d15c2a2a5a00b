"""What a frozen policy says of parts, asked on a cluster: the same columns as here, window by window, in order.

    parts (here) -- windows of 512 --> annotators (`ray_annotated`), the policy's files put once --> parts, columns

A window is what `learn.annotate` sorts together, so on the same processors the columns are the same to the bit. Ray
begins an annotator anew whose node was lost, and asks it again for the windows it had: asking twice changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.errors import EndpointError, EngineError, EvolventError, boundary
from evolvent.learn.annotate import WINDOW, annotate
from evolvent.learn.token_sequences import Parts
from evolvent.models.policy import Policy
from evolvent.scale.ray_cluster import Placing, room
from evolvent.scale.ray_players import error_of
from evolvent.scale.ray_wire import Files, files_of, policy_in

__all__ = ["Annotator", "annotate_on"]


Said = tuple[list[Parts], tuple[str, str] | None]


class Annotator:
    """A policy on a node of the cluster.

    Args:
        files: `names` and `limit`, see `ray_wire.Files`, and `contents`, the digests of what follows, in order.
        asked: what `learn.annotate.annotate` takes by name. place: `threads` of torch, and the `device`.
    """

    def __init__(
        self,
        files: Mapping[str, Any],
        asked: Mapping[str, Any],
        place: Mapping[str, Any],
        *contents: NDArray[np.uint8],
    ) -> None:
        torch.set_num_threads(place["threads"])
        self._asked = dict(asked)
        with TemporaryDirectory(prefix="evolvent-") as folder:
            known = dict(zip(files["contents"], contents, strict=True))
            self._policy = policy_in(Path(folder), Files(files["names"], files["limit"]), known)
        self._policy.model.to(place["device"])

    def say(self, window: Sequence[Parts]) -> Said:
        """The same parts with their columns, or the kind and text of an error."""
        try:
            with boundary(EngineError, "annotating failed"):
                return list(annotate(self._policy, window, **self._asked)), None
        except EvolventError as error:
            return [], (type(error).__name__, str(error))


_AHEAD = 2  # windows of an annotator: one that it works on, one that waits
_RETRIES = 3  # lives of an annotator after its first, and tries of a window after its first


def annotate_on(
    policy: Policy,
    parts: Iterable[Parts],
    *,
    ray: Any,
    vocabulary: str,
    teacher_k: int | None = None,
    batch_tokens: int | None = None,
    placing: Placing | None = None,
    threads: int = 1,
) -> Iterator[Parts]:
    """`learn.annotate.annotate` on a cluster: the same parts, in order, with the same columns.

    Args:
        vocabulary, teacher_k, batch_tokens: see `annotate`.
        ray: Ray's module, connected (`ray_cluster.connected`).
        placing: what an annotator takes of its node; as many as `players`, and as long a wait, as for players.
        threads: of torch, in each annotator; the same as here where columns are to be the same to the bit.
    Raises:
        what `annotate` raises. EndpointError: the cluster is gone, or it lost an annotator four times.
    """
    asked = {"vocabulary": vocabulary, "teacher_k": teacher_k, "batch_tokens": batch_tokens}
    annotate(policy, (), **asked)  # type: ignore[arg-type]  # refuses here, before anything travels
    return _annotated(policy, iter(parts), asked, ray=ray, placing=placing or Placing(), threads=threads)


def _annotated(
    policy: Policy, parts: Iterator[Parts], asked: Mapping[str, Any], *, ray: Any, placing: Placing, threads: int
) -> Iterator[Parts]:
    actors, held = _hired(policy, asked, ray=ray, placing=placing, threads=threads)
    waiting: deque[Any] = deque()
    dealt = 0
    try:
        while True:
            while len(waiting) < _AHEAD * len(actors) and (window := list(islice(parts, WINDOW))):
                waiting.append(actors[dealt % len(actors)].say.remote(window))
                dealt += 1
            if not waiting:
                return
            yield from _told(ray, waiting.popleft(), placing.silent_s)
    finally:
        for actor in actors:
            ray.kill(actor)
        held.clear()  # until here: an annotator that begins anew reads the files again


def _hired(
    policy: Policy, asked: Mapping[str, Any], *, ray: Any, placing: Placing, threads: int
) -> tuple[list[Any], list[Any]]:
    """Annotators, each with the policy, and its files, which are put once and live as long as they are held."""
    files, contents = files_of(policy)
    needs = {"num_cpus": placing.cpus, "num_gpus": placing.gpus, "resources": dict(placing.resources)}
    actor = ray.remote(Annotator).options(
        **needs, max_restarts=_RETRIES, max_task_retries=_RETRIES, scheduling_strategy="SPREAD"
    )
    told = {"names": dict(files.names), "limit": files.limit, "contents": list(contents)}
    held = [ray.put(data) for data in contents.values()]
    place = {"threads": threads, "device": "cuda" if placing.gpus else "cpu"}
    count = placing.players or room(ray, placing)
    return [actor.remote(told, dict(asked), place, *held) for _ in range(count)], held


def _told(ray: Any, call: Any, silent_s: float) -> list[Parts]:
    """The parts of a window."""
    lost = ray.exceptions
    try:
        said, error = ray.get(call, timeout=silent_s)
    except lost.GetTimeoutError as problem:
        raise EndpointError("no window has come back from the Ray cluster", value=f"for {silent_s:g} s") from problem
    except lost.RayError as problem:
        raise EndpointError("the Ray cluster lost an annotator again and again", value=str(problem)[:200]) from problem
    if error is not None:
        raise error_of(*error)
    found: list[Parts] = said
    return found
