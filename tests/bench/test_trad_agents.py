"""The study of remembering agents: hidden commands, drills that can be answered, prompts of the expert, its figures."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.study import write_cell
from benchmarks.trad_agents import __main__ as trad_agents
from benchmarks.trad_agents.cell import acts, make_part, told_share, untrained
from benchmarks.trad_agents.lessons import (
    CODE_WORDS,
    SYSTEMS,
    TOKEN,
    WORLDS,
    Code,
    Coded,
    Lesson,
    Protocol,
    drill,
    lessons,
    memory_of,
    panel,
    world_of,
)
from evolvent.agents.prompts import Prompt
from evolvent.agents.writers import ScriptedWriter, WriteRequest
from evolvent.methods.trad import trad
from evolvent.trajectory import Start

SMALL = Protocol(shown=6, test=2, pages=40)
CODE = Code({"go": "baq", "take": "muq"})
PROMPT = "> think: go\n> act: go to bed 1\nYou act: go\n[Step 0]\n> act: take pen 1 from bed 1\n> act:"


def test_only_commands_of_actions_are_hidden():
    assert CODE.hide(PROMPT) == (
        "> think: go\n> act: baq to bed 1\nYou act: go\n[Step 0]\n> act: muq pen 1 from bed 1\n> act:"
    )
    assert CODE.hide("act: go to bed 1") == "act: baq to bed 1"
    assert CODE.reveal("muq pen 1 from bed 1") == "take pen 1 from bed 1"
    assert CODE.reveal("go to bed 1") == "? to bed 1", "a command in clear is none"
    assert CODE.reveal("") == "?"


def test_codes_differ_and_are_one_to_one():
    first, second = (Code.drawn("backoffice", "x", at) for at in range(2))
    assert first != second and first == Code.drawn("backoffice", "x", 0)
    assert len(set(first.words.values())) == len(first.words) == 10
    known = {word for name in WORLDS for word in world_of(SMALL, name).vocabulary() or ()}
    assert not known & set(CODE_WORDS)


@pytest.mark.parametrize(
    ("ask", "answer", "found"),
    [
        ("> act:", "baq to bed 1", "go to bed 1"),
        ("> think:", "baq to bed 1", "baq to bed 1"),
        (">", "act: muq pen 1", "act: take pen 1"),
        (">", "think : I baq", "think : I baq"),
    ],
)
def test_a_writer_in_a_code(ask, answer, found):
    read = []

    def said(prompt):
        read.append(prompt.user)
        return answer

    writing = (
        Coded(ScriptedWriter(said), CODE).begin(0).write(WriteRequest(Prompt("rules", f"> act: go\n{ask}"), ("\n",), 9))
    )
    with pytest.raises(StopIteration) as end:
        next(writing)
    assert end.value.value.text == found
    assert read == [f"> act: baq\n{ask}"]


def test_a_drill_can_be_answered_from_its_text():
    rng, words = np.random.default_rng(0), [f"w{a}{b}" for a in "abcdefgh" for b in "klmnopq"]
    told = 0
    for _ in range(50):
        one = drill(words, rng)
        lines = one.prompt.split("\n")
        assert lines[-1] == "> act:"
        keys = [line.split()[6] for line in lines if line.startswith("> think")]
        values = [*(line.split()[2] for line in lines[:-1] if line.startswith("> act")), one.answer.split()[0]]
        assert len(dict(zip(keys, values, strict=True))) == len(set(zip(keys, values, strict=True)))
        assert one.answer.split()[1:] == lines[-2].rstrip(".").split()[7:]
        told += keys[-1] in keys[:-1]
    assert told > 25


@pytest.mark.parametrize("name", ["household", "backoffice", "web_replay"])
def test_the_expert_s_prompts_are_those_of_play(name):
    """Whoever answers as the lessons say solves the task, in a code too, and reads these prompts and no others."""
    world, task = world_of(SMALL, name), panel(SMALL, name, "test")[0]
    asked = lessons(SMALL, name, "trad", "test")[0]
    code = Code.drawn(name, "test")
    answers = {code.hide(one.prompt): one.answer for one in asked}

    def said(prompt):
        answer = answers.pop(prompt.user)
        return answer if prompt.user.endswith("think:") else code.hide(f"act: {answer}")[5:]

    config = trad_agents_config(name)
    (played,) = trad(
        Coded(ScriptedWriter(said), code),
        [Start(task)],
        config=config,
        worlds={world.name: world},
        memory=memory_of(SMALL, name),
    )
    assert played.success and not answers


def trad_agents_config(name):
    from benchmarks.trad_agents.lessons import agent_config

    return agent_config(SMALL, name, "trad")


def test_what_prompts_tell():
    shown = "> act: go to bed 1\nNow it is your turn.\n> act: take pen 1 from bed 1\n> act:"
    asked = [Lesson("x\n> think:", "I go"), Lesson(shown, "go to sofa 1"), Lesson(shown, "take cup 1 from bed 1")]
    assert acts(asked) == asked[1:]
    assert told_share(asked) == 0.5, "what the agent did itself was not shown"
    assert told_share([Lesson("> act: go to bed 1\n> act:", "go to sofa 1")]) == 0, "nothing was shown"


def test_what_is_learned_of_a_lesson():
    policy = untrained(SMALL, 0)
    one = Lesson("go go\n> think: take 1\n> act: go to 2\ngo\n> act:", "take 3")
    part = make_part(one, policy, CODE, aside=0.25, name="x")
    words = [*TOKEN.findall(CODE.hide(one.prompt))]
    assert part.weight[2 : 2 + len(words)].tolist() == [0] * 5 + [0.25] * 2 + [0] * 3 + [0.25] * 3 + [0] * 4
    assert part.weight[2 + len(words) :].tolist() == [0, 1, 1, 1]
    assert policy.dialect.text(part.ids[-3:].tolist()) == "muq 3"
    assert make_part(Lesson("go " * 2000, "go"), policy, CODE, aside=0.25, name="x") is None


def test_figures_hold_whole_seeds(tmp_path):
    def row(name, system, seed):
        won = [1.0, float(seed == 0)] if system == "trad" else [0.0, 0.0]
        scores = {"success": won, "unit": won, "followed": [0.5, 0.5], "told": [1.0, 0.0], "kinds": ["a", "a"]}
        costs = dict.fromkeys(trad_agents.COSTS, 10)
        return {"world": name, "system": system, "seed": seed, "digest": SMALL.digest, "training": {}} | scores | costs

    cells = [(name, system, seed) for name in WORLDS for system in SYSTEMS for seed in (0, 1, 2)]
    for at, cell in enumerate(cells[:-1]):  # one cell of seed 2 is missing
        write_cell(tmp_path, str(at), row(*cell))
    found = trad_agents.figures(SMALL, tmp_path, (0, 1, 2))
    assert found["seeds"] == [0, 1]
    assert found["success"]["household"]["trad"][0] == 0.75
    assert found["gain_of_trad"]["success"]["all"]["react"][0] == 0.75
    assert found["followed"]["all"]["rap"][0] == 0.5 and found["cost"]["steps"]["household"]["rap"] == 10
    assert trad_agents.figures(SMALL, tmp_path / "none", (0,)) == {}
