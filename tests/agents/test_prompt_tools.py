"""The language agent calls a user's tools: what it reads, turn by turn, is what the chat template writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.templates import byte_level_tokenizer, template_text
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import Continuation
from evolvent.messages import Call, Message
from evolvent.models.dialects import Chat
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config
from evolvent.worlds.prompts.world import PromptWorld

ROWS = [{"prompt": f"add {n} and {n}"} for n in range(10)]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def chat_policy(template: str) -> Policy:
    tokenizer = byte_level_tokenizer(template_text(template))
    return Policy(init_tiny(tiny_config(len(tokenizer), context=4096), seed=0), tokenizer, Chat(tokenizer))


def play(policy: Policy, world: PromptWorld, replies: list[str]):
    """Plays an episode in which the model writes these replies; returns all tokens, and the last reply of the Env."""
    task = world.tasks("train", "seen")[0]
    env = world.make(task)
    observation, info = env.reset()
    mind = LanguageAgent(policy, max_tokens=200).begin(world, task, seed=0)
    ids: list[int] = []
    for text in replies:
        acting = mind.act(observation, info)
        (ask,) = next(acting)
        written = policy.dialect.action(text)
        ids += [*ask.tokens, *written]
        sampled = Continuation(None, np.asarray(written, np.int32), np.zeros(len(written), np.float32), "stop")
        with pytest.raises(StopIteration) as stop:
            acting.send(((sampled,),))
        observation, reward, ended, _, info = env.step(stop.value.value.action)
    return task, ids, (observation, reward, ended, info)


@pytest.mark.parametrize("template", ["qwen2_5.jinja", "qwen3.jinja"])
def test_two_turns_are_written_by_the_template(template):
    policy = chat_policy(template)
    world = PromptWorld(ROWS, lambda text: float(text == "4"), tools=add, instructions="Add.")
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'
    task, ids, (_, reward, ended, _) = play(policy, world, [call, "4"])
    assert reward == 1.0 and ended
    tools = [tool.tool for tool in world.tools]
    calling = Message("assistant", "", (Call("add", {"a": 2, "b": 2}, "1"),))
    whole = [*world.messages(task), calling, Message("tool", "4", tool_call_id="1"), Message("assistant", "4")]
    rows = [message.as_openai() for message in whole]
    rows[2]["tool_calls"][0]["function"]["arguments"] = {"a": 2, "b": 2}
    text = policy.tokenizer.apply_chat_template(rows, tools=[tool.as_openai() for tool in tools], tokenize=False)
    thoughts = ("<think>", "</think>")  # empty ones, which qwen3's template writes before a last reply alone
    words = [word for word in policy.tokenizer.decode(ids).split() if word not in thoughts]
    assert words == [word for word in text.split() if word not in thoughts]


def test_a_template_without_tools_reads_them_as_text():
    policy = chat_policy("gemma.jinja")
    world = PromptWorld(ROWS, lambda text: float(text == "4"), tools=add)
    call = json.dumps([{"name": "add", "arguments": {"a": 2, "b": 2}}])
    _, ids, (_, reward, _, _) = play(policy, world, [call, "4"])
    text = policy.tokenizer.decode(ids)
    assert reward == 1.0 and "You may call these functions:" in text and text.count("<start_of_turn>user") == 2


def test_an_error_of_a_tool_is_read_and_told():
    policy = chat_policy("qwen2_5.jinja")

    def fails(a: int) -> int:
        return 1 // a

    world = PromptWorld(ROWS, lambda text: 1.0, tools=fails)
    call = '<tool_call>\n{"name": "fails", "arguments": {"a": 0}}\n</tool_call>'
    _, _, (observation, reward, ended, info) = play(policy, world, [call])
    assert observation.startswith("error: ZeroDivisionError") and (reward, ended) == (0.0, False)
    assert "tool 'fails' raised ZeroDivisionError at" in info["tool_problem"]
