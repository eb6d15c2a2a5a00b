"""The served document against the server: schemathesis makes requests of it, valid and not, and judges the answers.

Bounded: a few examples an operation, the same ones every time. It speaks to a real server over a real socket. What it
cannot guess (ids of tasks and sessions) is given to it every other time.
"""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from evolvent.serve.native.openapi import build_document
from tests.serve.served import begin, serving, small_worlds

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
OPERATIONS = [
    (method, path)
    for path, found in build_document(["echo"])["paths"].items()
    for method in found
    if method != "parameters"
]
WORLDS = ("echo", "crafting")


@pytest.fixture(scope="module")
def served():
    with serving(small_worlds(WORLDS)) as server, server.client() as client:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json"), client


def make_real(case, client):
    """Put what exists in the place of what was made up: a world, a task, a session of its own, a panel."""
    task = client.get("/v1/worlds/echo/tasks?split=train&tier=seen").json()["tasks"][0]["id"]
    known = {"world": "echo", "task": task, "session": begin(client), "split": "dev", "tier": "seen"}
    for part in (case.path_parameters, case.query, case.body):
        if isinstance(part, dict):
            part.update({name: known[name] for name in set(part) & set(known)})
    if isinstance(case.body, dict) and isinstance(case.body.get("step"), int):
        case.body["step"] = 0


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[" ".join(pair) for pair in OPERATIONS])
def test_every_operation_keeps_its_word(served, method, path):
    schema, client = served
    operation = schema[path][method.upper()]
    modes = st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE])

    @settings(
        max_examples=16,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(modes.flatmap(lambda mode: operation.as_strategy(generation_mode=mode)), st.booleans())
    def answered(case, real):
        if real:
            make_real(case, client)
        case.call_and_validate(checks=CHECKS)

    answered()
