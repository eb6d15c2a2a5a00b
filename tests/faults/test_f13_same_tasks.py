"""Fault 13: another order of files and another PYTHONHASHSEED give the same task ids and the same episodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, random, sys
from pathlib import Path
shuffle = random.Random(int(sys.argv[1])).shuffle

def shuffled(read):
    def reading(*args):
        found = list(read(*args))
        shuffle(found)
        return found
    return reading

os.listdir = shuffled(os.listdir)
Path.iterdir = shuffled(Path.iterdir)
Path.glob, Path.rglob = shuffled(Path.glob), shuffled(Path.rglob)

import asyncio
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes

async def main():
    sizes = Sizes(train=12, dev=6, test=6)
    folder = sys.argv[2]
    worlds = {w.name: w for w in (Crafting(sizes=sizes), Lookup(sizes=sizes), Maze(sizes=sizes),
                                  Crafting.from_folder(folder, sizes=sizes))}
    catalogue, told = TaskIndex(worlds), []
    async with LocalHost(worlds) as host:
        for name, world in worlds.items():
            for index in range(await catalogue.count_tasks(name)):
                task = await catalogue.get_by_index(name, index)
                session = await host.create(name)
                seen = await host.reset(session, task, seed=index)
                told.append([task.id, task.tier, task.split, seen.observation])
                for action in list(world.expert(task) or ())[:3]:
                    done = await host.step(session, action)
                    told.append([done.observation, done.reward, dict(done.info)])
                await host.close(session)
    print(json.dumps(told))

asyncio.run(main())
"""


def recipes(folder: Path) -> Path:
    """A small book in the form of Minecraft's recipe files."""
    folder.mkdir()
    made = {"planks": "log", "stick": "planks", "ladder": "stick", "fence": "stick", "gate": "fence", "crate": "planks"}
    for result, source in made.items():
        text = json.dumps(
            {
                "type": "minecraft:crafting_shapeless",
                "ingredients": [{"item": f"minecraft:{source}"}] * 2,
                "result": {"item": f"minecraft:{result}", "count": 2},
            }
        )
        (folder / f"{result}.json").write_text(text, encoding="utf-8")
    return folder


def test_every_machine_has_the_same_tasks_and_episodes(tmp_path):
    folder = recipes(tmp_path / "book")
    told = []
    for shuffle, seed in (("1", "0"), ("2", "1"), ("3", "random")):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, shuffle, str(folder)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        told.append(json.loads(done.stdout))
    assert len(told[0]) > 200
    assert told[0] == told[1] == told[2]
