"""Policies of teams: cached acting is the teacher-forced pass, order and absence, distributions, files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch, ConfigError, CorruptRecord, Incomplete, ShapeMismatch
from evolvent.models.team_actions import ActionHead, TeamInputs, TeamModel, TeamShape
from evolvent.models.team_files import load_team, make_team, save_team

N, WIDE, B = 4, 5, 3
SPACES = {"discrete": {"sizes": (6,)}, "multi": {"sizes": (3, 2)}, "continuous": {"dim": 2}}
KINDS = ["mat", "mat_encoder", "mat_decoder", "mat_gru", "mat_dec", "mappo", "happo"]
SEQUENTIAL = ["mat", "mat_decoder", "mat_gru"]


def shape(kind: str = "mat", space: str = "discrete", **other) -> TeamShape:
    return TeamShape(
        **{
            "kind": kind,
            "agents": N,
            "observation": WIDE,
            "width": 16,
            "heads": 2,
            "blocks": 2,
            **SPACES[space],
            **other,
        }
    )


def lively(model: TeamModel, *, seed: int = 3) -> TeamModel:
    """No small output weights: a part that is left out would not be seen."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.data = 0.4 * torch.randn(weight.shape, generator=generator)
    return model.double().eval()


def team(kind: str = "mat", space: str = "discrete", **other) -> TeamModel:
    return lively(make_team(shape(kind, space, **other), seed=0))


def seen(*, masks: bool = False, dead: bool = False, agents: int = N, outputs: int = 6, seed: int = 1) -> TeamInputs:
    g = torch.Generator().manual_seed(seed)
    observation = torch.randn(B, agents, WIDE, generator=g, dtype=torch.float64)
    alive = available = None
    if dead:
        alive = torch.rand(B, agents, generator=g) < 0.6
        alive[:, 1] = True
    if masks:
        available = torch.rand(B, agents, outputs, generator=g) < 0.5
        available[..., 0] = True
        available[..., outputs - 2] = True
    return TeamInputs(observation, alive, available)


def uniform(agents: int = N, parts: int = 1, seed: int = 2) -> torch.Tensor:
    return torch.rand(B, agents, parts, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_published_count():
    """81,961 are published for 6 agents, 23 inputs and 1 number; what is never read there is not here."""
    model = make_team(TeamShape(agents=6, observation=23, dim=1), seed=0)
    unused_state = 2 * 37 + (37 + 1) * 64  # a norm and a layer for 37 inputs that are zeros
    unused_observation = 2 * 23 + (23 + 1) * 64  # the decoder's own encoder of observations, which it does not call
    assert sum(p.numel() for p in model.parameters()) == 77_873 == 81_961 - unused_state - unused_observation


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("dead", [False, True])
def test_acting_is_the_teacher_forced_pass(kind, space, dead):
    model = team(kind, space)
    given_ = seen(masks=space != "continuous", dead=dead, outputs=model.shape.outputs)
    acted = model.act(given_, uniform(parts=model.shape.parts))
    judged = model.evaluate(given_, acted.actions)
    live = torch.ones(B, N, dtype=torch.bool) if given_.alive is None else given_.alive
    assert acted.actions.shape == (B, N, model.shape.parts)
    assert torch.allclose(acted.logp[live], judged.logp[live], atol=1e-10)
    assert torch.allclose(acted.values[live], judged.values[live], atol=1e-10)
    assert torch.isfinite(judged.logp).all() and torch.isfinite(judged.entropy).all()


@pytest.mark.parametrize("agents", [2, 7])
def test_another_number_of_agents(agents):
    for kind in KINDS:
        model = team(kind)
        given_ = seen(agents=agents)
        acted = model.act(given_, uniform(agents))
        assert torch.allclose(acted.logp, model.evaluate(given_, acted.actions).logp, atol=1e-10)


@pytest.mark.parametrize("kind", SEQUENTIAL)
@settings(max_examples=8, deadline=None)
@given(agent=st.integers(0, N - 1))
def test_an_agent_changes_only_those_after_it(kind, agent):
    model, given_ = team(kind), seen()
    actions = model.act(given_, uniform()).actions
    other = actions.clone()
    other[:, agent] = (other[:, agent] + 1) % 6
    before, after = model.evaluate(given_, actions), model.evaluate(given_, other)
    assert torch.equal(before.logp[:, :agent], after.logp[:, :agent])
    assert torch.equal(before.entropy[:, : agent + 1], after.entropy[:, : agent + 1])
    for later in range(agent + 1, N):
        assert not torch.allclose(before.logp[:, later], after.logp[:, later], atol=1e-9)
    assert torch.equal(before.values, after.values)


@pytest.mark.parametrize("kind", ["mat_encoder", "mat_dec", "mappo", "happo"])
def test_who_decides_at_once_looks_at_nobodys_action(kind):
    model, given_ = team(kind), seen()
    actions = model.act(given_, uniform()).actions
    other = (actions + torch.tensor([0, 1, 0, 0])[None, :, None]) % 6
    same = [0, 2, 3]
    assert torch.equal(model.evaluate(given_, actions).logp[:, same], model.evaluate(given_, other).logp[:, same])


def test_values_and_representations_follow_a_permutation():
    order = torch.tensor([2, 0, 3, 1])
    for kind in ("mat", "mat_encoder", "mat_dec", "mappo"):
        model, given_ = team(kind, share=kind == "mat_dec"), seen()
        moved = TeamInputs(given_.observation[:, order])
        assert torch.allclose(model.values(moved), model.values(given_)[:, order], atol=1e-10)
    model = team("mat_encoder")
    one = model.evaluate(given_, torch.zeros(B, N, 1, dtype=torch.long)).logp
    assert torch.allclose(model.evaluate(moved, torch.zeros(B, N, 1, dtype=torch.long)).logp, one[:, order], atol=1e-10)


def test_decoder_alone_does_not_look_at_others_observations():
    given_, actions = seen(), torch.zeros(B, N, 1, dtype=torch.long)
    other = given_.observation.clone()
    other[:, 3] = torch.randn(B, WIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    for kind, same in (("mat_decoder", True), ("mat", False)):
        model = team(kind)
        one, two = (model.evaluate(TeamInputs(x), actions).logp[:, 0] for x in (given_.observation, other))
        assert torch.allclose(one, two, atol=1e-9) is same


@pytest.mark.parametrize("kind", ["mat", "mat_encoder", "mat_dec", "mappo"])
def test_the_dead_are_as_if_they_were_not_there(kind):
    model, given_ = team(kind, share=True), seen(dead=True)
    actions = model.act(given_, uniform()).actions
    noise = torch.where(given_.alive[..., None], given_.observation, 7.0)
    nonsense = torch.where(given_.alive[..., None], actions, 5)
    one, two = model.evaluate(given_, actions), model.evaluate(given_._replace(observation=noise), nonsense)
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a[given_.alive], b[given_.alive])


def test_a_last_agent_that_is_dead_is_a_smaller_team():
    model, given_ = team(), seen()
    alive = torch.ones(B, N, dtype=torch.bool)
    alive[:, -1] = False
    actions = model.act(given_, uniform()).actions
    small = TeamInputs(given_.observation[:, :-1])
    for a, b in zip(
        model.evaluate(given_._replace(alive=alive), actions), model.evaluate(small, actions[:, :-1]), strict=True
    ):
        assert torch.allclose(a[:, :-1], b, atol=1e-10)


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_an_action_is_told_past_the_dead(kind):
    """Agent 2 is dead: agent 3 knows what agent 1 did, and not what stands at agent 2."""
    model, given_ = team(kind), seen()
    alive = torch.tensor([True, True, False, True]).expand(B, N)
    actions = model.act(given_._replace(alive=alive), uniform()).actions
    for agent, told in ((1, True), (2, False)):
        other = actions.clone()
        other[:, agent] = (other[:, agent] + 1) % 6
        one, two = (model.evaluate(given_._replace(alive=alive), x).logp[:, 3] for x in (actions, other))
        assert torch.allclose(one, two, atol=1e-9) is not told


def test_probabilities_of_all_joint_actions_sum_to_one():
    for kind in ("mat", "mat_gru", "happo"):
        model = team(kind, "multi", agents=2)
        given_ = seen(agents=2, outputs=5)
        every = torch.tensor(list(product(range(3), range(2), range(3), range(2)))).view(-1, 2, 2)
        wide = TeamInputs(given_.observation[:1].expand(len(every), -1, -1))
        assert math.isclose(model.evaluate(wide, every).logp.sum(1).exp().sum().item(), 1.0, abs_tol=1e-10)


def test_draws_follow_the_probabilities():
    head = ActionHead(shape(sizes=(3, 2)))
    outputs = torch.tensor([0.1, 1.2, -0.4, 0.3, -0.3], dtype=torch.float64)
    available = torch.tensor([True, False, True, True, True])
    grid = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    drawn, logp = head.sample(
        outputs.expand(4000, 5), torch.stack([grid, grid.flip(0)], 1), available.expand(4000, 5), greedy=False
    )
    expected = torch.softmax(outputs[[0, 2]], 0)
    share = torch.stack([(drawn[:, 0] == 0).double().mean(), (drawn[:, 0] == 2).double().mean()])
    assert torch.allclose(share, expected, atol=5e-4) and not (drawn[:, 0] == 1).any()
    assert torch.allclose(logp, head.evaluate(outputs.expand(4000, 5), drawn, available.expand(4000, 5))[0])
    greedy, _ = head.sample(outputs[None], torch.rand(1, 2), available[None], greedy=True)
    assert greedy.tolist() == [[0, 0]]


def test_a_gaussian_by_hand():
    head = ActionHead(shape(space="continuous")).double()
    std = 0.5 / (1.0 + math.exp(-1.0))
    assert torch.allclose(head.std, torch.full((2,), std, dtype=torch.float64))
    mean, action = torch.tensor([0.2, -1.0], dtype=torch.float64), torch.tensor([0.5, -0.8], dtype=torch.float64)
    logp, entropy = head.evaluate(mean, action, None)
    normal = torch.distributions.Normal(mean, torch.full((2,), std, dtype=torch.float64))
    assert torch.allclose(logp, normal.log_prob(action).sum()) and torch.allclose(entropy, normal.entropy().sum())
    drawn, _ = head.sample(mean.expand(3, 2), torch.tensor([[0.5, 0.975]] * 3, dtype=torch.float64), None, greedy=False)
    assert torch.allclose(drawn[0], torch.tensor([0.2, -1.0 + 1.959963984540054 * std], dtype=torch.float64))


def test_entropy_with_masks_by_hand():
    head = ActionHead(shape())
    available = torch.tensor([True, False, True, False, False, True])
    logp, entropy = head.evaluate(torch.zeros(6), torch.tensor([2]), available)
    assert math.isclose(entropy.item(), math.log(3), abs_tol=1e-6) and math.isclose(
        logp.item(), -math.log(3), abs_tol=1e-6
    )
    outputs = torch.zeros(6, requires_grad=True)
    sum(head.evaluate(outputs, torch.tensor([2]), available)).backward()
    assert torch.isfinite(outputs.grad).all()


def test_values_of_prefixes_know_the_actions_before():
    model, given_ = team(prefix_values=True), seen()
    actions = model.act(given_, uniform()).actions
    other = (actions + torch.tensor([0, 1, 0, 0])[None, :, None]) % 6
    one, two = model.evaluate(given_, actions).values, model.evaluate(given_, other).values
    assert torch.equal(one[:, :2], two[:, :2]) and not torch.allclose(one[:, 2:], two[:, 2:], atol=1e-9)
    assert torch.allclose(model.values(given_), one[:, :1].expand(B, N), atol=1e-10)
    assert torch.allclose(model.act(given_, uniform()).values, one, atol=1e-10)


def test_the_empty_prefix_is_read_at_the_first_who_lives():
    """Nobody trains what is read at the place of a dead agent, and there it does not even know what the others see."""
    model, given_ = team(prefix_values=True), seen()
    alive = torch.ones(B, N, dtype=torch.bool)
    alive[0, 0] = alive[1, :2] = alive[1, 3] = alive[2, 2] = False
    given_ = given_._replace(alive=alive, observation=given_.observation * alive[..., None])
    acted = model.act(given_, uniform()).values
    assert torch.allclose(model.values(given_), acted[range(B), [1, 2, 0]][:, None].expand(B, N), atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("agents", [N, N - 1, 2 * N])
def test_files(tmp_path, kind, agents):
    model = team(kind, "continuous").float()
    save_team(model, tmp_path)
    again = load_team(tmp_path, expected=replace(model.shape, agents=agents))
    assert again.shape.agents == agents and not again.training
    given_ = TeamInputs(seen(agents=agents).observation.float())
    for a, b in zip(model.act(given_, uniform(agents, 2)), again.act(given_, uniform(agents, 2)), strict=True):
        assert torch.equal(a, b)
    assert load_team(tmp_path).shape == model.shape


def test_files_that_do_not_fit(tmp_path):
    with pytest.raises(Incomplete):
        load_team(tmp_path)
    save_team(make_team(shape(), seed=0), tmp_path)
    with pytest.raises(ShapeMismatch, match=r"observation: saved with 5, expected 7.*sizes"):
        load_team(tmp_path, expected=shape(observation=7, sizes=(4,)))
    row = json.loads((tmp_path / "team.json").read_text())
    (tmp_path / "team.json").write_text(json.dumps({**row, "width": 8}))
    with pytest.raises(ShapeMismatch, match="have the wrong shape"):
        load_team(tmp_path)
    (tmp_path / "team.json").write_text(json.dumps({**row, "kind": "mat", "heads": "x"}))
    with pytest.raises(Incomplete):
        load_team(tmp_path)
    (tmp_path / "team.json").write_text(json.dumps(row))
    (tmp_path / "team.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CorruptRecord):
        load_team(tmp_path)
    (tmp_path / "team.safetensors").unlink()
    with pytest.raises(Incomplete, match="missing"):
        load_team(tmp_path)


def test_shapes_and_inputs_that_are_none():
    with pytest.raises(ConfigError) as error:
        TeamShape(agents=0, observation=0, sizes=(3,), dim=1)
    assert len(error.value.problems) == 3
    with pytest.raises(ConfigError):
        shape("mappo", prefix_values=True)
    with pytest.raises(ConfigError, match="mapo"):
        shape("mapo")
    with pytest.raises(ConfigError, match="even"):
        shape("mat_gru", width=5)
    with pytest.raises(BatchMismatch, match="observations"):
        team().values(TeamInputs(torch.zeros(1, 2, 9)))
    with pytest.raises(BatchMismatch, match="masks"):
        team().values(TeamInputs(torch.zeros(1, 2, WIDE), None, torch.ones(1, 2, 4, dtype=torch.bool)))


def test_one_seed_is_one_network():
    state = torch.get_rng_state()
    one, two, other = (make_team(shape(), seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.get_rng_state(), state)
