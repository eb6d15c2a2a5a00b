"""The actor that says what a frozen policy thinks of parts, somewhere on a cluster; it loads the policy once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.errors import EngineError, EvolventError, boundary
from evolvent.learn.annotate import annotate
from evolvent.learn.parts import Parts
from evolvent.scale.ray_wire import Files, policy_in

__all__ = ["Annotator"]

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
