"""vLLM as an endpoint: which weights wrote a reply, and taking other weights from a folder.

Ids and log-probabilities come as `Endpoint` reads them. Beside those, `return_weight_versions` tells the label of the
weights for every range of tokens. Weights are taken over routes that vLLM has in its development mode only
(`VLLM_SERVER_DEV_MODE=1`): keep such a server on a network of its own, since they ask for no key.

    POST /pause?mode=wait                                                        what is under way is answered first
    POST /collective_rpc {"method": "reload_weights", "kwargs": {"weights_path"}}  every worker reads the folder
    POST /update_weight_version {"new_version"}                                  the label of what it serves now
    POST /reset_prefix_cache                                                     keys and values of the old weights
    POST /resume
    GET  /weight_info                                                            is that what is served?

Written from vLLM 0.33.0 as it is published; older ones lack `weights_path` or the labels, and refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evolvent.deadline import Deadline
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.labels import one_label, same_weights, weights_label
from evolvent.engine.replies import Reply
from evolvent.errors import EndpointError, WeightsChanged

__all__ = ["VllmEndpoint"]


class VllmEndpoint(Endpoint):
    """A model that vLLM serves. Arguments and errors are those of `Endpoint`.

    `processed` is true of a server that was started with `--logprobs-mode processed_logprobs`.
    """

    def hand_over(self, folder: Path, *, wait_s: float = 600.0) -> str:
        """Have every worker read the weights of a model folder.

        The server is paused meanwhile: what is under way is written to its end by the old weights, what comes is
        refused with 503, which other clients of ours repeat. An update that fails leaves it paused, because nobody
        knows what it would serve: hand over again, or start it anew.

        Args:
            folder: as the server's workers are to find it.
            wait_s: for all of it together, with the wait for what is under way.
        Returns:
            the label of what is served now, `evolvent-vVERSION-DIGEST`.
        Raises:
            EndpointError: it takes no weights (not in its development mode, or an older version), not these, or did
                not answer in time. WeightsChanged: it serves another label afterwards. Incomplete: no weights there.
        """
        label, deadline = weights_label(folder), Deadline(wait_s)
        self._told("POST", "/pause?mode=wait", deadline)
        kwargs = {"weights_path": str(folder)}
        self._told("POST", "/collective_rpc", deadline, {"method": "reload_weights", "kwargs": kwargs})
        self._told("POST", "/update_weight_version", deadline, {"new_version": label})
        emptied = self._told("POST", "/reset_prefix_cache", deadline)
        if emptied.get("success") is not True:
            raise EndpointError(
                f"POST {self.root}/reset_prefix_cache: what was computed with the old weights is kept",
                value=ascii(emptied)[:200],
                expected='{"success": true}',
            )
        self._told("POST", "/resume", deadline)
        served = str(self._told("GET", "/weight_info", deadline).get("weight_version", ""))
        if not same_weights(served, label):
            raise WeightsChanged(
                "vLLM serves other weights than were handed over",
                value=served,
                expected=label,
                hint="let one run alone use it",
            )
        return served

    def _told(self, method: str, path: str, deadline: Deadline, body: Any = None) -> Mapping[str, Any]:
        """The answer of a route outside the versioned paths."""
        row = self._answered(method, self.root + path, body, {}, wait_s=max(0.001, deadline.left()))
        return row if isinstance(row, Mapping) else {}

    def _completed(self, path: str, body: dict[str, Any], *, tokens: bool, session: str | None) -> Reply:
        more = {"return_weight_versions": True} if tokens else {}
        return super()._completed(path, body | more, tokens=tokens, session=session)

    def _read(self, row: object, *, chat: bool, tokens: bool, where: str) -> Reply:
        reply = super()._read(row, chat=chat, tokens=tokens, where=where)
        choice = row["choices"][0] if isinstance(row, Mapping) else {}
        label = one_label(None, choice.get("weight_versions"), where=where)
        return replace(reply, fingerprint=label) if label else reply
