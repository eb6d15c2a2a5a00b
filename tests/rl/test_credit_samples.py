"""Which credit is kept to look at, and that what is kept is what was learned."""

import json

import numpy as np
import pytest
from acting import Echo, Endless, quick, run_of, small
from hypothesis import given
from hypothesis import strategies as st

from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.methods.poad import POADConfig as PoadConfig
from evolvent.methods.poad import poad
from evolvent.rl import diagnostics as module
from evolvent.rl.advantages import Advantages
from evolvent.rl.critic import critic_objective
from evolvent.rl.diagnostics import choose_episodes, is_sampled_iteration, sample_credit
from evolvent.rl.presets import GRPO, POAD
from evolvent.rl.trainer import RLSpec
from evolvent.scale.local_backend import save_credit
from evolvent.view import page, read_run
from evolvent.view.escape import mark_hidden
from evolvent.view.reinforcement import summarize_training

# ---------------------------------------------------------------- which iterations


@pytest.mark.parametrize(
    ("count", "kept"),
    [(1, [1]), (3, [1, 3]), (20, [1, 10, 20]), (25, [1, 10, 20, 25]), (300, [1, *range(30, 301, 30)])],
)
def test_the_first_the_last_and_about_every_tenth(count, kept):
    assert [number for number in range(1, count + 1) if is_sampled_iteration(number, count)] == kept


@given(count=st.integers(1, 5000))
def test_few_are_kept_however_long_it_goes_on(count):
    kept = [number for number in range(1, count + 1) if is_sampled_iteration(number, count)]
    assert (kept[0], kept[-1]) == (1, count)
    assert len(kept) <= 12


# ---------------------------------------------------------------- which episodes


def test_one_won_and_one_lost_of_one_task_before_stronger_ones_of_two():
    won, group = [True, False, False, True], [0, 1, 0, 2]
    assert choose_episodes(won, group, [0.1, 9.0, 0.2, 9.0]) == (0, 2)
    assert choose_episodes(won, [0, 1, 2, 3], [0.1, 9.0, 0.2, 8.0]) == (3, 1), (
        "no task with both: the strongest of each"
    )
    assert choose_episodes([False] * 3, [0, 0, 1], [1.0, 3.0, 2.0]) == (1, 2)
    assert choose_episodes([True], [0], [0.0]) == (0,)
    assert choose_episodes([False, True, False, True], [0, 0, 0, 0], [1.0] * 4) == (1, 0), "among equals the first"


@given(rows=st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=7))
def test_no_better_pair_was_passed_over(rows):
    """Against all pairs: both outcomes first, then one task, then the sum of their strengths."""
    won, group, strength = ([row[column] for row in rows] for column in range(3))
    found = choose_episodes(won, group, strength)
    if len(rows) == 1:
        assert found == (0,)
        return

    def worth(a, b):
        both = won[a] != won[b]
        return both, both and group[a] == group[b], strength[a] + strength[b]

    assert worth(*found) == max(worth(a, b) for a in range(len(rows)) for b in range(a))
    assert won[found[0]] >= won[found[1]]


# ---------------------------------------------------------------- what is kept


def look(folder, world, preset=POAD, **config):
    setup = RLSpec(preset.name, quick(**config), preset.objective, critic_objective() if preset is POAD else None)
    with run_of(folder, world) as run, run.train_rl(small(world), setup) as practice:
        next(practice.iterations())
        return practice.score(practice.rollout(practice.next_starts(world.tasks("train", "seen")))), practice


def numbered(seen):
    """Credit that tells every part from every other."""
    at = np.arange(seen.batch.num_tokens, dtype=np.float64)
    return Advantages(at + 0.5, -at - 0.25)


def test_every_token_has_its_own_numbers(tmp_path):
    seen, practice = look(tmp_path, Echo())
    credit, word = numbered(seen), practice.policy.tokenizer.decode
    row = sample_credit(seen, credit, iteration=7, decode=word)
    assert row["iteration"] == 7
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    by_id = {one.id: number for number, one in enumerate(seen.episodes)}
    assert len(row["episodes"]) == 2
    for episode in row["episodes"]:
        number = by_id[episode["trajectory"]]
        trajectory = seen.episodes[number]
        parts = np.flatnonzero(seen.batch.episode_of_token == number)
        tokens = [token for turn in episode["turns"] for token in turn["tokens"]]
        assert [token["advantage"] for token in tokens] == pytest.approx((parts + 0.5).tolist(), rel=1e-4)
        assert [token["return"] for token in tokens] == pytest.approx((-parts - 0.25).tolist(), rel=1e-4)
        assert [token["logp"] for token in tokens] == pytest.approx(seen.old[parts].tolist(), rel=1e-4)
        assert [token["value"] for token in tokens] == pytest.approx(seen.values[parts].tolist(), rel=1e-4)
        sampled = [int(i) for step in trajectory.steps for g in step.generations for i in g.ids[g.sampled]]
        assert [token["text"] for token in tokens] == [word(i) for i in sampled]
        assert [turn["step"] for turn in episode["turns"]] == list(range(1, len(trajectory.steps) + 1))
        assert [turn["observation"] for turn in episode["turns"]] == [s.observation for s in trajectory.steps]
        assert [turn["reward"] for turn in episode["turns"]] == [s.reward for s in trajectory.steps]
        assert (episode["success"], episode["return"]) == (trajectory.success, trajectory.score.raw)
        assert episode["turns_left"] == 0


def test_what_is_no_number_or_not_learned_is_said_to_be(tmp_path):
    seen, practice = look(tmp_path, Echo(), GRPO)
    advantage = np.full(seen.batch.num_tokens, np.nan)
    kept = np.zeros(seen.batch.num_tokens, np.bool_)
    row = sample_credit(
        seen, Advantages(advantage, advantage, kept), iteration=1, decode=practice.policy.tokenizer.decode
    )
    tokens = [token for one in row["episodes"] for turn in one["turns"] for token in turn["tokens"]]
    assert {(token["advantage"], token["return"], token["learned"]) for token in tokens} == {(None, None, False)}
    assert all("value" not in token for token in tokens), "there is no critic"


def test_of_several_values_a_part_the_mean_is_kept(tmp_path):
    seen, practice = look(tmp_path, Echo(), GRPO)
    advantage = np.stack([np.zeros(seen.batch.num_tokens), np.full(seen.batch.num_tokens, 3.0)], 1)
    row = sample_credit(seen, Advantages(advantage, advantage), iteration=1, decode=practice.policy.tokenizer.decode)
    assert row["episodes"][0]["turns"][0]["tokens"][0]["advantage"] == 1.5


def test_of_a_long_episode_the_turns_with_most_credit_are_kept_in_time_order(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_TURNS", 2)
    seen, practice = look(tmp_path, Endless())
    advantage = np.zeros(seen.batch.num_tokens)
    size = np.array([-5.0, 1.0, 4.0])  # three turns an episode: the first and the last count most
    order = seen.batch.action - np.searchsorted(seen.batch.episode, seen.batch.episode_of_token)
    advantage[:] = size[order]
    row = sample_credit(seen, Advantages(advantage, advantage), iteration=1, decode=practice.policy.tokenizer.decode)
    for episode in row["episodes"]:
        assert [turn["step"] for turn in episode["turns"]] == [1, 3]
        assert episode["turns_left"] == 1
    monkeypatch.setattr(module, "_MAX_TOKENS", 1)
    (turn,) = sample_credit(seen, Advantages(advantage, advantage), iteration=1, decode=str)["episodes"][0]["turns"]
    assert (turn["step"], len(turn["tokens"])) == (1, 1)


# ---------------------------------------------------------------- where it is kept


def test_a_practice_keeps_its_first_and_last_iteration_once(tmp_path):
    world, config = Echo(), GRPOConfig(practice=quick(iterations=3, tasks_per_iteration=4, group_size=2))
    for _ in range(2):  # the second run finds all of it done
        with run_of(tmp_path, world) as run:
            grpo(small(world), world.tasks("train", "seen"), config=config, run=run)
    rows = json.loads((tmp_path / "credit.json").read_text())
    assert [row["iteration"] for row in rows] == [1, 3]
    (stage,) = {row["stage"] for row in rows}
    assert (tmp_path / "stages" / stage).is_dir()
    assert all(one["trajectory"].startswith(f"{stage}/{row['iteration']}/") for row in rows for one in row["episodes"])


def test_the_report_of_a_practice_reads_every_sign_and_its_credit(tmp_path):
    """Names of numbers and files are agreed on between two rooms that do not import each other."""
    world, config = Echo(), PoadConfig(practice=quick(iterations=3))
    with run_of(tmp_path, world) as run:
        poad(small(world), world.tasks("train", "seen"), config=config, run=run)
    data = read_run(tmp_path)
    found = summarize_training(data)
    assert (found.iterations, found.episodes, found.missing) == (3, 96, [])
    played = [one for one in run.store.trajectories() if f"{found.stage}/" in one.id]
    assert found.generated == sum(one.count_generated_tokens() for one in played)
    text = page(data)
    for row in data.credit:
        assert f"Iteration {row.iteration} " in text
        tokens = [one.text for episode in row.episodes for turn in episode.turns for one in turn.tokens]
        assert tokens and all(f"<bdi>{mark_hidden(one)}</bdi>" in text for one in tokens)


def test_an_iteration_that_is_done_again_replaces_itself_alone(tmp_path):
    path = tmp_path / "credit.json"
    for row in ({"stage": "a", "iteration": 1, "n": 0}, {"stage": "b", "iteration": 1}, {"stage": "a", "iteration": 2}):
        save_credit(path, row)
    save_credit(path, {"stage": "a", "iteration": 1, "n": 5})
    assert json.loads(path.read_text()) == [
        {"stage": "b", "iteration": 1},
        {"stage": "a", "iteration": 2},
        {"stage": "a", "iteration": 1, "n": 5},
    ]


@pytest.mark.parametrize("damage", ["", "[{", "7", '[3, {"iteration": 4}]'])
def test_a_damaged_file_does_not_stop_the_practice(tmp_path, damage):
    path = tmp_path / "credit.json"
    path.write_text(damage)
    save_credit(path, {"stage": "a", "iteration": 1, "number": float("nan")})
    rows = json.loads(path.read_text())
    assert rows[-1] == {"stage": "a", "iteration": 1, "number": "nan"}
    assert all(isinstance(row, dict) for row in rows)
