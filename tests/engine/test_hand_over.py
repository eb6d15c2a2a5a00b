"""Weights handed over to an endpoint, against a scripted server: the request, retries, the deadline, typed errors."""

from __future__ import annotations

import pytest

from evolvent.engine.endpoint import Endpoint
from evolvent.errors import EndpointError, TokensMissing
from tests.serve.small_policy import scripted

TAKEN = {"success": True, "message": "Succeeded", "num_paused_requests": 0}


def test_the_request_has_the_form_of_sglang_and_is_outside_the_versioned_paths():
    with scripted(lambda *asked: (200, {}, TAKEN)) as (url, script), Endpoint(url, "m") as endpoint:
        assert endpoint.load_weights("/weights/step-1") == "", "an endpoint that tells no fingerprint"
    ((path, _, body),) = script.asked
    assert path == "/update_weights_from_disk" and body == {"model_path": "/weights/step-1"}


def test_it_is_repeated_until_it_is_taken():
    def answer(number, path, body):
        return (
            (503, {"retry-after": "0"}, {})
            if number < 2
            else (200, {}, TAKEN | {"system_fingerprint": "evolvent-v3-ab"})
        )

    with scripted(answer) as (url, script), Endpoint(url, "m", timeout_s=0.01) as endpoint:
        assert endpoint.load_weights("/w", wait_s=30) == "evolvent-v3-ab", "its deadline is not that of a completion"
    assert [body for _, _, body in script.asked] == [{"model_path": "/w"}] * 3


@pytest.mark.parametrize(
    ("status", "row", "said"),
    [
        (400, {"success": False, "message": "other shapes"}, "other shapes"),
        (404, {}, "Check the address"),
        (200, {"success": False, "message": "no"}, "the endpoint refused the weights"),
        (200, [], "the endpoint refused the weights"),
    ],
)
def test_weights_that_are_not_taken(status, row, said):
    with scripted(lambda *asked: (status, {}, row)) as (url, script), Endpoint(url, "m") as endpoint:
        with pytest.raises(EndpointError, match=said):
            endpoint.load_weights("/w")
    assert len(script.asked) == 1


def test_all_tries_end_at_the_deadline():
    with scripted(lambda *asked: (503, {}, {})) as (url, script), Endpoint(url, "m") as endpoint:
        with pytest.raises(EndpointError, match="got 503"):
            endpoint.load_weights("/w", wait_s=0.6)
    assert len(script.asked) >= 2


def test_how_an_endpoint_reads_a_text():
    choice = {"text": "x", "finish_reason": "length", "token_ids": [9], "logprobs": {"token_logprobs": [-0.5]}}
    row = {"choices": [choice | {"prompt_token_ids": [4, 5, 6]}]}
    with scripted(lambda *asked: (200, {}, row)) as (url, script), Endpoint(url, "m") as endpoint:
        assert endpoint.tokenize("a text").tolist() == [4, 5, 6]
    assert script.asked[0][2]["prompt"] == "a text" and script.asked[0][2]["max_tokens"] == 1
    with scripted(lambda *asked: (200, {}, {"choices": [choice]})) as (url, _), Endpoint(url, "m") as endpoint:
        with pytest.raises(TokensMissing, match="prompt_token_ids"):
            endpoint.tokenize("a text")
