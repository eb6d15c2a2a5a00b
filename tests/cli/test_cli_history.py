"""`--agent.history`: past replies as they were sampled, or as the policy's chat template renders them."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.templates import byte_level_tokenizer, template_text
from evolvent.cli import serve
from evolvent.cli.main import main
from evolvent.cli.setup.registry import resolve_policy
from evolvent.learn.token_sequences import flatten
from evolvent.models.dialects import Chat
from evolvent.models.policy import Policy
from evolvent.rl.rollout_batch import TRUNCATED
from evolvent.rl.scored_rollout import append_final_observations
from evolvent.scale.local_backend import LocalBackend
from evolvent.store.store import Store
from evolvent.trajectory import Step, Task, Trajectory
from evolvent.worlds.lookup import Lookup

SMALL = "--worlds lookup --slots 8 --max_tokens 6"
THINK, INSTRUCTIONS = "<think>", Lookup().instructions


def make_policy(template: str = "qwen3.jinja", *, history: str = "append") -> Policy:
    """Builds an untrained policy with a chat template; that of Qwen 3 leaves thoughts of the past out."""
    tokenizer = byte_level_tokenizer(template_text(template))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
    )
    return Policy(LlamaForCausalLM(config), tokenizer, Chat(tokenizer, history=history))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "qwen"
    make_policy().save(path)
    return path


def count_new_roots(run, history="append"):
    """Counts the turns of a run that began anew, after checking what every turn read."""
    policy, count = make_policy(history=history), 0
    with Store.open(run / "trajectories") as store:
        for trajectory in store.trajectories():
            read, past = [], []
            for step in trajectory.steps if trajectory.generations else ():
                (generation,) = step.generations
                is_root = generation.extends is None
                read = [*([] if is_root else read), *generation.ids[~generation.sampled].tolist()]
                if history == "template":
                    assert read == policy.dialect.rendered_prompt(INSTRUCTIONS, past, step.observation)
                count += is_root and bool(past)
                past.append((step.observation, generation.ids[generation.sampled].tolist()))
                read += past[-1][1]
    return count


# Sampled replies: the likeliest tokens of an untrained policy are near ties, which a processor's rounding decides.
COMMANDS = {
    "eval": "eval {folder} {small} --panel.limit 2 --temperature 1",
    "collect": "collect --agent policy --policy {folder} {small} --limit 2",
    "evolve": "evolve --policy {folder} {small} --panel.limit 2 --demonstrations 2 --explore 2 --namings 1 "
    "--method.clone_tokens 20 --method.round_tokens 20 --method.iterations 1 --method.samples_per_task 1",
    "train rl": "train rl --method ppo --policy {folder} {small} --panel.limit 2 --demonstrations 2 "
    "--clone_tokens 20 --tasks 2 --rl.practice.iterations 1 --rl.practice.group_size 1",
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_history_of_the_command_line_reaches_the_episodes_and_the_record(tmp_path, capsys, folder, verb):
    argv = COMMANDS[verb].format(folder=folder, small=SMALL).split()
    for history in ("append", "template"):
        run = tmp_path / history
        assert main([*argv, "--agent.history", history, "--output_dir", str(run)]) in (0, 1)
        assert f"history {history}: " in capsys.readouterr().out
        assert f'history = "{history}"' in (run / "config.toml").read_text()
        assert (count_new_roots(run, history) > 0) == (history == "template")


def test_without_the_option_the_policy_s_own_history_is_recorded_and_kept_on_resume(tmp_path, capsys):
    policy_folder, run = tmp_path / "policy", tmp_path / "run"
    make_policy(history="template").save(policy_folder)
    argv = f"collect --agent policy --policy {policy_folder} {SMALL} --limit 2".split()
    assert main([*argv, "--output_dir", str(run)]) == 0
    assert 'history = "template"' in (run / "config.toml").read_text()
    make_policy(history="append").save(policy_folder)
    capsys.readouterr()
    assert main(["collect", "--resume", str(run)]) == 0
    assert "history template: " in capsys.readouterr().out


def test_history_is_not_told_where_the_template_leaves_the_past_unchanged(tmp_path, capsys):
    make_policy("qwen2_5.jinja").save(tmp_path / "policy")
    argv = f"collect --agent policy --policy {tmp_path / 'policy'} {SMALL} --limit 1".split()
    assert main([*argv, "--agent.history", "template", "--output_dir", str(tmp_path / "run")]) == 0
    assert "history template" not in capsys.readouterr().out
    assert count_new_roots(tmp_path / "run") == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("search --policy {folder} --worlds lookup --search.value none", "searches over turns keep the tokens"),
        ("eval xs --worlds lookup", "policy 'xs' has no chat template"),
        ("collect --agent expert", "history needs --agent policy, got expert"),
        ("bench agent-eval --agent policy --memory.folder m", "a memory writes every prompt anew"),
        ("serve lookup", "past replies are those of a policy"),
        (
            "train rl --method grpo --endpoint http://127.0.0.1:9/v1 --model m --hand_over h",
            "an endpoint keeps past replies as it likes",
        ),
    ],
)
def test_history_that_a_command_cannot_honor_is_refused_before_a_run_is_made(
    tmp_path, monkeypatch, capsys, folder, argv, message
):
    monkeypatch.chdir(tmp_path)
    assert main([*argv.format(folder=folder).split(), "--agent.history", "template"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_search_refuses_a_policy_that_was_saved_with_the_other_history(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_policy(history="template").save(tmp_path / "policy")
    argv = [
        "search",
        "--policy",
        "policy",
        "--worlds",
        "lookup",
        "--search.value",
        "none",
        "--limit",
        "1",
        "--methods",
        "greedy",
    ]
    assert main(argv) == 2
    assert "history is 'template'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()
    assert main([*argv, "--agent.history", "append", "--output_dir", "run"]) in (0, 1)


def test_search_of_single_responses_takes_both_histories(tmp_path, folder):
    argv = f"search --policy {folder} --worlds deduction --search.value none --limit 1 --methods greedy".split()
    assert main([*argv, "--agent.history", "template", "--output_dir", str(tmp_path / "run")]) in (0, 1)
    assert 'history = "template"' in (tmp_path / "run" / "config.toml").read_text()


def test_served_policy_has_the_history_of_the_command_line(monkeypatch, capsys, folder):
    served: list[Policy] = []
    monkeypatch.setattr(serve.asyncio, "run", lambda job: job.close())
    monkeypatch.setattr(serve, "resolve_policy", lambda *a, **k: served.append(resolve_policy(*a, **k)) or served[-1])
    assert main(["serve", "--policy", str(folder), "--port", "0", "--agent.history", "template"]) == 0
    assert served[0].dialect.history == "template"
    assert "history template: " in capsys.readouterr().out


def test_expert_s_episode_is_learned_reply_by_reply_behind_the_rendered_past():
    kept, rendered = make_policy(), make_policy(history="template")
    task = Task("lookup", "1", {})
    steps = (Step("a door", "open"), Step("a hall", "north"))
    record = Trajectory("expert", task, steps=steps)
    lists = [
        flatten([record], policy.dialect, instructions=lambda task: "Act.", context=512).sequences
        for policy in (kept, rendered)
    ]
    assert [len(sequences) for sequences in lists] == [1, 2]
    texts = [[kept.tokenizer.decode(sequence.ids) for sequence in sequences] for sequences in lists]
    assert texts[0][0].count(THINK) == 2
    assert [text.count(THINK) for text in texts[1]] == [1, 1]
    messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": "a door"}]
    messages += [{"role": "assistant", "content": "open"}, {"role": "user", "content": "a hall"}]
    messages += [{"role": "assistant", "content": "north"}]
    whole = kept.tokenizer.apply_chat_template(messages, tokenize=False)
    assert texts[1][1] == whole.removesuffix("\n")
    learned = [sequence.ids[sequence.weight > 0] for sequence in lists[1]]
    assert [kept.tokenizer.decode(ids).split("</think>")[1].strip() for ids in learned] == [
        "open<|im_end|>",
        "north<|im_end|>",
    ]
    assert [sequence.step.tolist()[-1] for sequence in lists[1]] == [0, 1]


def test_policies_with_another_history_are_other_origins():
    backend = LocalBackend({})
    assert backend.origin(make_policy()) != backend.origin(make_policy(history="template"))
    unchanged = [backend.origin(make_policy("qwen2_5.jinja", history=history)) for history in ("append", "template")]
    assert unchanged[0] == unchanged[1]


def test_value_of_a_cut_episode_is_read_behind_the_prompt_that_the_template_renders(tmp_path, folder, monkeypatch):
    """The sequence of the last step ends before its observation: the agent would have read a new root."""
    calls = []

    def spy(sequences, batch, episodes, **options):
        extended, ended_batch, final_sequences = append_final_observations(sequences, batch, episodes, **options)
        for action, number in final_sequences.items():
            assert batch.ended[action] == TRUNCATED
            calls.append((len(sequences), number, extended[number].ids, episodes[int(batch.episode[action])]))
        return extended, ended_batch, final_sequences

    monkeypatch.setattr("evolvent.rl.scored_rollout.append_final_observations", spy)
    argv = COMMANDS["train rl"].format(folder=folder, small=SMALL).split()
    assert main([*argv, "--agent.history", "template", "--output_dir", str(tmp_path / "run")]) == 0
    assert calls
    tokenizer = make_policy().tokenizer
    for count, number, ids, episode in calls:
        assert number >= count
        text = tokenizer.decode(ids[:-1])
        assert text.endswith(f"<|im_start|>user\n{episode.final_observation}<|im_end|>\n<|im_start|>assistant\n")
        assert text.count("<|im_start|>assistant") == len(episode.steps) + 1


def test_results_of_an_evaluation_name_the_history(tmp_path, folder):
    argv = f"bench agent-eval --agent policy --policy {folder} {SMALL} --limit 1 --tiers seen --split dev".split()
    assert main([*argv, "--agent.history", "template", "--output_dir", str(tmp_path / "run")]) in (0, 1)
    sheet = json.loads((tmp_path / "run" / "agent-eval.json").read_text())
    assert "template" in json.dumps(sheet["player"])
