"""vLLM as an endpoint: labels of the weights that wrote a reply, and loading other weights from a folder.

Ids and log-probabilities come as `Endpoint` reads them. Beside those, `return_weight_versions` reports the
label of the weights for every range of tokens. Weights are loaded over routes that vLLM has in its development
mode only (`VLLM_SERVER_DEV_MODE=1`): keep such a server on its own network, since these routes ask for no key.

    POST /pause?mode=wait                                                        running requests are answered
        first
    POST /collective_rpc {"method": "reload_weights", "kwargs": {"weights_path"}}  every worker reads the folder
    POST /update_weight_version {"new_version"}                                  the label of the weights it
        serves now
    POST /reset_prefix_cache                                                     keys and values of the old
        weights
    POST /resume
    GET  /weight_info                                                            are these the served weights?

Written from vLLM 0.33.0 as it is published; older ones lack `weights_path` or the labels, and refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evolvent.deadline import Deadline
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.labels import reply_label, same_weights, weights_label
from evolvent.engine.replies import Reply
from evolvent.errors import EndpointError, WeightsChanged

__all__ = ["VllmEndpoint"]


class VllmEndpoint(Endpoint):
    """A model that vLLM serves. Arguments and errors are those of `Endpoint`.

    `processed` is true of a server that was started with `--logprobs-mode processed_logprobs`.
    """

    def load_weights(self, folder: Path, *, wait_s: float = 600.0) -> str:
        """Loads the weights of a model folder in every worker.

        The server is paused meanwhile: running requests are completed by the old weights, new requests are refused with
        503, which our other clients repeat. A failed update leaves it paused, because the served weights would be
        unknown: load the weights again, or restart the server.

        Args:
            folder: as the server's workers find it.
            wait_s: for all of it together, including the wait for running requests.
        Returns:
            the label of the served weights, `evolvent-vVERSION-DIGEST`.
        Raises:
            EndpointError: it does not load weights (not in its development mode, or an older version), refuses these,
                or did not answer in time. WeightsChanged: it serves another label afterwards. Incomplete: no weights
                there.
        """
        label, deadline = weights_label(folder), Deadline(wait_s)
        self._request_route("POST", "/pause?mode=wait", deadline)
        kwargs = {"weights_path": str(folder)}
        self._request_route("POST", "/collective_rpc", deadline, {"method": "reload_weights", "kwargs": kwargs})
        self._request_route("POST", "/update_weight_version", deadline, {"new_version": label})
        reset_reply = self._request_route("POST", "/reset_prefix_cache", deadline)
        if reset_reply.get("success") is not True:
            raise EndpointError(
                f"POST {self.root}/reset_prefix_cache: the prefix cache of the old weights was not cleared",
                value=ascii(reset_reply)[:200],
                expected='{"success": true}',
            )
        self._request_route("POST", "/resume", deadline)
        served = str(self._request_route("GET", "/weight_info", deadline).get("weight_version", ""))
        if not same_weights(served, label):
            raise WeightsChanged(
                "vLLM serves different weights than it received",
                value=served,
                expected=label,
                hint="use the server for one run at a time",
            )
        return served

    def check_weights(self) -> None:
        """Checks that the server is in its development mode, which takes weights; see `Endpoint.check_weights`."""
        self._check_route("/collective_rpc", hint="start vLLM with VLLM_SERVER_DEV_MODE=1, or name another --dialect")

    def _request_route(self, method: str, path: str, deadline: Deadline, body: Any = None) -> Mapping[str, Any]:
        """Returns the answer of a route outside the versioned paths."""
        row = self._request_json(method, self.root + path, body, {}, wait_s=max(0.001, deadline.left()))
        return row if isinstance(row, Mapping) else {}

    def _request_completion(self, path: str, body: dict[str, Any], *, tokens: bool, session: str | None) -> Reply:
        extra_fields = {"return_weight_versions": True} if tokens else {}
        return super()._request_completion(path, body | extra_fields, tokens=tokens, session=session)

    def _parse_reply(self, row: object, *, chat: bool, tokens: bool, request_name: str) -> Reply:
        reply = super()._parse_reply(row, chat=chat, tokens=tokens, request_name=request_name)
        choice = row["choices"][0] if isinstance(row, Mapping) else {}
        label = reply_label(None, choice.get("weight_versions"), request_name=request_name)
        return replace(reply, fingerprint=label) if label else reply
