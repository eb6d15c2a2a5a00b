"""How `benchmarks.trad.retrieval` counts, on episodes whose answer is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.trad.retrieval import action_of, match, without_last_sentence, wronged
from evolvent.memory.encoders import HashedNgrams
from evolvent.memory.loaders import read_trad
from evolvent.memory.records import make_demonstration

THINGS = ("mug", "egg", "bowl", "pan", "cup")
PLACES = ("desk", "shelf", "bed", "sofa")


@pytest.fixture
def data(tmp_path):
    """Every thought says the action, observations say nothing, and the moments of actions differ by episode."""
    for at in range(60):
        thing = THINGS[at % 5]
        acts = ["open drawer 1"] * (at % 3) + [f"take {thing} {at % 4 + 1} from shelf 1", f"put {thing} 1 in/on desk 1"]
        steps = [{"obs": "You see nothing.", "act": act, "thought": f"All is well. Next, I {act}."} for act in acts]
        text = json.dumps(
            {"task": f"put some {thing} on {PLACES[at % 4]}.", "traj": [*steps, {"obs": "end", "act": "stale"}]}
        )
        (tmp_path / f"0_{at}.json").write_text(text)
    return tmp_path


def test_actions():
    assert action_of("take keychain 1 from shelf 8") == ("take", "keychain")
    assert action_of("go to shelf 8") == ("go to", "shelf")
    assert action_of("put cd 2 in/on desk 1") == ("put", "cd")
    assert action_of("look") == ("look", "")


def test_the_last_sentence():
    assert without_last_sentence("None\nI found it (1). Next, I take it.") == "None\nI found it (1)."
    assert without_last_sentence("only one") == ""


def test_wrong_thoughts_are_as_many_as_told(data):
    episodes = [make_demonstration(one) for one in read_trad(data).trajectories]
    steps = [step for one in episodes for step in one.steps]
    for share in (0.0, 0.5, 1.0):
        made = [step for one in wronged(episodes, share, "x") for step in one.steps]
        assert [step.action for step in made] == [step.action for step in steps]
        changed = np.mean([a.thought != b.thought for a, b in zip(made, steps, strict=True)])
        assert share - 0.25 <= changed <= share + 0.1, "some of the others' thoughts are the same"


def test_thoughts_that_tell_all_find_all(data):
    found = match(data, HashedNgrams(256), quick=True)
    told = found["match"]
    assert told["thought"] == [1, 1, 1]
    assert told["random"][0] < told["metadata"][0] < 1
    assert told["observation"][0] < 0.9 and told["thought_wrong_30"][0] < 0.95
    assert found["match_gain_ci"][1] > 0 and found["gain_over"] in ("metadata", "metadata_shown")
    assert all(low <= mean <= high for mean, low, high in told.values())
    cost = found["prompt_tokens"]
    assert found["match_per_1000_tokens"]["thought"] == pytest.approx(1000 / cost["thought"], rel=1e-2)
    assert sum(found["episodes"]) == sum(found["by_goal"]["episodes"]) == 60
