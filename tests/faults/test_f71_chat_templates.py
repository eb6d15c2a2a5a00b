"""Fault 71: a chat template of a stranger that loops, recurses, asks for gigabytes or breaks out of its sandbox.

Every rendering happens in a process of Jinja alone, with a deadline and a limit of memory; a failure there is one typed
sentence here, at the first rendering and at a later one.
"""

from __future__ import annotations

import pytest
from worker_functions import ask_for_memory, end_process, sleep_long

pytest.importorskip("transformers")

from jinja2 import TemplateError

import evolvent as ev
from benchmarks.templates import template_names, template_text
from evolvent.errors import ConfigError, LimitExceeded, SampleInvalid
from evolvent.messages import Message
from evolvent.models import template_process
from evolvent.models.chat_template import ChatTemplate
from evolvent.models.template_process import TemplateRefusal, apply_template
from evolvent.models.toolchat import ChatTools
from evolvent.workers import SharedWorker
from tests.models.test_dialects import CHATML, byte_tokenizer

MARKS = ["<|im_start|>", "<|im_end|>"]
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi \u00e9 \U0001f600"},
    {"role": "assistant", "content": "go", "reasoning_content": "why"},
    {"role": "user", "content": "And?"},
]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def tokenizer_of(template: str):
    return byte_tokenizer(template, MARKS)


REFUSED = {
    "security": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "syntax": ("{% for m in messages %}", "Unexpected end of template"),
    "recursion": ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recurses too deeply"),
    "arithmetic": ("{{ 1 // 0 }}", "zero"),
    "raised": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "private": ("{% set n = namespace(_x=1) %}", "underscore"),
    "range": ("{% for n in range(10**9) %}{% endfor %}", "Range too big"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_template_that_fails_is_one_typed_sentence(name):
    template, message = REFUSED[name]
    with pytest.raises(TemplateRefusal, match=message):
        apply_template(tokenizer_of(template), TURNS, add_generation_prompt=True)
    with pytest.raises(ConfigError, match=f"the chat template cannot be used: .*{message}"):
        ChatTemplate(tokenizer_of(template))
    with pytest.raises(ConfigError):
        ChatTools(tokenizer_of(template))


FAILURES = {
    "loops": (sleep_long, r"it took more than 0\.4 s"),
    "memory": (ask_for_memory, "MemoryError"),
    "ends": (end_process, "ended its process"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_template_that_does_not_end_is_ended(monkeypatch, name):
    function, message = FAILURES[name]
    tokenizer = tokenizer_of(CHATML)
    sound = ChatTemplate(tokenizer)
    worker = SharedWorker(function, wall_s=0.4, memory_mb=256)
    monkeypatch.setattr(template_process, "_RENDERER", worker)
    try:
        with pytest.raises(LimitExceeded, match=f"the chat template was ended: got .*{message}"):
            apply_template(tokenizer, TURNS, add_generation_prompt=True)
        with pytest.raises(ConfigError, match=message):
            ChatTemplate(tokenizer)
        with pytest.raises(SampleInvalid, match=message):
            sound.prompt([Message(role, "x") for role in ("user", "assistant", "user", "assistant", "user")])
    finally:
        worker.close()


def test_a_template_that_counts_on_is_ended_in_time(monkeypatch):
    """The loop is bounded, so that this test ends in any case."""
    template = "{% for a in range(90000) %}{% for b in range(400) %}{% endfor %}{% endfor %}"
    worker = SharedWorker(template_process.render_template, wall_s=0.5, memory_mb=256)
    monkeypatch.setattr(template_process, "_RENDERER", worker)
    try:
        with pytest.raises(LimitExceeded, match=r"it took more than 0\.5 s"):
            apply_template(tokenizer_of(template), TURNS, add_generation_prompt=True)
        assert apply_template(tokenizer_of(CHATML), TURNS, add_generation_prompt=True)
    finally:
        worker.close()


def test_a_template_that_asks_for_much_memory_is_refused():
    template = "{{ ('x' * 700000000) | length }}"
    with pytest.raises((TemplateRefusal, LimitExceeded), match="512 MiB"):
        apply_template(tokenizer_of(template), TURNS, add_generation_prompt=True)


def test_a_long_template_is_refused_unread():
    template = "{# " + "x" * template_process.MAX_TEMPLATE_CHARS + " #}"
    with pytest.raises(LimitExceeded, match="the chat template is too large"):
        apply_template(tokenizer_of(template), TURNS, add_generation_prompt=True)


@pytest.mark.parametrize("name", [*template_names(), "chatml"])
def test_renderings_are_those_of_transformers(name):
    tokenizer = tokenizer_of(CHATML if name == "chatml" else template_text(name))
    for turns in (TURNS[1:2], TURNS[:2], TURNS[1:], TURNS):
        for tools in (None, [TOOL]):
            for prompt in (True, False):
                try:
                    expected = tokenizer.apply_chat_template(
                        turns, tools=tools, tokenize=False, add_generation_prompt=prompt
                    )
                except (ValueError, TypeError, TemplateError) as error:
                    expected = str(error)
                try:
                    rendered = apply_template(tokenizer, turns, tools=tools, add_generation_prompt=prompt)
                except TemplateRefusal as error:
                    rendered = str(error)
                assert rendered == expected


def test_a_model_folder_with_a_broken_template_names_it(tmp_path):
    ev.tiny_policy(["go", "left"], context=32).save(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(REFUSED["security"][0])
    with pytest.raises(ConfigError, match=r"the chat template cannot be used: .*unsafe"):
        ev.load_policy(tmp_path / "model", dialect="chat")
