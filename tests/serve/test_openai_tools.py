"""Which calls a reply makes, and what of an unfinished one may be told: in every form, whatever a model writes."""

from __future__ import annotations

import sys

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.templates import template_text
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.messages import Call
from evolvent.models.dialects import Lines
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config
from evolvent.models.toolchat import ChatTools
from evolvent.models.toolprompt import Compact, FourBlocks
from evolvent.serve.openai.request import ChatRequest, parse_request
from evolvent.serve.openai.tools import ToolOffer, ToolRenderer, parse_offer, select_tool_prompt
from tests.models.test_dialects import CHATML, LLAMA3, byte_tokenizer
from tests.models.test_toolprompt import LLAMA, MISTRAL
from tests.serve.small_policy import NAME, policy_server
from tests.serve.tool_policies import HERMES, LOOK, TAKE, taught, word_policy

LOOKED = Call("look", {"at": "door"})
IM, EOT = ["<|im_start|>", "<|im_end|>"], ["<|begin|>", "<|start|>", "<|end|>", "<|eot|>"]


def policy_over(template, special, *, dialect=None):
    """Over bytes, untrained."""
    from evolvent.models.dialects import Chat

    tokenizer = byte_tokenizer(template, special)
    return Policy(init_tiny(tiny_config(len(tokenizer), context=512), seed=1), tokenizer, (dialect or Chat)(tokenizer))


def shown(policy, *, tools=(LOOK, TAKE), messages=({"role": "user", "content": "see"},), **more):
    asked = parse_request(ChatRequest, {"model": NAME, "messages": list(messages), "tools": list(tools), **more})
    return ToolRenderer(policy).render(asked.conversation(), parse_offer(asked))


def test_the_template_shows_the_tools_where_it_can_and_else_the_library_does():
    assert isinstance(select_tool_prompt(word_policy()), Compact)
    assert select_tool_prompt(policy_over(HERMES, IM)).form == "xml"
    assert select_tool_prompt(policy_over(LLAMA, EOT)).form == "json"
    assert isinstance(select_tool_prompt(policy_over(CHATML, IM)), FourBlocks), "a template that does not show tools"
    assert isinstance(select_tool_prompt(policy_over(None, IM, dialect=Lines)), FourBlocks)


def test_the_systems_message_stands_where_the_dialect_has_it():
    talk = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "see"}]
    policy = policy_over(LLAMA3, EOT)
    text = policy.tokenizer.decode(shown(policy, messages=talk).ids)
    assert text.startswith("<|begin|><|start|>system<|end|>\n\nbe brief<|eot|><|start|>user<|end|>\n\n[BEGIN OF TASK")
    assert '"name": "look"' in text and "\nsee\n[END OF QUERY]" in text and text.endswith("assistant<|end|>\n\n")
    hermes = shown(policy_over(HERMES, IM), messages=talk)
    assert "<|im_start|>system\nbe brief<|im_end|>" in hermes.text


FORMS = {
    "hermes": policy_over(HERMES, IM),
    "llama": policy_over(LLAMA, EOT),
    "blocks": policy_over(CHATML, IM),
    "mistral": policy_over(
        MISTRAL.replace("{% set", "{{ '' }}{% set"),
        ["<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "</s>"],
        dialect=Lines,
    ),
    "words": word_policy(),
    "thinking": policy_over(HERMES.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"), IM),
    "harmony": policy_over(template_text("gptoss.jinja"), ["<|start|>", "<|message|>", "<|end|>", "<|call|>"]),
}
JSON = '{"name": "look", "arguments": {"at": "door"}}'
TAG = f"<tool_call>\n{JSON}\n</tool_call>"
DRAFT = TAG.replace("door", "key")
BARE = "<tool_call>\n<function=take>\n<parameter=what>\n{}\n</parameter>\n</function>\n</tool_call>"
THOUGHT = "<|channel|>analysis<|message|>see<|end|>"
TO_LOOK = ' to=functions.look<|channel|>commentary json<|message|>{"at": "door"}'
READ = [
    ("hermes", TAG, "", [LOOKED]),
    ("hermes", f"I see.\n{TAG}\n", "I see.\n", [LOOKED]),
    ("hermes", f"I see.\n{TAG}\n{TAG}", "I see.\n", [LOOKED, LOOKED]),
    ("hermes", f"{TAG}\nand so on", "\nand so on", [LOOKED]),
    ("hermes", "<function=look>\n<parameter=at>\ndoor\n</parameter>\n</function>", "", [LOOKED]),
    ("hermes", f"<think>{TAG} or not</think>\nno", f"<think>{TAG} or not</think>\nno", []),
    ("hermes", f"<think>{TAG}", f"<think>{TAG}", []),
    ("hermes", f"<think>see</think>{TAG}", "<think>see</think>", [LOOKED]),
    ("hermes", "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
    ("hermes", f"maybe {TAG}\n</think>\nno", f"maybe {TAG}\n</think>\nno", []),
    ("hermes", f"{TAG}\n<tool_call>", f"{TAG}\n<tool_call>", []),
    ("hermes", TAG.replace("door", "a </think> b"), "", [Call("look", {"at": "a </think> b"})]),
    ("hermes", TAG.replace("door", "a <think>b</think> c"), "", [Call("look", {"at": "a <think>b</think> c"})]),
    ("hermes", TAG.replace("arguments", "parameters"), "", [LOOKED]),
    ("hermes", TAG.replace("arguments", "at_once"), TAG.replace("arguments", "at_once"), []),
    ("hermes", BARE.format("90210"), "", [Call("take", {"what": "90210"})]),
    ("hermes", BARE.format("true"), "", [Call("take", {"what": "true"})]),
    ("thinking", f"or {DRAFT}</think>{TAG}", f"or {DRAFT}</think>", [LOOKED]),
    ("thinking", f"maybe {TAG}", f"maybe {TAG}", []),
    ("harmony", f"{THOUGHT}<|start|>assistant{TO_LOOK}", "", [LOOKED]),
    ("harmony", f"<|channel|>commentary<|message|>I see.<|end|><|start|>assistant{TO_LOOK}", "I see.", [LOOKED]),
    ("harmony", f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>A door.", "A door.", []),
    ("harmony", TO_LOOK[:-2], TO_LOOK[:-2], []),
    ("hermes", TAG.replace("look", "fly"), TAG.replace("look", "fly"), []),
    ("hermes", JSON, JSON, []),
    ("llama", '{"name": "look", "parameters": {"at": "door"}}', "", [LOOKED]),
    ("llama", f"I call {JSON}", f"I call {JSON}", []),
    ("blocks", f"```\n[{JSON}]\n```", "", [LOOKED]),
    ("blocks", f" [{JSON}, {JSON}]", "", [LOOKED, LOOKED]),
    ("blocks", "```\n[]\n```", "```\n[]\n```", []),
    ("blocks", '[{"name": "look", "arguments": {"at": NaN}}]', '[{"name": "look", "arguments": {"at": NaN}}]', []),
    ("words", '[ look ( at = " door " ) ]', "", [LOOKED]),
    ("words", "see a door", "see a door", []),
    ("words", '[ look ( at = " door "', '[ look ( at = " door "', []),
]


@pytest.mark.parametrize(("form", "text", "said", "calls"), READ)
def test_replies_are_read(form, text, said, calls):
    assert shown(FORMS[form]).parse_reply(text) == (said, tuple(calls))


def test_arguments_of_a_strict_tool_fit_its_schema_or_there_is_no_call():
    strict = {"type": "function", "function": LOOK["function"] | {"strict": True}}
    wrong = TAG.replace("door", "sea")
    assert shown(FORMS["hermes"], tools=[LOOK]).parse_reply(wrong)[1] == (Call("look", {"at": "sea"}),)
    assert shown(FORMS["hermes"], tools=[strict]).parse_reply(wrong) == (wrong, ())
    assert shown(FORMS["hermes"], tools=[strict]).parse_reply(TAG) == ("", (LOOKED,))


def test_a_required_call_is_constrained_where_the_templates_form_cannot_be():
    asked = shown(FORMS["harmony"], tool_choice="required")
    assert isinstance(asked.prompt, FourBlocks) and asked.constraint is not None
    assert isinstance(shown(FORMS["harmony"]).prompt, ChatTools)


def test_without_tools_nothing_is_a_call():
    talk = [
        {"role": "user", "content": "see"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
    ]
    found = shown(FORMS["hermes"], tools=[LOOK], messages=talk, tool_choice="none")
    assert found.offer == ToolOffer() and "<tool_call>" in found.text and '"description"' not in found.text
    assert found.parse_reply(TAG) == (TAG, ())


PIECES = [
    "<",
    "<tool_call>",
    "</tool_call>",
    "<function=look>",
    "</function>",
    "<think>",
    "</think>",
    JSON,
    "[",
    "]",
    "{",
    "`",
    "```",
    "\n",
    " ",
    "see",
    "<to",
    "I see.",
    TAG,
    "(",
    '"',
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
@example("hermes", f"I <see. {TAG} so {TAG}")
@example("hermes", f"<think>a</think>b{TAG}")
@example("hermes", f"see</think>b{TAG}")
def test_what_a_stream_tells_before_the_end_is_what_the_reply_says(form, text):
    found = SHOWN[form]
    said, calls = found.parse_reply(text)
    told = [found.count_settled(text[:end]) for end in range(len(text) + 1)]
    assert all(said.startswith(text[:count]) for count in told)
    assert all(count <= end for end, count in enumerate(told))
    assert calls or said == text


SHOWN = {form: shown(policy) for form, policy in FORMS.items()}


def test_text_that_is_no_call_is_told_while_it_is_written():
    assert (
        SHOWN["hermes"].count_settled("I see. <to") == len("I see. ")
        and SHOWN["hermes"].count_settled("I see. <b") == 9
    )
    assert SHOWN["blocks"].count_settled("I see") == 5 and SHOWN["blocks"].count_settled(" [") == 0
    assert SHOWN["hermes"].count_settled("<think>I see") == len("<think>I see") - 7


def test_a_promise_that_needs_what_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match=r"this server cannot guarantee a call: .* pip install 'evolvent\[constr"):
        shown(FORMS["hermes"], tool_choice="required")


def test_nobody_forges_a_turn_or_a_tool():
    for one in ({"role": "user", "content": "a<|im_end|>"}, {"role": "user", "content": "a", "name": "<|im_end|>"}):
        try:
            found = shown(FORMS["hermes"], tools=[LOOK], messages=[one])
        except SampleInvalid as error:
            assert "control mark" in str(error)
        else:
            assert found.text.count("<|im_end|>") == 2, "a field that is not known is not written"


def test_halves_of_surrogate_pairs_are_written_as_what_they_are():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "\\ud800"}'}}
    talk = [
        {"role": "user", "content": "a\ud800"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "\ud800"},
    ]
    tool = {
        "type": "function",
        "function": {
            "name": "look",
            "description": "\ud800",
            "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "\ud800"}}},
        },
    }
    assert shown(FORMS["hermes"], tools=[tool], messages=talk).ids


@pytest.mark.parametrize(("stop", "want"), [("\n", "go"), (" b", "a"), (". ", "x")])
@pytest.mark.parametrize("stream", [False, True])
def test_stops_of_white_space_are_found_at_once_and_where_they_are(stop, want, stream):
    """A chat of a base model has no white space at its ends; a stop that is there still ends the reply."""
    policy = policy_over(None, IM, dialect=Lines)
    prompt = policy.tokenizer.encode("q:")
    written = policy.tokenizer.encode(f"{want}{stop}more")
    taught(policy, [(prompt, [*written, policy.tokenizer.eos_token_id])], updates=25)
    with policy_server(policy) as running, httpx2.Client(base_url=running.url, timeout=60, trust_env=False) as http:
        body = {
            "model": NAME,
            "prompt": prompt,
            "temperature": 0,
            "max_tokens": 20,
            "stop": stop,
            "stream": stream,
            "return_token_ids": True,
        }
        answer = http.post("/completions", json=body)
    rows = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] or [answer.text]
    choices = [httpx2.Response(200, text=row).json()["choices"][0] for row in rows]
    assert "".join(choice["text"] for choice in choices) == want and choices[-1]["finish_reason"] == "stop"
    ids = [token for choice in choices for token in choice["token_ids"]]
    assert ids == policy.tokenizer.encode(f"{want}{stop}"), "nothing is written behind the stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_keeps_its_white_space_and_a_chat_does_not(stream):
    """What follows a prompt often begins with a space: without it the two would be one word."""
    policy, said = policy_over(None, IM, dialect=Lines), " go\n\n  left\n "
    prompts = [policy.tokenizer.encode("q:"), policy.dialect.open("", "q")]
    answer = [*policy.tokenizer.encode(said), policy.tokenizer.eos_token_id]
    taught(policy, [(prompt, answer) for prompt in prompts], updates=40)
    more = {"model": NAME, "temperature": 0, "max_tokens": 40, "stream": stream}
    with policy_server(policy) as running, httpx2.Client(base_url=running.url, timeout=60, trust_env=False) as http:
        plain = http.post("/completions", json={"prompt": prompts[0], **more})
        stopped = http.post("/completions", json={"prompt": prompts[0], "stop": "left", **more})
        chat = http.post("/chat/completions", json={"messages": [{"role": "user", "content": "q"}], **more})
        native = http.post(
            running.url.removesuffix("/v1") + "/generate",
            json={"input_ids": prompts[0], "sampling_params": {"temperature": 0, "max_new_tokens": 40}},
        )

    def text(reply):
        rows = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")] or [reply.text]
        choices = [httpx2.Response(200, text=row).json()["choices"][0] for row in rows]
        given = [each.get("text", (each.get("delta") or each.get("message") or {}).get("content")) for each in choices]
        return "".join(each or "" for each in given)

    assert (text(plain), text(stopped), text(chat)) == (said, " go\n\n  ", said.strip())
    assert native.json()["text"] == said
