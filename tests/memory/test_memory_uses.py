"""What docs/memory.md says that a memory is good for besides prompts."""

from __future__ import annotations

import json

from evolvent.curate.greedy import greedy_map
from evolvent.memory.encoders import HashedNgrams
from evolvent.memory.steps import Key, StepMemory
from evolvent.methods.agentevol import AgentEvolConfig, select_successes
from evolvent.trajectory import Score, Step, Task, Trajectory


def played(name, observations, *, success=True):
    steps = tuple(Step(seen, f"go {at}") for at, seen in enumerate(observations))
    return Trajectory(
        name, Task("rooms", "1", {"name": name}), steps, score=Score(float(success), float(success), success)
    )


def test_only_new_experience_is_kept():
    memory = StepMemory.from_trajectories([played("demo", ["a red door", "a long hall"])], key=Key("observation"))

    def novel(tried, config):
        fresh = []
        for one in select_successes(tried, config):
            nearest = memory.query([str(step.observation) for step in one.steps], 1)
            if min(hits[0].score for hits in nearest) < 0.95:
                memory.add([one])
                fresh.append(one)
        return fresh

    tried = [
        played("same", ["a long hall", "a red door"]),
        played("new", ["a red door", "the blue cellar"]),
        played("again", ["the blue cellar"]),
        played("lost", ["a green garden"], success=False),
    ]
    assert [one.id for one in novel(tried, AgentEvolConfig())] == ["new"]


def test_a_varied_subset_of_texts():
    texts = ["cool the mug in the fridge", "cool the mug in a fridge", "heat an egg", "heat one egg", "open the safe"]
    chosen = set(greedy_map(HashedNgrams()(texts), None, 3).indices.tolist())
    assert len(chosen & {0, 1}) == len(chosen & {2, 3}) == len(chosen & {4}) == 1


def test_calls_that_answered_like_requests():
    asked = {"weather in Paris tomorrow": "weather", "mail to Ann about lunch": "mail", "convert 3 euros": "money"}
    shown = []
    for text, tool in asked.items():
        call = json.dumps({"name": tool, "arguments": {}})
        shown.append(Trajectory(tool, Task("calls", "1", {"t": text}), (Step(text, call),)))
    memory = StepMemory.from_trajectories(shown, key=Key("observation"))
    (hits,) = memory.query(["what is the weather in Rome"], 1)
    assert json.loads(hits[0].record.action)["name"] == "weather"
