"""The particle filter: likelihoods worked by hand, resampling, moves that leave a posterior alone, bad input."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.belief import grid
from evolvent.belief.cloud import Cloud, log_prior, make_cloud, weighted_moments
from evolvent.belief.likelihood import joint_log_likelihood, log_likelihood, past_log_likelihood
from evolvent.belief.moves import factor_covariance, rejuvenate
from evolvent.belief.particles import (
    BeliefCollapsed,
    bandwidth,
    compute_features,
    draw_prior,
    replace_rows,
    resample_systematic,
    summarize_cloud,
    update,
)
from evolvent.errors import BatchMismatch, ConfigError, MissingExtra, WorldError
from evolvent.worlds.plume.model import Sensor, Terms, compute_terms, concentration, sense
from evolvent.worlds.plume.prior import Marginal, PlumePrior


def uniform(low, high):
    return Marginal("uniform", low, high)


AREA = ((0.0, 25.0), (0.0, 25.0))
WIDE = PlumePrior(
    (
        uniform(0, 25),
        uniform(0, 25),
        uniform(0, 5),
        Marginal("gamma", 2, 5),
        Marginal("normal", 2, 0.5),
        Marginal("normal", math.pi / 4, 0.17),
        uniform(1, 3),
        uniform(5, 15),
    ),
    AREA,
)
TRUTH = np.array([15.5, 16.6, 0, 5, 2, math.pi / 4, 2, 10])
FLAT = WIDE.fix(z=0.0, rate=5.0, wind_speed=2.0, wind_from=math.pi / 4, diffusivity=2.0, lifetime=10.0)
SENSOR = Sensor()


def walk(steps, b=1, seed=0, sensor=SENSOR):
    """Places [T, B, 3] on the way to the source and readings [T, B] there."""
    rng = np.random.default_rng(seed)
    place, places, readings = np.zeros((b, 3)), [], []
    for t in range(steps):
        place = place.copy()
        place[:, t % 2] = np.minimum(place[:, t % 2] + 1.5, 15)
        places.append(place)
        readings.append(sense(concentration(place, TRUTH), sensor, rng))
    return places, readings


def filtered(cloud, steps, *, seed=0, sensor=SENSOR, **options):
    for place, z in zip(*walk(steps, cloud.size[0], seed, sensor), strict=True):
        cloud = update(cloud, place, z, sensor=sensor, **options)
    return cloud


# ---- likelihood -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "clean", "expected"),
    [
        (0.0, 0.0, 0.888941322248),
        (0.0, 5e-4, 0.65),
        (0.0, 0.01, 0.3),
        (0.02, 0.01, 11.4414032893),
    ],
)
def test_published_likelihoods(z, clean, expected):
    found = log_likelihood(torch.tensor(clean, dtype=torch.float64), torch.tensor(z, dtype=torch.float64), SENSOR)
    assert float(found.exp()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("clean", [3e-4, 2e-3, 0.05])
def test_the_consistent_likelihood_integrates_to_one(clean):
    """And the published one does not: it has no Pd where something was detected."""
    step = 1e-6
    z = SENSOR.threshold + step * (torch.arange(500_000, dtype=torch.float64) + 0.5)
    for kind in ("consistent", "published"):
        sensor = replace(SENSOR, likelihood=kind)
        there = torch.full_like(z, clean)
        total = float(log_likelihood(there, z, sensor).exp().sum() * step)
        total += float(log_likelihood(there[:1], torch.zeros(1).double(), sensor).exp())
        assert (abs(total - 1) < 2e-5) == (kind == "consistent")


def test_consistent_readings_and_likelihood_are_one_model():
    """The share of non-detections is their likelihood; so is the share of readings in an interval."""
    sensor = replace(SENSOR, likelihood="consistent")
    z = sense(np.full(400_000, 2e-3), sensor, np.random.default_rng(0))
    chance = log_likelihood(torch.tensor(2e-3).double(), torch.tensor(0.0).double(), sensor).exp()
    assert (z == 0).mean() == pytest.approx(float(chance), abs=3e-3)
    grid_z = torch.linspace(1e-3, 3e-3, 4001, dtype=torch.float64)
    mass = log_likelihood(torch.full_like(grid_z, 2e-3), grid_z, sensor).exp().mean() * 2e-3
    assert ((z > 1e-3) & (z < 3e-3)).mean() == pytest.approx(float(mass), abs=3e-3)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6), kind=st.sampled_from(["published", "consistent"]), pd=st.sampled_from([0.3, 0.7, 1.0])
)
def test_readings_of_one_sort_together_are_the_sum_of_all(seed, kind, pd):
    rng = np.random.default_rng(seed)
    sensor = Sensor(detect=pd, likelihood=kind)
    theta = torch.as_tensor(np.array([WIDE.draw(rng) for _ in range(7)]).T)
    known = compute_terms(*theta, xp=torch)
    past = torch.as_tensor(np.concatenate([rng.uniform(0, 25, (40, 3)), rng.uniform(0, 1e-2, (40, 1))], -1))
    past[::2, 3] = 0.0
    hit = past[:, 3] > sensor.threshold
    apart = sum(
        joint_log_likelihood(known, past[hit == sort], sensor=sensor, is_detection=sort) for sort in (True, False)
    )
    batched = Terms(*(term.unsqueeze(0) for term in known))
    whole = past_log_likelihood(batched, past.unsqueeze(0), torch.tensor([40]), sensor=sensor)[0]
    part = past_log_likelihood(batched, past.unsqueeze(0), torch.tensor([3]), sensor=sensor)[0]
    plain = log_likelihood(torch.stack([concentration(at[:3], theta.T, xp=torch) for at in past]), past[:, 3:], sensor)
    torch.testing.assert_close(whole, plain.sum(0))
    torch.testing.assert_close(apart, whole)
    torch.testing.assert_close(part, plain[:3].sum(0))


# ---- resampling and moves -------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), sharp=st.floats(0.1, 30), count=st.integers(1, 60))
def test_copies_are_the_floor_or_the_ceiling(seed, n, sharp, count):
    """Of every index, the first and the last among them."""
    rng = np.random.default_rng(seed)
    w = torch.softmax(torch.as_tensor(sharp * rng.standard_normal((3, n))), -1)
    drawn = resample_systematic(torch.log(w), torch.as_tensor(rng.random(3)), count)
    assert drawn.shape == (3, count)
    for row in range(3):
        copies = torch.bincount(drawn[row], minlength=n)
        assert (copies >= torch.floor(count * w[row] - 1e-9)).all()
        assert (copies <= torch.ceil(count * w[row] + 1e-9)).all()


def test_resampling_is_unbiased():
    w = torch.tensor([[0.05, 0.62, 0.33]]).double()
    u = (torch.arange(1000).double() + 0.5) / 1000
    drawn = resample_systematic(torch.log(w).expand(1000, -1), u, 5)
    share = torch.stack([(drawn == i).sum() for i in range(3)]) / drawn.numel()
    torch.testing.assert_close(share.double(), w[0], atol=2e-3, rtol=0)


def test_bandwidths():
    assert bandwidth(1000) == pytest.approx(0.521000731, rel=1e-8)
    assert bandwidth(20000) == pytest.approx(0.405900107, rel=1e-8)


def test_factors_of_covariances_that_have_none():
    """Few distinct particles: rank one, and eigenvalues a rounding below 0; known unknowns do not move at all."""
    one = torch.randn(8, 1, generator=torch.Generator().manual_seed(0)).double()
    covariance = (one @ one.T).unsqueeze(0)
    covariance[:, 2] = covariance[:, :, 2] = 0.0
    root = factor_covariance(covariance)
    assert torch.isfinite(root).all() and (root[:, 2] == 0).all()
    back = root @ root.transpose(1, 2)
    for low, high in ((0, 3), (3, 4), (4, 6), (6, 8)):
        block = slice(low, high)
        torch.testing.assert_close(back[:, block, block], covariance[:, block, block])
        back[:, block, block] = 0.0
    assert (back == 0).all(), "blocks are independent"


def posterior(n, steps=14):
    """n even draws from the exact posterior of the flat problem, and the exact moments."""
    exact = grid.make_grid([FLAT], {"x": 125, "y": 125})
    for place, z in zip(*walk(steps), strict=True):
        exact = grid.update(exact, place, z, sensor=SENSOR)
    picked = torch.multinomial(exact.log_w.exp()[0], n, replacement=True, generator=torch.Generator().manual_seed(1))
    theta = exact.theta[:, :, picked].float()
    theta[:2] += 0.2 * (torch.rand(2, 1, n, generator=torch.Generator().manual_seed(2)) - 0.5)
    cloud = make_cloud([FLAT], theta, torch.full((1, n), -math.log(n)), seeds=[3])
    past = torch.as_tensor(np.array([[*place[0], z[0]] for place, z in zip(*walk(steps), strict=True)])).float()
    like = past_log_likelihood(cloud.terms, past.unsqueeze(0), torch.tensor([steps]), sensor=SENSOR)
    cloud = replace(cloud, past=past.unsqueeze(0), counts=np.array([steps]), base=like + math.log(n))
    return cloud, weighted_moments(exact.log_w, exact.theta)[1:]


def moments_after(moves, *, exact):
    cloud, (mean, covariance) = posterior(4000)
    for i in range(moves):
        cloud = replace(cloud, seeds=np.array([i]), exact=True)
        cloud = rejuvenate(cloud, np.array([0]), sensor=SENSOR, exact=exact, sweeps=1)
    _, found, spread = weighted_moments(cloud.log_w.double(), cloud.theta.double())
    scale = torch.sqrt(torch.diagonal(covariance[0])[:2])
    return (found - mean)[0, :2] / scale, (spread - covariance)[0, :2, :2] / scale / scale[:, None], cloud


def test_exact_moves_leave_a_posterior_where_it_is():
    """Fifty moves of 4,000 particles: means within 0.1 and covariances within 0.15 of the posterior's own scale."""
    shift, change, cloud = moments_after(50, exact=True)
    assert shift.abs().max() < 0.1
    assert change.abs().max() < 0.15
    fresh = past_log_likelihood(cloud.terms, cloud.past, torch.tensor([14]), sensor=SENSOR)
    torch.testing.assert_close(cloud.log_like, fresh, atol=2e-3, rtol=1e-4)
    assert (cloud.theta[2:] == posterior(1)[0].theta[2:]).all(), "what is known stays"


def test_published_moves_do_not():
    shift, change, cloud = moments_after(50, exact=False)
    assert max(shift.abs().max(), change.abs().max()) > 0.3
    assert not cloud.exact


def test_moves_are_accepted_and_refused_everywhere():
    cloud, _ = posterior(4000)
    before = cloud.theta[0, 0].clone()
    order = torch.argsort(before)
    cloud = rejuvenate(cloud, np.array([0]), sensor=SENSOR, exact=True, sweeps=1)
    stayed = torch.isin(cloud.theta[0, 0], before)
    for part in stayed.reshape(8, -1):
        assert 0.05 < part.float().mean() < 0.95
    assert len(order) == 4000


def test_particles_stay_in_the_support():
    cloud = filtered(draw_prior([WIDE] * 2, 300, seeds=[1, 2]), 25)
    assert torch.isfinite(log_prior(cloud.families, cloud.parameters, cloud.theta)).all()
    published = filtered(draw_prior([WIDE] * 2, 300, seeds=[1, 2]), 25, move="published")
    assert (published.theta[3] >= 0).all() and (published.theta[6:] > 0).all()


# ---- the filter -----------------------------------------------------------------------------------------------------


def test_the_filter_is_the_grid():
    """Twenty seeds of one problem with two unknowns: the mean of their estimates within the Monte-Carlo error."""
    steps, seeds = 14, 20
    exact = grid.make_grid([FLAT], {"x": 150, "y": 150})
    cloud = draw_prior([FLAT] * seeds, 1500, seeds=range(seeds))
    for place, z in zip(*walk(steps), strict=True):
        exact = grid.update(exact, place, z, sensor=SENSOR)
        cloud = update(cloud, np.repeat(place, seeds, 0), np.repeat(z, seeds), sensor=SENSOR)
        told, true = summarize_cloud(cloud), summarize_cloud(exact)
        for found, expected in (
            (told.mean[:, :2], true.mean[0, :2]),
            (told.covariance.reshape(seeds, 4), true.covariance[0].reshape(4)),
        ):
            error = found.std(0, ddof=1) / math.sqrt(seeds)
            assert (np.abs(found.mean(0) - expected) < 4.5 * error + 0.004 * np.abs(expected) + 0.01).all()
    assert (told.ess < 1500).any() and told.spread.mean() < 3.5
    assert (cloud.theta[2:] == cloud.theta[2:, :1, :1]).all(), "what is known stays exactly"


def test_evidence_is_that_of_the_grid():
    exact, cloud = grid.make_grid([FLAT], {"x": 150, "y": 150}), draw_prior([FLAT], 20000, seeds=[0])
    for place, z in zip(*walk(6), strict=True):
        exact, cloud = grid.update(exact, place, z, sensor=SENSOR), update(cloud, place, z, sensor=SENSOR)
        assert float(cloud.evidence[0]) == pytest.approx(float(exact.evidence[0]), abs=0.05)


def test_without_moves_weights_are_those_of_the_grids_formula():
    """The same hypotheses through both updates: two implementations of the likelihood, float32 against float64."""
    for kind in ("published", "consistent"):
        sensor = replace(SENSOR, likelihood=kind)
        cloud = draw_prior([WIDE], 400, seeds=[0])
        double = make_cloud([WIDE], cloud.theta.double(), cloud.log_w.double(), seeds=[0])
        for place, z in zip(*walk(8, sensor=sensor), strict=True):
            cloud = update(cloud, place, z, sensor=sensor, move="none")
            double = grid.update(double, place, z, sensor=sensor)
        weights = double.log_w.exp().float()
        torch.testing.assert_close(cloud.log_w.exp(), weights, atol=1e-4, rtol=1e-2)
        torch.testing.assert_close(cloud.ess, double.ess.float(), rtol=1e-2, atol=0.1)


def test_beliefs_together_are_beliefs_alone():
    options = {"sweeps": 2}
    priors = [WIDE, WIDE, PlumePrior((uniform(3, 20), *WIDE.marginals[1:]), AREA)]
    together = draw_prior(priors, 200, seeds=[5, 6, 7])
    places, readings = walk(20, 3)
    alone = [draw_prior([one], 200, seeds=[seed]) for one, seed in zip(priors, (5, 6, 7), strict=True)]
    for place, z in zip(places, readings, strict=True):
        together = update(together, place, z, sensor=SENSOR, **options)
        alone = [update(one, place[i : i + 1], z[i : i + 1], sensor=SENSOR, **options) for i, one in enumerate(alone)]
    for i, one in enumerate(alone):
        torch.testing.assert_close(together.theta[:, i], one.theta[:, 0])
        torch.testing.assert_close(together.log_w[i], one.log_w[0])


def test_moments_do_not_depend_on_how_many_beliefs_there_are():
    generator = torch.Generator().manual_seed(0)
    log_w = torch.log_softmax(3 * torch.randn(5, 300, generator=generator), -1)
    theta = 20 * torch.rand(8, 5, 300, generator=generator)
    together = weighted_moments(log_w, theta)
    for row in range(5):
        alone = weighted_moments(log_w[row : row + 1], theta[:, row : row + 1])
        assert all(torch.equal(one[row], own[0]) for one, own in zip(together, alone, strict=True)), "to the last bit"


@pytest.mark.parametrize("n", [1, 5, 50])
def test_a_sensor_that_never_misses_leaves_weights(n):
    sensor, rng = Sensor(detect=1.0), np.random.default_rng(0)
    cloud = draw_prior([WIDE], n, seeds=[3])
    for t in range(40):
        place = np.array([[*rng.uniform(0, 25, 2), 0.0]])
        cloud = update(cloud, place, np.array([0.0 if t % 3 else 0.05]), sensor=sensor, collapse="renew")
        assert torch.isfinite(cloud.log_w).any() and not torch.isnan(cloud.log_w).any()
        assert np.isfinite(summarize_cloud(cloud).entropy).all()
    assert cloud.collapses[0] > 0, "or nothing was asked"


def test_the_order_of_particles_means_nothing():
    cloud = draw_prior([WIDE], 500, seeds=[0])
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    other = make_cloud([WIDE], cloud.theta[:, :, order], cloud.log_w[:, order], seeds=[0])
    for place, z in zip(*walk(10), strict=True):
        cloud, other = (update(each, place, z, sensor=SENSOR, move="none") for each in (cloud, other))
    one, two = summarize_cloud(cloud), summarize_cloud(other)
    for name in ("mean", "std", "covariance", "ess", "entropy"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-4, atol=1e-4)


def test_updates_are_pure_and_reuse_changes_nothing_but_the_cost():
    cloud = filtered(draw_prior([WIDE], 200, seeds=[0]), 3)
    kept = {name: getattr(cloud, name).clone() for name in ("theta", "derived", "log_w", "base", "past", "gain")}
    counts = cloud.counts.copy()
    place, z = np.array([[14.0, 15.0, 0.0]]), np.array([0.05])
    after = update(cloud, place, z, sensor=SENSOR)
    assert after.ess[0] < 100 and (after.theta != cloud.theta).any(), "a reading that has them moved"
    assert all((getattr(cloud, name) == value).all() for name, value in kept.items())
    assert (cloud.counts == counts).all()
    reused = update(cloud, place, z, sensor=SENSOR, reuse=True)
    assert (reused.theta == after.theta).all() and (reused.base == after.base).all()


def test_global_generators_are_left_alone():
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    filtered(draw_prior([WIDE], 100, seeds=[0]), 12)
    assert (torch.get_rng_state() == torch_before).all()
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)


def test_memory_of_moments_grows_with_particles_only():
    """A dense diagonal of 300,000 weights would be 720 GB."""
    n = 300_000
    _, mean, covariance = weighted_moments(torch.full((1, n), -math.log(n)), torch.rand(8, 1, n))
    assert mean.shape == (1, 8) and covariance.shape == (1, 8, 8)
    assert torch.allclose(torch.diagonal(covariance[0]), torch.tensor(1 / 12), atol=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["published", "consistent"])
def test_fused_arithmetic_is_the_same(kind):
    """The same weights and, with the same random numbers, the same moves but for a few that were nearly even."""
    pytest.importorskip("numba")
    sensor = replace(SENSOR, likelihood=kind)
    cloud, fused = draw_prior([WIDE] * 3, 300, seeds=range(3)), draw_prior([WIDE] * 3, 300, seeds=range(3), fused=True)
    moved = 0
    for place, z in zip(*walk(14, 3, sensor=sensor), strict=True):
        fused = replace(
            fused,
            theta=cloud.theta.clone(),
            derived=cloud.derived.clone(),
            log_w=cloud.log_w.clone(),
            base=cloud.base.clone(),
            gain=cloud.gain.clone(),
        )
        cloud, fused = update(cloud, place, z, sensor=sensor), update(fused, place, z, sensor=sensor)
        torch.testing.assert_close(fused.evidence, cloud.evidence, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(fused.ess, cloud.ess, rtol=1e-3, atol=0.05)
        torch.testing.assert_close(fused.log_w.exp(), cloud.log_w.exp(), rtol=1e-3, atol=1e-6)
        same = (torch.abs(fused.theta - cloud.theta) < 1e-3).all(0)
        assert same.float().mean() > 0.98
        torch.testing.assert_close(fused.log_like[same], cloud.log_like[same], rtol=1e-3, atol=1e-2)
        moved += int((cloud.ess < 150).sum())
    assert moved > 3


def test_fused_arithmetic_without_numba_or_on_a_gpu(monkeypatch):
    with pytest.raises(ConfigError, match="fused arithmetic runs only on the CPU"):
        draw_prior([WIDE], 5, seeds=[0], fused=True, device="cuda")
    monkeypatch.setattr("evolvent.belief.cloud.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="belief"):
        draw_prior([WIDE], 5, seeds=[0], fused=True)


# ---- bad input ------------------------------------------------------------------------------------------------------


def started(b=2) -> Cloud:
    return draw_prior([WIDE] * b, 50, seeds=range(b))


@pytest.mark.parametrize("z", [math.nan, -1e-3, math.inf])
def test_readings_that_no_sensor_gives(z):
    cloud = started()
    with pytest.raises(WorldError, match="belief 1"):
        update(cloud, np.zeros((2, 3)), np.array([0.0, z]), sensor=SENSOR)
    assert cloud.counts.tolist() == [0, 0]


@pytest.mark.parametrize("place", [[-1, 0, 0], [0, 25.1, 0], [math.nan, 0, 0], [0, 0, math.inf]])
def test_places_outside(place):
    with pytest.raises(WorldError, match="outside the area"):
        update(started(), np.array([[0, 0, 0], place]), np.zeros(2), sensor=SENSOR)


def test_shapes_and_names_are_checked():
    cloud = started()
    with pytest.raises(BatchMismatch):
        update(cloud, np.zeros((3, 3)), np.zeros(3), sensor=SENSOR)
    with pytest.raises(ConfigError):
        update(cloud, np.zeros((2, 3)), np.zeros(2), sensor=SENSOR, move="sideways")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sweeps"):
        update(cloud, np.zeros((2, 3)), np.zeros(2), sensor=SENSOR, sweeps=0)
    for wrong in (
        lambda: draw_prior([WIDE], 0, seeds=[0]),
        lambda: draw_prior([], 5, seeds=[]),
        lambda: draw_prior([WIDE, FLAT.fix(x=1)], 5, seeds=[0, 1]),
    ):
        with pytest.raises(ConfigError):
            wrong()
    with pytest.raises(BatchMismatch):
        draw_prior([WIDE], 5, seeds=[0, 1])


def test_exact_moves_do_not_follow_published_ones():
    cloud = filtered(draw_prior([WIDE], 100, seeds=[0]), 15, move="published")
    assert not cloud.exact
    with pytest.raises(ConfigError, match="exact moves cannot follow published moves"):
        update(cloud, np.zeros((1, 3)), np.zeros(1), sensor=SENSOR)


def test_an_impossible_reading_is_told_and_nothing_has_changed():
    sure = Sensor(detect=1.0, sigma=1e-9, sigma_fraction=1e-6)
    cloud = started()
    with pytest.raises(BeliefCollapsed) as caught:
        update(cloud, np.zeros((2, 3)), np.array([0.0, 123.0]), sensor=sure)
    assert caught.value.rows.tolist() == [1] and caught.value.last is cloud
    assert cloud.counts.tolist() == [0, 0]


def test_collapsed_beliefs_begin_anew_by_rule():
    """A cloud that is sure of the wrong place meets a reading that it thinks impossible; the other one goes on."""
    sensor = Sensor(sigma_fraction=0.05)
    cloud = started()
    cloud.theta[:2, 1] = torch.tensor([24.9, 0.1]).unsqueeze(-1)
    cloud.derived.copy_(torch.stack(list(compute_terms(*cloud.theta, xp=torch)[3:])))
    place, z = np.array([[14.0, 15.0, 0.0]] * 2), np.array([0.0, 0.2])
    after = update(cloud, place, z, sensor=sensor, collapse="renew")
    assert after.collapses.tolist() == [0, 1]
    assert after.counts.tolist()[0] == 1
    assert summarize_cloud(after).mean[1, 0] < 22 and np.isfinite(summarize_cloud(after).spread).all()
    torch.testing.assert_close(after.log_w.exp().sum(-1), torch.ones(2))


def test_a_reading_that_nothing_allows_is_forgotten():
    sure = Sensor(detect=1.0, sigma=1e-9, sigma_fraction=1e-6)
    after = update(started(), np.zeros((2, 3)), np.array([0.0, 123.0]), sensor=sure, collapse="renew")
    assert after.counts.tolist() == [1, 0] and after.collapses.tolist() == [0, 1]
    torch.testing.assert_close(after.log_w[1], torch.full((50,), -math.log(50)))


def test_one_particle_never_learns():
    cloud = draw_prior([WIDE], 1, seeds=[0])
    before = cloud.theta.clone()
    cloud = filtered(cloud, 5)
    assert (cloud.theta == before).all() and summarize_cloud(cloud).spread[0] == 0 and cloud.ess[0] == 1


def test_nothing_but_silence():
    """A hundred non-detections: weights stay finite and the belief leaves where the sensor was."""
    cloud = draw_prior([WIDE], 300, seeds=[0])
    for t in range(100):
        cloud = update(cloud, np.array([[12.0, (t % 25) + 0.5, 0.0]]), np.zeros(1), sensor=SENSOR, reuse=True)
    told = summarize_cloud(cloud)
    assert np.isfinite(told.mean).all() and told.ess[0] > 30
    assert told.mean[0, 0] < 12, "the plume of a source in the west passes by in the south-west"


def test_degenerate_weights_are_moved_without_breaking():
    cloud = started(1)
    cloud.log_w[0, 1:], cloud.log_w[0, 0] = -math.inf, 0.0
    after = update(cloud, np.zeros((1, 3)), np.zeros(1), sensor=SENSOR)
    assert (after.theta == cloud.theta[:, :, :1]).all() and torch.isfinite(after.log_w).all()


# ---- rows, summaries, features --------------------------------------------------------------------------------------


def test_episodes_begin_anew_in_their_rows():
    cloud = filtered(started(3), 18, reuse=True)
    kept = cloud.theta[:, [0, 2]].clone()
    cloud = replace_rows(cloud, np.array([1]), draw_prior([WIDE], 50, seeds=[9]))
    assert cloud.counts.tolist() == [18, 0, 18] and (cloud.theta[:, [0, 2]] == kept).all()
    alone = draw_prior([WIDE], 50, seeds=[9])
    for place, z in zip(*walk(9, 3), strict=True):
        cloud = update(cloud, place, z, sensor=SENSOR, reuse=True)
        alone = update(alone, place[1:2], z[1:2], sensor=SENSOR)
    torch.testing.assert_close(cloud.theta[:, 1], alone.theta[:, 0])
    with pytest.raises(BatchMismatch):
        replace_rows(cloud, np.array([1]), draw_prior([WIDE], 49, seeds=[9]))


def test_the_summary_weighs():
    theta = torch.zeros(8, 1, 2)
    theta[0, 0], theta[1, 0], theta[6:] = torch.tensor([0.0, 4.0]), torch.tensor([1.0, 1.0]), 1.0
    cloud = make_cloud([WIDE], theta, torch.log(torch.tensor([[0.25, 0.75]])), seeds=[0])
    told = summarize_cloud(cloud)
    assert told.mean[0, :2].tolist() == [3, 1]
    assert told.covariance[0].tolist() == [[3, 0], [0, 0]] and told.spread[0] == pytest.approx(math.sqrt(3))
    assert told.ess[0] == pytest.approx(1 / (0.0625 + 0.5625))
    assert told.entropy[0] == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_features():
    theta = torch.ones(8, 1, 2)
    theta[0, 0], theta[1, 0] = torch.tensor([10.0, 20.0]), torch.tensor([0.0, 5.0])
    told = summarize_cloud(make_cloud([WIDE], theta, torch.full((1, 2), -math.log(2)), seeds=[0]))
    place = np.array([[5.0, 10.0, 0.0]])
    found = compute_features(
        told, place, np.array([5e-2]), steps=np.array([25]), horizon=100, length=25.0, sensor=SENSOR
    )
    assert found.shape == (1, 13) and found.dtype == np.float32
    expected = [0.2, 0.4, 0.6, 0.1, 0.2, 0.1, 0.4, -0.3, math.log(math.sqrt(31.25) / 25), 1, 2, 1, 0.25]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    silent = compute_features(told, place, np.zeros(1), steps=np.array([0]), horizon=100, length=25.0, sensor=SENSOR)
    assert silent[0, 10:].tolist() == [0, 0, 0]
