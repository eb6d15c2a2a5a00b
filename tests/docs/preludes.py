"""What the Python blocks of the guides take for granted: the names that a reader has by then, by page and beginning.

A block without an entry runs as it stands. A reason in place of code says why a block is only compiled.
"""

from __future__ import annotations

__all__ = ["FRAGMENTS", "PRELUDES"]

POLICY = """
import evolvent as ev

lookup = ev.Lookup()
worlds = {"lookup": lookup}
tasks = lookup.tasks("train", "seen")[:6]
policy = ev.make_policy([lookup])
engine = ev.LocalEngine(policy)
"""
SHOWN = """
from dataclasses import replace
from pathlib import Path

from evolvent.agents.plain import Expert
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start
from evolvent.worlds.household.world import HouseholdWorld

house = HouseholdWorld()
house_tasks = [replace(task, kind=task.kind.split()[0]) for task in house.tasks("train", "seen")[:12]]
store = list(collect({house.name: house}, [Start(task) for task in house_tasks], Expert(), engine=None))
"""
PRELUDES = {
    ("docs/data.md", "from evolvent.agents.calling import ValidCalls"): POLICY
    + """
from evolvent.agents.language import LanguageAgent
""",
    ("docs/memory.md", "from evolvent.memory.steps import METADATA, THOUGHT, StepMemory"): SHOWN
    + """
task, folder = house_tasks[0], Path("memory")
""",
    ("docs/memory.md", "from evolvent.methods.agentevol import evolve, select_successes"): """
import evolvent as ev
from evolvent.memory.records import Key
from evolvent.memory.steps import StepMemory

lookup = ev.Lookup()
tasks = lookup.tasks("train", "seen")
config = ev.AgentEvolConfig(iterations=1, samples_per_task=1, round_tokens=300)
base, explore = ev.make_policy([lookup]), tasks[10:14]
demonstrations = list(ev.collect_demonstrations([lookup], tasks[:10]))
run = ev.local_run("run", [lookup])
""",
    ("docs/search.md", "from evolvent.search.drive import search_functions"): """
import numpy as np

from evolvent.search.records import Budget, Child

root, rng, evaluate = 1, np.random.default_rng(0), float


def expand(wish):
    return [Child(2 * wish.state + bit, str(bit), terminal=wish.state >= 8) for bit in (0, 1)]
""",
}
FRAGMENTS = {
    ("docs/models.md", '"""Your own model'): "a file of examples/, run by tests/examples",
    ("docs/worlds.md", '"""Your own world'): "a file of examples/, run by tests/examples",
    ("docs/extending.md", '"""Your own method'): "a file of examples/, run by tests/examples",
    ("docs/reinforcement.md", "with run.train_rl("): "the loop of methods/poad.py, run by tests/methods",
    ("docs/training.md", "laid = lay("): "calls that belong to different files; tests/learn run each",
    ("docs/teams.md", "from evolvent.worlds.teams.extras"): "needs evolvent[marl]; tests/worlds run it where that is",
    ("docs/teams.md", "from evolvent.rollout.teams import record_scenes"): "goes on from a training; tests/view run it",
    ("docs/teams.md", "from evolvent.methods.mat"): "minutes of training; tests/methods run it smaller",
    ("docs/search.md", "from evolvent.rollout.search"): "needs a judge; tests/rollout run it with one",
    ("docs/data.md", "from evolvent.methods.hammer"): "a training; tests/methods run it smaller",
    ("docs/memory.md", "from evolvent.config"): "needs a model that reads prompts; tests/methods script one",
    ("docs/scale.md", "from pathlib import Path"): "needs evolvent[ray]; tests/scale run it where that is",
    ("docs/serving.md", "from evolvent.serve.remote.world"): "needs a server on port 8000; tests/serve run one",
}
