"""The agents of examples/agents, unchanged, play on a recording server; GRPO learns from their sessions meanwhile."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import threading
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest

import evolvent as ev
from evolvent.cli.terminal.console import make_console
from evolvent.cli.train.rl import run
from evolvent.models.policy import load_policy
from evolvent.store.store import Store
from tests.serve.command import command
from tests.serve.test_openai_client import shown
from tests.serve.tool_policies import taught

AGENTS = Path(__file__).parents[2] / "examples" / "agents"
WORDS = [
    *("price", "of", "tea", "soup", "bread", "4", "9", "2", "none", "user", "assistant", "tool", "string", "which"),
    *("door", "is", "left", "right", "go", "room", "plan", "work", "paint", "red", "blue", "wait", "at", "what"),
    *"()[]{}=,:?|.;\"'",
]


def load_agent(name):
    spec = importlib.util.spec_from_file_location(name, AGENTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_tool_policy(agent):
    """It calls the tool, with any argument."""
    fresh = ev.tiny_policy(WORDS, context=128, seed=3)
    dishes = list(agent.PRICES)
    prompts = [shown(fresh, [{"role": "user", "content": f"price of {dish}"}], agent.TOOLS) for dish in dishes]
    calls = [fresh.dialect.action(f'[price(of="{dish}")]') for dish in dishes]
    return taught(fresh, [(prompt, call) for prompt in prompts for call in calls], updates=60)


def make_walking_policy(agent):
    """It goes left and right at random."""
    fresh = ev.tiny_policy(WORDS, context=128, seed=3)
    prompts = [fresh.dialect.open("", f"door is {door}") for door in ("left", "right")]
    moves = [fresh.dialect.action(text) for text in ("go left", "go right")]
    later = [
        [*prompt, *move, *fresh.dialect.turn(f"room ; door is {door}", stopped=True)]
        for prompt, door in zip(prompts, ("left", "right"), strict=True)
        for move in moves
    ]
    return taught(fresh, [(prompt, move) for prompt in [*prompts, *later] for move in moves], updates=60)


def make_painting_policy(agent):
    """It says one of five words."""
    fresh = ev.tiny_policy(WORDS, context=128, seed=3)
    answers = [fresh.dialect.action(text) for text in ("paint", "wait", "red", "blue")]
    prompts = [fresh.dialect.open(*texts) for texts in (("plan", "red"), ("work", "paint blue"))]
    return taught(fresh, [(prompt, answer) for prompt in prompts for answer in answers], updates=60)


def play_tools(agent, url, stop):
    with openai.OpenAI(base_url=url, api_key="unused", timeout=60) as client:
        while not stop.is_set():
            agent.play(client, "base", "tea")


def play_walks(agent, url, stop):
    with httpx2.Client(base_url=url, timeout=60, trust_env=False) as http:
        while not stop.is_set():
            agent.play(http, "base", "right")


def play_painting(agent, url, stop):
    while not stop.is_set():
        asyncio.run(agent.main(url, "base"))


@pytest.mark.parametrize(
    ("name", "make_policy", "play"),
    [
        pytest.param("tool_agent", make_tool_policy, play_tools, marks=pytest.mark.long),
        pytest.param("react_agent", make_walking_policy, play_walks),
        pytest.param("team_agent", make_painting_policy, play_painting, marks=pytest.mark.long),
    ],
)
def test_an_agent_improves_while_it_plays(name, make_policy, play, tmp_path):
    agent = load_agent(name)
    make_policy(agent).save(tmp_path / "base")
    (tmp_path / "weights").mkdir()
    stop, sessions = threading.Event(), tmp_path / "sessions"
    words = ("--policy", tmp_path / "base", "--record", sessions, "--reload", tmp_path / "weights")
    output = io.StringIO()
    with command(*words, OMP_NUM_THREADS="1") as server:
        playing = threading.Thread(target=play, args=(agent, server.url + "/v1", stop))
        playing.start()
        try:
            settings = {
                "method": "grpo",
                "from_run": sessions,
                "endpoint": server.url,
                "model": "base",
                "hand_over": tmp_path / "weights",
                "output_dir": tmp_path / "run",
                "train.lr": 3e-3,
                "rl.practice.iterations": 12,
                "rl.practice.tasks_per_iteration": 4,
                "rl.practice.group_size": 6,
            }
            argv = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
            assert run(argv, make_console(output, {})) == 0
        finally:
            stop.set()
            playing.join()
    rewards_by_version = {}
    for session in Store.open(sessions / "trajectories").trajectories():
        versions = {generation.policy_version for generation in session.generations}
        rewards_by_version.setdefault(max(versions), []).append(session.score.raw)
    versions = sorted(rewards_by_version)
    early = np.mean([reward for version in versions[:2] for reward in rewards_by_version[version]])
    late = np.mean([reward for version in versions[-3:] for reward in rewards_by_version[version]])
    assert early < 0.7 and late > early + 0.2, (output.getvalue(), rewards_by_version)
    assert load_policy(tmp_path / "run" / "model").version == 12
    assert "mean return" in output.getvalue()
