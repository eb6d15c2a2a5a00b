"""Which form of weights an endpoint gets, before anything is played: adapters, whole weights, or a refusal."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, EndpointError
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.scale.adapter_handover import AdapterPublisher, measure_sampler_difference
from evolvent.scale.endpoint_backend import choose_hand_over
from tests.learn.byte_policy import byte_policy
from tests.serve.small_policy import scripted


class Server:
    """A server that has routes for whole weights, for adapters, or both, and does not load the adapter it is told to.

    Args:
        routes: endings of the paths that it has.
        status: status of its answer to an adapter.
    """

    def __init__(self, *routes: str, status: int = 500) -> None:
        self.routes, self.status = routes, status

    def __call__(self, number: int, path: str, body: object) -> tuple[int, dict[str, str], object]:
        if not path.endswith(self.routes):
            return 404, {}, {"detail": "Not Found"}
        if body is None:
            return 405, {}, {"detail": "Method Not Allowed"}
        message = "LoRA is not enabled. Use --enable-lora to enable LoRA."
        return self.status, {}, {"error": {"message": message, "type": "InternalServerError", "code": self.status}}


WHOLE, ADAPTER = "/update_weights_from_disk", "/load_lora_adapter"


@pytest.fixture(scope="module")
def policies():
    policy = byte_policy()
    return {kind: adapt(policy, AdapterConfig(kind=kind), seed=0) for kind in ("none", "lora", "ia3")}


def choose(server: Server, policy, folder, *, sends_adapters: bool | None) -> bool:
    with scripted(server) as (url, _), Endpoint(url, "m", tokens=True) as endpoint:
        publisher = AdapterPublisher(folder)
        return choose_hand_over(endpoint, policy, publisher, sends_adapters=sends_adapters, wait_s=10)


@pytest.mark.parametrize("kind", ["none", "ia3"])
def test_only_lora_is_handed_over_as_an_adapter(policies, tmp_path, kind):
    server = Server(WHOLE, ADAPTER)
    assert choose(server, policies[kind], tmp_path / "w", sends_adapters=None) is False
    with pytest.raises(ConfigError, match=r"hand_over_as: the policy is not a LoRA adapter.*--adapter\.kind lora"):
        choose(server, policies[kind], tmp_path / "w", sends_adapters=True)
    assert not (tmp_path / "w").exists()


def test_whole_weights_are_handed_over_where_a_server_has_no_route_for_adapters(policies, tmp_path):
    assert choose(Server(WHOLE), policies["lora"], tmp_path, sends_adapters=None) is False
    assert choose(Server(WHOLE), policies["lora"], tmp_path, sends_adapters=False) is False
    with pytest.raises(ConfigError, match=r"loads no adapters: it has no /v1/load_lora_adapter.*--enable-lora"):
        choose(Server(WHOLE), policies["lora"], tmp_path, sends_adapters=True)


def test_a_server_that_takes_neither_is_refused_with_both_reasons(policies, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)takes no weights.*loads no adapters"):
        choose(Server("/models"), policies["lora"], tmp_path, sends_adapters=None)


def test_a_server_that_refuses_the_first_adapter_gets_whole_weights(policies, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert choose(Server(WHOLE, ADAPTER), policies["lora"], tmp_path, sends_adapters=None) is False
    assert "whole weights are handed over" in caplog.text and "--enable-lora --max-lora-rank 8" in caplog.text


def test_a_server_that_samples_nothing_does_not_pass_for_one_with_the_same_base(policies):
    """Empty replies used to count as a difference of 0."""
    silent = SimpleNamespace(root="http://there", complete=lambda *prompt, **settings: SimpleNamespace(tokens=None))
    with pytest.raises(EndpointError, match=r"http://there returned no tokens to compare with the policy: got 4 empty"):
        measure_sampler_difference(silent, policies["lora"])


@pytest.mark.parametrize(("routes", "sends_adapters"), [((WHOLE, ADAPTER), True), ((ADAPTER,), None)])
def test_it_is_refused_where_that_does_not_work(policies, tmp_path, routes, sends_adapters):
    with pytest.raises(ConfigError, match=r"does not load the adapter.*LoRA is not enabled"):
        choose(Server(*routes), policies["lora"], tmp_path, sends_adapters=sends_adapters)
