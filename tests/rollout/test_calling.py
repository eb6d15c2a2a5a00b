"""A language agent that can write nothing but valid calls: a model with random weights, in worlds with tools."""

import json

import pytest

pytest.importorskip("llguidance")

from evolvent.agents.calling import ValidCalls
from evolvent.agents.language import LanguageAgent
from evolvent.cli.main import main
from evolvent.engine.asks import SampleAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.local import LocalEngine
from evolvent.errors import BatchMismatch, ConfigError, InvalidAction
from evolvent.learn.token_sequences import flatten
from evolvent.models.call_schemas import AnswerLimits
from evolvent.models.constraints import CallConstraints
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.models.toolprompt import FourBlocks
from evolvent.rl.rollout_batch import build_rollout_batch
from evolvent.rollout.episode import collect
from evolvent.schemas import find_argument_faults
from evolvent.trajectory import Start
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.functions.episode import read_calls
from evolvent.worlds.functions.spelling import resolve_names
from evolvent.worlds.functions.world import Functions
from tests.models.test_dialects import CHATML, byte_tokenizer
from tests.worlds.bfcl_mini import build

LIMITS = AnswerLimits(calls=2, text=6, items=2)


def policy_of(form: str, *, context: int) -> Policy:
    """Random weights over the words of the world, or over bytes."""
    words = Functions("words").vocabulary()
    tokenizer = (
        word_tokenizer(words, context=context)
        if form == "words"
        else byte_tokenizer(CHATML, ["<|im_start|>", "<|im_end|>"])
    )
    config = tiny_config(len(tokenizer), context=context)
    config.hidden_size, config.num_hidden_layers, config.intermediate_size = 16, 1, 32
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim = 8
    return Policy(init_tiny(config, seed=1), tokenizer, dialect_for(tokenizer, "words" if form == "words" else "chat"))


def play(policy, world, tasks, *, constrain, max_tokens):
    agent = LanguageAgent(policy, max_tokens=max_tokens, constrain=constrain)
    engine = LocalEngine(policy, slots=4)
    return list(collect({world.name: world}, [Start(task) for task in tasks], agent, engine=engine, seed=3, slots=4))


@pytest.mark.parametrize("form", ["words", "python", "json", "xml"])
def test_random_weights_write_valid_calls_alone(form):
    world, policy = Functions(form), policy_of(form, context=1024 if form == "words" else 6144)
    tasks = [world.tasks("test", tier)[at] for tier in world.tiers[:2] for at in (0, 3, 5, 9)]
    held = ValidCalls(CallConstraints(policy, limits=LIMITS))
    played = play(policy, world, tasks, constrain=held, max_tokens=400)
    steps = [(one.task, step) for one in played for step in one.steps]
    assert len(steps) >= len(tasks) and not any(one.error for one in played)
    count = 0
    for task, step in steps:
        assert step.info["constrained"] and "unparsed" not in step.info and step.generations[-1].stop == "stop"
        known = {tool.name: tool for tool in world.toolbox(task).tools}
        for call in resolve_names(read_calls(step.action, form), list(known.values())):
            assert find_argument_faults(call.arguments, known[call.name].parameters) == ()
            count += 1
    assert count > 0


def test_what_is_cut_is_no_action_and_learners_tell_what_was_held():
    world, policy = Functions("words"), policy_of("words", context=512)
    tasks = world.tasks("test", "seen")[:3]
    held = ValidCalls(CallConstraints(policy, limits=AnswerLimits(text=200)))
    for one in play(policy, world, tasks, constrain=held, max_tokens=3):
        assert all(step.info.get("unparsed") or step.action == "[]" for step in one.steps)
    played = play(policy, world, tasks, constrain=ValidCalls(CallConstraints(policy, limits=LIMITS)), max_tokens=300)
    chains = flatten(played, policy.dialect, instructions=lambda task: "", context=1024, stops=True).sequences
    assert chains, "imitation takes them"
    with pytest.raises(BatchMismatch, match="was sampled under a constraint"):
        build_rollout_batch(played, chains)
    free = play(policy, world, tasks, constrain=None, max_tokens=8)
    assert not any("constrained" in step.info for one in free for step in one.steps)
    build_rollout_batch(
        free, flatten(free, policy.dialect, instructions=lambda task: "", context=1024, stops=True).sequences
    )


def test_worlds_and_settings_that_say_nothing_of_calls_are_refused():
    policy = policy_of("words", context=512)
    held = ValidCalls(CallConstraints(policy))
    world = Crafting()
    with pytest.raises(ConfigError, match="does not declare its valid calls"):
        held(world, world.tasks("test", "seen")[0], {})
    with pytest.raises(ConfigError, match="choose and constrain are both set"):
        LanguageAgent(policy, restrict_to_admissible=True, constrain=held)
    assert held(Functions("words"), None, {"tools": [], "language": "java"}) is None


def test_an_ask_under_a_prompt_can_be_held():
    policy, world = policy_of("json", context=6144), Functions("json")
    sample = world.sample_of(world.tasks("test", "seen")[0])
    made = CallConstraints(policy, limits=LIMITS).for_prompt(FourBlocks(), sample)
    tokens = FourBlocks().tokens(sample, policy.dialect).prompt
    asks = [
        SampleAsk(None, tokens, 600, policy.dialect.stop_ids, seeds=(1, 2, 3), constraint=one) for one in (made, None)
    ]
    held, free = ask_and_wait(asks, LocalEngine(policy, slots=2))
    for one in held:
        FourBlocks().parse_calls(policy.dialect.text(one.ids.tolist()), sample)
    with pytest.raises(InvalidAction):
        FourBlocks().parse_calls(policy.dialect.text(free[0].ids.tolist()), sample)


def test_bench_bfcl_can_be_held_to_valid_calls(tmp_path, capsys):
    data, folder = build(tmp_path / "data"), tmp_path / "policy"
    policy_of("json", context=4096).save(folder)
    words = [
        "bench",
        "bfcl",
        str(data),
        "--categories",
        "simple_python,live_simple",
        "--form",
        "json",
        "--masked",
        "false",
        "--limit",
        "1",
        "--slots",
        "2",
        "--max_tokens",
        "60",
        "--temperature",
        "1",
    ]
    with_policy = [*words, "--agent", "policy", "--policy", str(folder)]
    assert main([*with_policy, "--constrained", "true", "--to", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "bfcl.json").read_text())["constrained"] is True
    capsys.readouterr()
    assert main([*words, "--constrained", "true", "--to", str(tmp_path / "other")]) == 2
    assert "need a local model" in " ".join(capsys.readouterr().err.split())
