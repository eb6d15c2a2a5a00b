"""Prompts: expert episodes of other tasks as turns of the conversation, and the form of an action."""

import copy

import pytest

from evolvent.agents.chat import ChatAgent
from evolvent.agents.language import LanguageAgent
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.messages import Instructions
from evolvent.models.dialects import Words
from evolvent.rollout.episode import collect
from evolvent.rollout.prompting import prompt_world
from evolvent.scale.initial import make_policy
from evolvent.trajectory import Start
from evolvent.worlds.base import TextWorld
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup


@pytest.fixture(scope="module")
def world():
    return Lookup()


def test_examples_are_the_experts_episodes_turn_by_turn(world):
    prompted = prompt_world(world, examples=2, seed=3)
    instructions = prompted.instructions
    assert isinstance(instructions, Instructions)
    assert str(instructions) == world.instructions
    hidden = [
        task
        for tier in world.tiers
        for task in world.tasks("train", tier)
        if task.id not in {other.id for other in prompted.tasks("train", tier)}
    ]
    assert len(hidden) == 2
    assert len({task.kind for task in hidden}) == 2  # different kinds where there are some
    actions = [action for _, action in instructions.examples]
    experts = {tuple(world.expert(task)) for task in hidden}
    assert {tuple(actions[:size]) for size in range(1, len(actions))} & experts
    assert sum(map(len, experts)) == len(actions)
    turns, first = instructions.open_with("boss of adam")
    assert first == "right\n\nboss of adam"  # what the last example ended with, then the task
    assert sum(text.startswith("right\n\n") for text, _ in turns) == 1  # the second example begins so too


def test_a_prompt_is_the_same_for_the_same_seed_and_leaves_the_world_alone(world):
    first, again = prompt_world(world, examples=1, seed=5), prompt_world(world, examples=1, seed=5)
    assert first.instructions.digest == again.instructions.digest
    assert first.instructions.digest != prompt_world(world, examples=1, seed=6).instructions.digest
    assert not isinstance(world.instructions, Instructions)
    assert prompt_world(world) is world
    assert isinstance(first, Lookup)
    for split in ("dev", "test"):
        for tier in world.tiers:
            assert list(first.tasks(split, tier)) == list(world.tasks(split, tier))


def test_instructions_survive_copies():
    instructions = Instructions("Add.", [("1 + 1", "2")], "right")
    copied = copy.deepcopy(instructions)
    assert (str(copied), copied.examples, copied.closing) == ("Add.", (("1 + 1", "2"),), "right")
    assert copied.digest == instructions.digest


def test_the_hint_names_the_form_of_an_action(world):
    assert prompt_world(world, hint=True).instructions.endswith("Answer with one action and nothing else.")


def test_words_read_examples_as_turns():
    world = prompt_world(Lookup(), examples=1)
    policy = make_policy([world])
    assert isinstance(policy.dialect, Words)
    ids = policy.dialect.open(world.instructions, "boss of adam")
    texts = policy.tokenizer.convert_ids_to_tokens(ids)
    (first_text, first_reply), *_ = world.instructions.examples
    expected = ["<bos>", "<obs>", *first_text.split(), "<act>", *first_reply.split(), "<eos>", "<obs>"]
    assert texts[: len(expected)] == expected
    assert texts[-6:] == ["<obs>", "right", "boss", "of", "adam", "<act>"]
    assert policy.dialect.open(Lookup().instructions, "boss of adam") == policy.dialect.open("", "boss of adam")


def test_an_endpoint_is_sent_examples_as_messages(world):
    class Recorder:
        tokens = False
        processed = False

    prompted = prompt_world(world, examples=1)
    agent = ChatAgent(Recorder(), hint="")
    mind = agent.begin(prompted, world.tasks("test", "seen")[0], seed=0)
    messages = mind._pages.messages(mind._open("boss of adam"))
    roles = [message.role for message in messages]
    assert roles == ["system", *["user", "assistant"] * len(prompted.instructions.examples), "user"]
    assert messages[-1].text == "right\n\nboss of adam"


def test_policies_play_and_learn_with_examples(world):
    """The generations hold the examples' tokens, so that learners see what the sampler read."""
    prompted = prompt_world(world, examples=1)
    policy = make_policy([prompted])
    starts = [Start(task) for task in prompted.tasks("test", "seen")[:3]]
    agent = LanguageAgent(policy, max_tokens=4)
    episodes = list(collect({"lookup": prompted}, starts, agent, engine=LocalEngine(policy, slots=4), seed=1))
    prefix = policy.dialect.open(prompted.instructions, "")[:-2]
    for episode in episodes:
        ids = episode.steps[0].generations[0].ids.tolist()
        assert ids[: len(prefix)] == prefix


def test_a_world_without_enough_expert_episodes_is_refused():
    class Silent(TextWorld):
        name = "silent"

        def specs(self):
            return [{"n": n} for n in range(20)]

        def play(self, spec):
            yield "say something"
            return 1.0

    with pytest.raises(ConfigError, match=r"examples: got 2 for world 'silent', whose expert solves 0"):
        prompt_world(Silent(), examples=2)


def test_every_world_keeps_its_class_and_panels(world):
    crafting = Crafting()
    prompted = prompt_world(crafting, examples=1, hint=True)
    task = prompted.tasks("train", prompted.tiers[0])[0]
    observation, _ = prompted.make(task).reset()
    assert observation == crafting.make(task).reset()[0]
    assert prompted.expert(task) == crafting.expert(task)


def test_examples_come_from_the_tasks_that_the_expert_solves():
    """Most kinds have no expert here: the choice goes on until there are enough."""

    class Partly(TextWorld):
        name = "partly"

        def specs(self):
            return [{"n": n} for n in range(60)]

        def play(self, spec):
            reply = yield f"say {spec['n']}"
            return 1.0 if reply == str(spec["n"]) else 0.0

        def expert(self, task):
            return (
                [str(task.spec["n"])] if task.spec["n"] % 10 == 0 else ["nothing"] if task.spec["n"] % 10 == 1 else None
            )

    world = Partly()
    solved = [task for task in world.tasks("train", "seen") if task.spec["n"] % 10 == 0]
    prompted = prompt_world(world, examples=len(solved))
    assert {text.rpartition("\n")[2] for text, _ in prompted.instructions.examples} == {
        f"say {task.spec['n']}" for task in solved
    }
    with pytest.raises(ConfigError, match=f"got {len(solved) + 1} .* whose expert solves {len(solved)} training tasks"):
        prompt_world(world, examples=len(solved) + 1)
