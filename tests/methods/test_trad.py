"""TRAD and its family: settings as data, thoughts written in hindsight, a household played to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

import evolvent as ev
from evolvent.agents.plain import Expert
from evolvent.agents.prompts import hindsight_digest, hindsight_prompt, prompts_digest
from evolvent.agents.writers import ScriptedWriter, WriterReply
from evolvent.config import resolve
from evolvent.errors import ConfigError, EndpointError
from evolvent.memory.records import METADATA, THOUGHT, Key, make_demonstration
from evolvent.memory.steps import StepMemory
from evolvent.methods.trad import (
    ABLATIONS,
    RAP,
    REACT,
    SYNAPSE,
    TRAD,
    ZERO_SHOT,
    TradConfig,
    build_agent,
    label_thoughts,
    select_shots,
    trad,
)
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes

WORLD = HouseholdWorld(sizes=Sizes(train=30, dev=12, test=12))
WORLDS = {WORLD.name: WORLD}
SYSTEMS = {"TRAD": TRAD, "ReAct": REACT, "Synapse": SYNAPSE, "RAP": RAP, **ABLATIONS}
_OWN = "Now it is your turn."


@pytest.fixture(scope="module")
def shown():
    starts = [ev.Start(task) for task in WORLD.tasks("train", "seen")]
    played = {one.task.id: one for one in ev.collect(WORLDS, starts, Expert(), engine=None)}
    return [played[start.task.id] for start in starts]


@pytest.fixture(scope="module")
def memory(shown):
    keys = [THOUGHT, METADATA, Key("observation")]
    return StepMemory.from_trajectories(
        [make_demonstration(one, kind=one.task.kind.split()[0]) for one in shown], key=keys
    )


class Follower:
    """A model by rules: it reads its own part of the prompt, and says what the expert says at that moment.

    Where a prompt of actions shows no demonstration, or the history it needs is not there, it is lost.
    """

    def __init__(self, task):
        self.known = {str(step.observation): step for step in WORLD.demonstrate(task)}
        self.prompts = []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        before, _, own = prompt.user.rpartition(_OWN)
        assert "> act: " in before, "no demonstration"
        seen = max(self.known, key=lambda text: own.rfind(text))
        step = self.known[seen]
        if prompt.user.endswith("> think:"):
            return f" {step.thought}\n> act: {step.action}"  # models go on; what follows is cut
        if prompt.user.endswith("\n>"):
            return f"think: {step.thought}" if f"> think: {step.thought}" not in own else f"act: {step.action}"
        return f" {step.action}\nand more"


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_household_is_played_to_its_end(name, memory):
    config = resolve(TradConfig, preset=SYSTEMS[name])
    plans = {task: WORLD.demonstrate(task) for task in WORLD.tasks("test", "seen")}
    task = next(task for task, plan in plans.items() if len({str(one.observation) for one in plan}) == len(plan) > 6)
    follower = Follower(task)
    (played,) = trad(ScriptedWriter(follower), [ev.Start(task)], config=config, worlds=WORLDS, memory=memory)
    assert (played.error, played.success) == (None, True)
    assert [step.action for step in played.steps] == WORLD.expert(task)
    assert [step.thought for step in played.steps] == [one.thought for one in WORLD.explain(task)]
    about = played.meta["trad"]
    assert (about["prompts"], about["memory"]) == (prompts_digest(), memory.digest)
    assert TradConfig(**about["config"]) == config
    kinds = {memory.get_demonstration(name).kind for step in played.steps for name, _ in step.info["shown"]["act"]}
    assert kinds == {task.kind.split()[0]}


def test_the_settings_differ_where_the_papers_do(memory):
    """Window, marks and history of the last prompt, as each system has them."""
    task = next(task for task in WORLD.tasks("test", "seen") if len(WORLD.expert(task)) > 8)
    found = {}
    for name, preset in SYSTEMS.items():
        follower = Follower(task)
        list(
            trad(
                ScriptedWriter(follower),
                [ev.Start(task)],
                config=resolve(TradConfig, preset=preset),
                worlds=WORLDS,
                memory=memory,
            )
        )
        before, _, own = follower.prompts[-1].user.rpartition(_OWN)
        found[name] = ("[Step 0]" in before, before.count("> act: ") // 2, own.count("> act: "), "OK." in before)
    steps = len(WORLD.expert(task)) - 1
    assert found["TRAD"][0] is True
    assert found["TRAD"][1] <= 4
    assert found["TRAD"][2:] == (3, False)
    assert found["no mark"] == (False, *found["TRAD"][1:])
    assert found["no alignment"][2] == steps
    assert found["no expansion"] == (True, 1, 0, False)
    assert found["RAP"][0] is False
    assert found["RAP"][2] == steps
    assert found["Synapse"][0] is False
    assert found["Synapse"][1] > 4
    assert found["ReAct"][3] is True


def test_zero_shot_needs_no_memory():
    agent = build_agent(ScriptedWriter(str), resolve(TradConfig, preset=ZERO_SHOT), memory=None)
    assert (agent.memory, list(agent.shots)) == (None, [])
    with pytest.raises(ConfigError, match="level"):
        build_agent(ScriptedWriter(str), TradConfig(), memory=None)


def test_fixed_demonstrations_are_the_first_of_each_type(memory):
    found = select_shots(memory, 2)
    of_type = {}
    for one in map(memory.get_demonstration, memory.trajectory_ids):
        of_type.setdefault(one.kind, []).append(one.trajectory_id)
    assert {one.trajectory_id for one in found} == {name for names in of_type.values() for name in names[:3]}


# ------------------------------------------------------------------ hindsight


def bare(one):
    return replace(one, steps=tuple(replace(step, thought=None) for step in one.steps))


def test_thoughts_are_written_with_the_action_known_and_nothing_later(shown):
    """Each prompt ends with the action and holds the thoughts before; later observations are not in it."""
    given = bare(shown[0])
    prompts = []

    def explain(prompt):
        prompts.append(prompt.user)
        return f" because {len(prompts)}\n> act: x"

    made = label_thoughts([given], ScriptedWriter(explain), worlds=WORLDS)
    (one,) = made.trajectories
    assert [step.thought for step in one.steps] == [f"because {n + 1}" for n in range(len(one.steps))]
    assert [step.action for step in one.steps] == [step.action for step in given.steps]
    assert (made.written, made.missing, made.failed) == (len(one.steps), 0, {})
    for at, prompt in enumerate(prompts):
        assert f"> act: {given.steps[at].action}\n\nThe thought" in prompt
        assert prompt.count("> think:") == at
        assert all(
            str(later.observation) not in prompt
            for later in given.steps[at + 1 :]
            if later.observation not in [step.observation for step in given.steps[: at + 1]]
        )
    assert one.meta["thoughts"] == prompts_digest()


def test_the_outcome_of_an_action_is_shown_on_request(shown):
    given = bare(shown[0])
    prompts = []
    writer = ScriptedWriter(lambda prompt: prompts.append(prompt.user) or "so")
    labeled = label_thoughts([given], writer, worlds=WORLDS, max_steps=2, outcome=True)
    observations = [str(step.observation) for step in given.steps]
    for number, prompt in enumerate(prompts):
        shown_steps, _, outcome = prompt.partition("\n\nThe last action led to:\n")
        assert shown_steps.count("> act: ") == min(2, number + 1)
        after = observations[number + 1] if number + 1 < len(observations) else ""
        assert outcome.startswith((after or str(given.final_observation or "The episode ended."))[:20])
    assert labeled.trajectories[0].meta["thoughts"] not in (prompts_digest(), hindsight_digest(outcome=True))
    assert hindsight_digest() == prompts_digest()


def test_a_long_outcome_is_cut_at_its_beginning(shown):
    record = make_demonstration(bare(shown[0]))
    long = replace(record.steps[1], observation="\n".join(f"line {n}" for n in range(1000)))
    record = replace(record, steps=(record.steps[0], long, *record.steps[2:]))
    prompt = hindsight_prompt("", record, 0, outcome=True).user
    assert "line 999" in prompt and "line 100\n" not in prompt and len(prompt) < 6000
    assert "led to:\n[...] line " in prompt


def test_thoughts_that_are_there_stay_unless_asked_for(shown):
    half = bare(shown[0])
    half = replace(half, steps=(replace(half.steps[0], thought="mine"), *half.steps[1:]))
    kept = label_thoughts([half], ScriptedWriter(lambda prompt: "new"), worlds=WORLDS)
    assert [step.thought for step in kept.trajectories[0].steps] == ["mine", *["new"] * (len(half.steps) - 1)]
    anew = label_thoughts([half], ScriptedWriter(lambda prompt: "new"), worlds=WORLDS, overwrite=True)
    assert {step.thought for step in anew.trajectories[0].steps} == {"new"}


class Failing:
    """Fails for prompts that hold a text; writes nothing for others."""

    def __init__(self, text):
        self.text = text

    def begin(self, seed):
        return self

    def write(self, request):
        if self.text in request.prompt.user:
            raise EndpointError("no answer", value=503)
        return WriterReply("  ")
        yield ()


def test_a_failed_call_is_told_and_an_empty_thought_counted(shown):
    first, second = bare(shown[0]), bare(shown[1])
    made = label_thoughts([first, second], Failing(str(first.steps[0].observation)), worlds=WORLDS)
    assert made.trajectories[0] == first
    assert [type(error) for error in made.failed.values()] == [EndpointError]
    assert list(made.failed) == [first.id]
    assert (made.written, made.missing) == (0, len(second.steps))
    assert {step.thought for step in made.trajectories[1].steps} == {None}


def test_an_episode_whose_model_fails_is_not_scored(memory):
    task = WORLD.tasks("test", "seen")[0]
    (played,) = trad(Failing("Your task"), [ev.Start(task)], config=TradConfig(), worlds=WORLDS, memory=memory)
    assert played.success is None
    assert "no answer" in str(played.error)


def test_what_cannot_be_labelled(shown):
    with pytest.raises(ConfigError, match="got 2 trajectories with this id"):
        label_thoughts([shown[0], shown[0]], ScriptedWriter(str), worlds=WORLDS)
    with pytest.raises(ConfigError, match="unknown world"):
        label_thoughts([shown[0]], ScriptedWriter(str), worlds={})
