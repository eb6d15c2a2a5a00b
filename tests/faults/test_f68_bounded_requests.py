"""Fault 68: a request asks a policy server for more replies, tokens, alternatives or stops than anybody needs.

It is answered with 400 and the bound, and nothing is computed.
"""

import httpx2
import pytest

from tests.bench.small_policies import small_policy
from tests.serve.small_policy import NAME, policy_server


@pytest.fixture(scope="module")
def server():
    with policy_server(small_policy()) as running:
        yield running


CHAT = {"model": NAME, "messages": [{"role": "user", "content": "go"}]}
TEXT = {"model": NAME, "prompt": "go"}


@pytest.mark.parametrize(
    ("path", "body", "bound"),
    [
        ("/chat/completions", CHAT | {"n": 129}, "128"),
        ("/chat/completions", CHAT | {"max_tokens": 2**40}, str(2**31)),
        ("/chat/completions", CHAT | {"max_completion_tokens": 2**40}, str(2**31)),
        ("/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 21}, "20"),
        ("/chat/completions", CHAT | {"stop": ["a"] * 65}, "64"),
        ("/chat/completions", CHAT | {"stop": "a" * 1001}, "1000"),
        ("/chat/completions", CHAT | {"logit_bias": {str(token): 1.0 for token in range(1025)}}, "1024"),
        ("/completions", TEXT | {"n": 129}, "128"),
        ("/completions", TEXT | {"prompt": ["go"] * 129}, "128"),
        ("/completions", TEXT | {"prompt": ["go"] * 65, "n": 2}, "128"),
        ("/completions", TEXT | {"logprobs": 21}, "20"),
        ("/completions", TEXT | {"stop": ["a"] * 65}, "64"),
        ("/completions", TEXT | {"max_tokens": 2**40}, str(2**31)),
    ],
)
def test_what_a_request_asks_for_is_bounded_and_the_bound_is_told(server, path, body, bound):
    answer = httpx2.post(server.url + path, json=body, trust_env=False, timeout=60)
    assert answer.status_code == 400 and bound in answer.json()["error"]["message"]
