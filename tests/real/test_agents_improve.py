"""The agents of examples/agents with SmolLM2: GRPO learns from their sessions, and they win more on tasks it never saw.

A pretrained model of 135 million weights does not know the forms of these agents: it wins none of their episodes, and
GRPO has nothing to compare. So it imitates the form first, from examples whose answers are wrong half of the time or
more, as a few examples of one's own would warm it up. From then on the reward alone tells which answers are right.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import httpx2
import numpy as np
import openai
import pytest

from evolvent.cli.main import main
from evolvent.cli.terminal.console import make_console
from evolvent.cli.train.rl import run
from evolvent.messages import CallSample, Message, Tool
from evolvent.models.toolprompt import FourBlocks
from tests.examples.test_agents import load_agent
from tests.serve.command import command

pytestmark = pytest.mark.long

NUMBERS = ("--context", 512, "--dtype", "bfloat16")
LORA = ("--adapter.kind", "lora", "--adapter.rank", "8", "--adapter.alpha", "16")
NUM_CLIENTS = 8
EPISODES_PER_TASK = 16
ITERATIONS = 6

Play = Callable[[str], float]
Row = dict[str, list[dict[str, str]]]  # {"messages": [...]}

DISHES = ("tea", "soup", "bread", "rice", "fish", "salad", "pasta", "cake", "milk", "beans", "pie", "honey")
ROOMS = ("kitchen", "stairs", "garden", "library", "stable", "cellar", "tower", "well")
DOORS = tuple(f"{side} of the {room}" for room in ROOMS for side in ("left", "right"))
COLORS = ("red", "blue", "green", "gold", "black", "white", "pink", "gray", "brown", "yellow", "orange", "purple")


@dataclass(frozen=True)
class Setup:
    """An agent and its tasks.

    Args:
        name: its file in examples/agents.
        tasks: texts that `play` takes; GRPO sees the first `num_training` of them.
        imitation_steps: updates of the imitation of its form.
        tasks_per_iteration: of GRPO.
        render_examples: returns conversations about training tasks with every reply of the agent's form.
        connect: yields a function that plays a task on a server and returns its reward.
    """

    name: str
    tasks: tuple[str, ...]
    num_training: int
    imitation_steps: int
    tasks_per_iteration: int
    render_examples: Callable[[ModuleType, tuple[str, ...]], list[Row]]
    connect: Callable[[ModuleType, str], object]


def ask(text: str, *replies: str, system: str = "", then: str = "") -> Row:
    """Returns a conversation; `then` is what the user says between two replies."""
    turns = [("user", text), ("assistant", replies[0])]
    turns += [turn for reply in replies[1:] for turn in (("user", then), ("assistant", reply))]
    messages = [("system", system)] * bool(system) + turns
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def render_calls(agent: ModuleType, dishes: tuple[str, ...]) -> list[Row]:
    """Half of the calls ask for the right dish. SmolLM2 has no template for tools: they stand in a text."""
    tools = tuple(map(Tool.of_openai, agent.TOOLS))
    generator, rows = np.random.default_rng(0), []
    for dish in dishes:
        prompt = FourBlocks().render(CallSample(dish, (Message("user", f"price of {dish}"),), tools, ())).prompt
        arguments = [dish] * 2 + [str(other) for other in generator.choice(DISHES, 4)]
        rows += [ask(prompt, f'[{{"name": "price", "arguments": {{"of": "{argument}"}}}}]') for argument in arguments]
    return rows


@contextmanager
def connect_tool_agent(agent: ModuleType, url: str) -> Iterator[Play]:
    with openai.OpenAI(base_url=url, api_key="unused", timeout=300) as client:
        yield partial(agent.play, client, client.models.list().data[0].id)


def render_walks(agent: ModuleType, doors: tuple[str, ...]) -> list[Row]:
    """The first two steps to every door go left and right."""
    walks = list(itertools.product(("go left", "go right"), repeat=2))
    return [ask(f"door is {door}", *walk, then=f"room ; door is {door}") for door in doors for walk in walks]


@contextmanager
def connect_react_agent(agent: ModuleType, url: str) -> Iterator[Play]:
    with httpx2.Client(base_url=url, timeout=300, trust_env=False) as http:
        yield partial(agent.play, http, http.get("/models").json()["data"][0]["id"])


def render_paintings(agent: ModuleType, colors: tuple[str, ...]) -> list[Row]:
    """The planner paints or waits, the worker takes the right color half of the time."""
    generator, rows = np.random.default_rng(0), []
    for color in colors:
        rows += [ask(color, plan, system="plan") for plan in ("paint", "wait")] * 3
        for plan in ("paint", "wait"):
            answers = [color] * 3 + [str(other) for other in generator.choice(COLORS, 3)]
            rows += [ask(f"{plan} {color}", answer, system="work") for answer in answers]
    return rows


@contextmanager
def connect_team_agent(agent: ModuleType, url: str) -> Iterator[Play]:
    async def play(color: str) -> float:
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", timeout=300) as client:
            return await agent.play(client, (await client.models.list()).data[0].id, color)

    yield lambda color: asyncio.run(play(color))


SETUPS = [
    Setup("tool_agent", DISHES, 8, 40, 8, render_calls, connect_tool_agent),
    Setup("react_agent", DOORS, 10, 24, 8, render_walks, connect_react_agent),
    Setup("team_agent", COLORS, 8, 40, 8, render_paintings, connect_team_agent),
]


def load_with_tasks(setup: Setup) -> ModuleType:
    """Loads the agent as it is; the one with a tool gets a menu of all dishes."""
    agent = load_agent(setup.name)
    if setup.name == "tool_agent":
        agent.PRICES.update({dish: str(number) for number, dish in enumerate(DISHES)})
        agent.PARAMETERS["properties"]["of"]["enum"][:] = DISHES
    return agent


def imitate_form(setup: Setup, agent: ModuleType, folder: Path) -> None:
    """Fine-tunes an adapter on the examples, by the command, into the run `folder`."""
    rows = setup.render_examples(agent, setup.tasks[: setup.num_training])
    data = folder.with_suffix(".jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    argv = ["train", "sft", data, "--policy", "smollm2", *NUMBERS, *LORA, "--output_dir", folder]
    argv += [
        "--train.lr",
        1e-3,
        "--train.max_steps",
        setup.imitation_steps,
        "--train.epochs",
        20,
        "--train.warmup_steps",
        2,
        "--train.batch_tokens",
        1024,
    ]
    argv += ["--train.dtype", "bfloat16"]
    assert main([*map(str, argv)]) == 0


def measure(setup: Setup, agent: ModuleType, policy: Path, folder: Path) -> np.ndarray:
    """Plays the tasks that were held out; returns rewards: [tasks, EPISODES_PER_TASK]."""
    with command("--policy", policy, "--record", folder, *NUMBERS) as server:
        with setup.connect(agent, server.url + "/v1") as play, ThreadPoolExecutor(NUM_CLIENTS) as pool:
            tasks = np.repeat(setup.tasks[setup.num_training :], EPISODES_PER_TASK)
            return np.array(list(pool.map(play, map(str, tasks)))).reshape(-1, EPISODES_PER_TASK)


def improve(setup: Setup, agent: ModuleType, base: Path, folder: Path) -> str:
    """Trains while NUM_CLIENTS agents play; returns what the command printed."""
    sessions, weights, output, stop = folder / "sessions", folder / "weights", io.StringIO(), threading.Event()
    weights.mkdir()

    def play_on(server_url: str, number: int) -> None:
        with setup.connect(agent, server_url + "/v1") as play:
            for position in itertools.count(number):
                if stop.is_set():
                    return
                play(setup.tasks[position % setup.num_training])

    with command("--policy", base, "--record", sessions, "--reload", weights, *NUMBERS) as server:
        clients = [threading.Thread(target=play_on, args=(server.url, number)) for number in range(NUM_CLIENTS)]
        for client in clients:
            client.start()
        try:
            settings = {
                "method": "grpo",
                "policy": base,
                "from_run": sessions,
                "endpoint": server.url,
                "model": base.name,
                "hand_over": weights,
                "output_dir": folder / "run",
                "context": 512,
                "dtype": "bfloat16",
                "train.dtype": "bfloat16",
                "adapter.kind": "lora",
                "adapter.existing": "continue",
                "train.lr": 5e-4,
                "rl.practice.iterations": ITERATIONS,
                "rl.practice.tasks_per_iteration": setup.tasks_per_iteration,
                "rl.practice.group_size": 8,
            }
            argv = [argument for key, value in settings.items() for argument in (f"--{key}", str(value))]
            assert run(argv, make_console(output, {})) == 0, output.getvalue()
        finally:
            stop.set()
            for client in clients:
                client.join()
    return output.getvalue()


@pytest.mark.parametrize("setup", SETUPS, ids=[setup.name for setup in SETUPS])
def test_smollm2_improves_an_agent_on_held_out_tasks(setup, smollm2, tmp_path):
    agent = load_with_tasks(setup)
    imitate_form(setup, agent, tmp_path / "base")
    before = measure(setup, agent, tmp_path / "base", tmp_path / "before")
    output = improve(setup, agent, tmp_path / "base", tmp_path)
    after = measure(setup, agent, tmp_path / "run" / "model", tmp_path / "after")
    (tmp_path / "rewards.json").write_text(json.dumps({"before": before.tolist(), "after": after.tolist()}))
    # Four standard errors of a difference between two means of as many episodes each: noise passes 1 in 30,000 times.
    margin = 4 * np.sqrt((before.var() + after.var()) / before.size)
    assert 0 < before.mean() < 0.6, output
    assert after.mean() - before.mean() > max(margin, 0.2), (before.mean(1), after.mean(1), output)
