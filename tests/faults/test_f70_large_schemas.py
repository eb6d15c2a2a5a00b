"""Fault 70: a large but valid schema of a tool or of an answer: the constraint library would end the whole process.

It is refused with the bound that it exceeds, and a grammar that is not small is first compiled in a process that can be
killed: the caller goes on whatever happens there.
"""

from __future__ import annotations

import re

import httpx2
import pytest
from worker_functions import ask_for_memory, echo, end_process, sleep_long

pytest.importorskip("llguidance")

from evolvent.errors import SampleInvalid
from evolvent.messages import Tool
from evolvent.models import grammar_limits
from evolvent.models.call_grammars import build_grammar
from evolvent.models.call_schemas import AnswerLimits
from evolvent.models.constraints import CallConstraints
from evolvent.models.dialects import Chat
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config
from evolvent.workers import SharedWorker
from tests.models.test_dialects import byte_tokenizer
from tests.serve.small_policy import NAME, policy_server
from tests.serve.tool_policies import HERMES


@pytest.fixture(scope="module")
def letters() -> Policy:
    tokenizer = byte_tokenizer(HERMES, ["<|im_start|>", "<|im_end|>"])
    return Policy(init_tiny(tiny_config(len(tokenizer), context=512), seed=0), tokenizer, Chat(tokenizer))


def object_of(count: int, **more) -> dict:
    return {"type": "object", "properties": {f"p{number}": {"type": "boolean"} for number in range(count)}, **more}


def nested(levels: int) -> dict:
    schema: dict = {"type": "boolean"}
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


def in_object(schema: dict) -> dict:
    return {"type": "object", "properties": {"x": schema}}


BEYOND = {
    "properties": (object_of(1_001), "properties of an object: got 1,001, expected at most 1,000"),
    "enumeration": (in_object({"enum": list(range(10_001))}), "values of an enumeration: got 10,001"),
    "levels": (in_object(nested(40)), "levels: got 65, expected at most 64"),
    "values": ({"anyOf": [object_of(900) for _ in range(40)]}, "JSON values: got 30,001"),
    "pattern": (in_object({"type": "string", "pattern": "a" * 1_001}), "characters of a pattern: got 1,001"),
    "multiple": (in_object({"type": "integer", "multipleOf": 10_001}), "the multiple of a number: got 10,001"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_schema_beyond_a_bound_is_refused_with_the_bound(letters, name):
    schema, message = BEYOND[name]
    constraints = CallConstraints(letters)
    for build in (
        lambda: constraints.for_schema(schema),
        lambda: constraints.for_tools([Tool("f", "", schema)], form="json"),
    ):
        with pytest.raises(SampleInvalid, match=re.escape(message)):
            build()


def test_many_tools_are_bounded_together(letters):
    tools = [Tool(f"f{number}", "", object_of(900)) for number in range(40)]
    with pytest.raises(SampleInvalid, match="JSON values"):
        CallConstraints(letters).for_tools(tools, form="json")


@pytest.mark.parametrize("form", ["json", "python", "xml"])
@pytest.mark.parametrize("required", [True, False])
def test_rules_of_many_properties_are_shallow(form, required):
    """The library recurses along a chain of rules, so that a deep one ends its process."""
    names = [f"p{number}" for number in range(1_000)] if required else []
    grammar = build_grammar([Tool("f", "", object_of(1_000, required=names))], form=form, limits=AnswerLimits())
    rules = dict(line.split(": ", 1) for line in grammar.text.splitlines() if re.match(r"r\d+: ", line))
    depths: dict[str, int] = {}
    for name, body in rules.items():  # a rule is written behind those that it names
        inner = re.findall(r"\br\d+\b", re.sub(r'"(?:[^"\\]|\\.)*"', "", body))
        depths[name] = 1 + max((depths[part] for part in inner if part != name), default=0)
    assert len(rules) > 1_000 and max(depths.values()) < 25


def test_the_most_that_is_allowed_compiles(letters):
    constraint = CallConstraints(letters).for_tools([Tool("f", "", object_of(1_000))], form="json")
    for token in letters.tokenizer.encode('[{"name": "f", "arguments": {"p7": true, "p9', add_special_tokens=False):
        assert constraint.allowed()[token]
        constraint.advance(token)


FAILURES = {
    "ended": (end_process, "ended its process"),
    "slow": (sleep_long, "it took more than 0.5 s"),
    "memory": (ask_for_memory, "MemoryError"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_trial_that_fails_refuses_the_schema_and_the_process_goes_on(letters, monkeypatch, name):
    function, message = FAILURES[name]
    worker = SharedWorker(function, wall_s=0.5, memory_mb=256)
    monkeypatch.setattr(grammar_limits, "_TRIAL", worker)
    constraints = CallConstraints(letters)
    try:
        with pytest.raises(SampleInvalid, match=f"too complex to constrain.*{message}"):
            constraints.for_schema(in_object({"type": "string", "pattern": "a+"}))
        assert constraints.for_schema(object_of(3)).allowed().any(), "small ones need no trial"
    finally:
        worker.close()


def test_small_schemas_start_no_process(letters, monkeypatch):
    worker = SharedWorker(end_process, wall_s=5.0, memory_mb=256)
    monkeypatch.setattr(grammar_limits, "_TRIAL", worker)
    constraints = CallConstraints(letters)
    assert constraints.for_tools([Tool("f", "", object_of(20))], form="json").allowed().any()
    assert constraints.for_schema(object_of(20)).allowed().any()
    assert worker._workers is None


def test_a_forked_process_does_not_share_its_parents_worker():
    worker = SharedWorker(echo, wall_s=20.0, memory_mb=256)
    assert worker.call("mine") == ("mine", "")
    pool = worker._workers
    worker._forget()
    assert worker._workers is None and worker.call("other") == ("other", "")
    worker.close()
    assert pool is not None and pool.call("mine") == "mine"
    pool.close()


def test_the_server_answers_400_with_the_bound_and_goes_on(letters):
    body = {"model": NAME, "messages": [{"role": "user", "content": "go"}], "max_tokens": 1}
    schema = object_of(1_001)
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    requests = [
        {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
        {**body, "tools": [tool], "tool_choice": "required"},
    ]
    with policy_server(letters) as served:
        for request in requests:
            answer = httpx2.post(f"{served.url}/chat/completions", json=request, timeout=30)
            assert answer.status_code == 400 and "at most 1,000" in answer.json()["error"]["message"]
        assert httpx2.post(f"{served.url}/chat/completions", json=body, timeout=30).status_code == 200
