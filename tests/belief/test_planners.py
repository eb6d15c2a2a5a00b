"""Planners: two hypotheses worked by hand, the tower property, draws against enumeration, and their order at work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_particles import SENSOR, WIDE, filtered

from evolvent.belief.cloud import make_cloud
from evolvent.belief.likelihood import log_likelihood
from evolvent.belief.particles import draw_prior, summarize_cloud, update
from evolvent.belief.planners import (
    PLANNERS,
    best_candidate,
    choose_candidate,
    dcee,
    entrotaxis,
    go_to_mean,
    greedy,
    infotaxis,
    noise_width,
    random_scores,
    tabulate_draws,
    tabulate_outcomes,
    tabulate_readings,
)
from evolvent.errors import BatchMismatch, ConfigError
from evolvent.worlds.panel import Sizes
from evolvent.worlds.plume.model import Sensor, concentration
from evolvent.worlds.plume.world import PlumeWorld

F64 = torch.float64


def enumerated(w, likelihoods, places, points):
    """The table of outcomes [K][J][N] for hypotheses in the places, weighed by their own probability."""
    log_w = torch.log(torch.tensor([w], dtype=F64))
    chance = torch.tensor(likelihoods, dtype=F64)
    weight = (chance * torch.tensor(w, dtype=F64)).sum(-1)
    return tabulate_outcomes(
        log_w,
        torch.log(chance).unsqueeze(0),
        weight.unsqueeze(0),
        xy=torch.tensor(places, dtype=F64).T.unsqueeze(1),
        positions=torch.tensor([points], dtype=F64),
    )


def two(points=((1.0, 0.0),)):
    """A at 0, B at 4, even; a hit has probability .9 under A and .2 under B."""
    return enumerated([0.5, 0.5], [[[0.9, 0.2], [0.1, 0.8]]] * len(points), [[0, 0], [4, 0]], points)


def test_two_hypotheses():
    seen = two()
    assert seen.evidence.exp().tolist()[0][0] == pytest.approx([0.55, 0.45])
    assert float(entrotaxis(seen)) == pytest.approx(0.688138813714, rel=1e-10)
    assert float(infotaxis(seen)) == pytest.approx(0.275396115249, rel=1e-10)
    assert float(infotaxis(seen, "published")) == pytest.approx(0.275396115249, rel=1e-10)
    assert float(entrotaxis(seen) - infotaxis(seen)) == pytest.approx(0.412742698465, rel=1e-10)
    away = (seen.weight * ((seen.mean - seen.positions.unsqueeze(2)) ** 2).sum(-1)).sum()
    assert (float(away), float((seen.weight * seen.trace).sum())) == pytest.approx((2.979798, 2.020202), abs=1e-6)
    assert float(dcee(seen)) == pytest.approx(-5, rel=1e-12)


def test_without_a_sensor_dcee_is_the_same_and_nothing_is_learned():
    blind = enumerated([0.5, 0.5], [[[1.0, 1.0]]], [[0, 0], [4, 0]], [(1.0, 0.0)])
    assert float(dcee(blind)) == pytest.approx(-5, rel=1e-12)
    assert float(infotaxis(blind)) == pytest.approx(0, abs=1e-12)
    assert float(infotaxis(blind, "published")) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_tower_property(seed):
    """Whatever the sensor: expected squared distance plus expected trace is that of the belief as it stands.

    So exact DCEE with equal weights ranks candidates as their distance from the mean does. Information is never
    negative, and both forms of infotaxis agree.
    """
    rng = np.random.default_rng(seed)
    n, k, j = 7, 5, 4
    w = rng.dirichlet(np.ones(n))
    sensor = rng.dirichlet(np.ones(j), (k, n)).transpose(0, 2, 1)
    places, points = rng.uniform(0, 9, (n, 2)), rng.uniform(0, 9, (k, 2))
    seen = enumerated(w.tolist(), sensor.tolist(), places.tolist(), points.tolist())
    mean = w @ places
    trace = w @ ((places - mean) ** 2).sum(-1)
    expected = ((points - mean) ** 2).sum(-1) + trace
    np.testing.assert_allclose(-dcee(seen)[0].numpy(), expected, rtol=1e-10)
    assert int(best_candidate(dcee(seen))) == int(((points - mean) ** 2).sum(-1).argmin())
    assert (infotaxis(seen) >= -1e-12).all()
    torch.testing.assert_close(infotaxis(seen), infotaxis(seen, "published"))
    mixed = -dcee(seen, explore=0.25)[0].numpy()
    np.testing.assert_allclose(mixed, expected - 0.75 * (seen.weight * seen.trace).sum(-1)[0].numpy(), rtol=1e-10)


CLOUD = filtered(draw_prior([WIDE] * 2, 300, seeds=[0, 1]), 12)
POINTS = np.array([[[6.0, 6, 0], [12, 15, 0], [15, 15, 0], [20, 3, 0]]] * 2)


def plain(cloud, points, z, sensor):
    """One belief's scores by the plainest loop: every reading for itself, detected or not, in double precision."""
    w = torch.exp(cloud.log_w[0].double())
    xy = cloud.theta[:2, 0].T.double()
    scores = []
    for point, readings in zip(points[0], z[0], strict=True):
        clean = torch.as_tensor(concentration(point, cloud.theta[:, 0].T.double().numpy()))
        rows = []
        for one in readings.double():
            joint = torch.log(w) + log_likelihood(clean, one, sensor)
            after = torch.softmax(joint, 0)
            mean = after @ xy
            trace = after @ ((xy - mean) ** 2).sum(-1)
            entropy = -torch.special.xlogy(after, after).sum()
            learned = torch.special.xlogy(after, after / w).sum()
            cost = ((mean - torch.as_tensor(point[:2])) ** 2).sum() + trace
            gain = -torch.special.xlogy(w, w).sum() - entropy
            width = noise_width(sensor) if one > sensor.threshold else 1.0
            rows.append(torch.stack([gain, learned, -torch.logsumexp(joint, 0) - np.log(width), -cost]))
        scores.append(torch.stack(rows).mean(0))
    return torch.stack(scores).T


@pytest.mark.parametrize("kind", ["published", "consistent"])
def test_non_detections_once_give_the_plain_loops_scores(kind):
    sensor = replace(SENSOR, likelihood=kind)
    one = make_cloud([WIDE], CLOUD.theta[:, :1], torch.linspace(-2, 1, 300).log_softmax(0).unsqueeze(0), seeds=[0])
    z = torch.tensor(
        [[[0.0, 2e-3, 0, 0.4, 0, 1e-3], [0, 0, 0, 0, 0, 0], [0.1, 0.2, 3e-3, 1, 2, 6e-4], [4.9e-4, 5.1e-4, 0, 0, 0, 0]]]
    )
    seen = tabulate_readings(one, POINTS[:1], z, sensor=sensor)
    found = torch.stack([infotaxis(seen), infotaxis(seen, "published"), entrotaxis(seen), dcee(seen)])[:, 0]
    torch.testing.assert_close(found.double(), plain(one, POINTS[:1], z, sensor), rtol=2e-3, atol=2e-3)
    assert seen.weight.sum(-1).allclose(torch.ones(1, 4)) and seen.weight[0, 1, 0] == 1


def test_draws_come_from_the_model_that_updates():
    """With a consistent likelihood the mean of many draws meets the tower property and both forms of information."""
    sensor = replace(SENSOR, likelihood="consistent")
    seen = tabulate_draws(CLOUD, POINTS, sensor=sensor, nz=1500)
    told = summarize_cloud(CLOUD)
    cost = ((POINTS[:, :, :2] - told.mean[:, None, :2]) ** 2).sum(-1) + told.spread[:, None] ** 2
    np.testing.assert_allclose(-dcee(seen).numpy(), cost, rtol=0.05)
    np.testing.assert_allclose(infotaxis(seen).numpy(), infotaxis(seen, "published").numpy(), atol=0.06)
    assert (infotaxis(seen) > -0.05).all()


GRAMS_TO_MILLIGRAMS = 1000.0


@pytest.mark.parametrize("kind", ["published", "consistent"])
@pytest.mark.parametrize("score", [infotaxis, entrotaxis, dcee], ids=lambda score: score.__name__)
def test_the_unit_of_concentrations_changes_no_decision(kind, score):
    """The same beliefs, sensor and draws in milligrams: before entrotaxis had a width, 16 of 25 decisions changed."""
    cloud = filtered(draw_prior([WIDE] * 25, 200, seeds=range(25)), 6)
    points = np.random.default_rng(0).uniform(1, 24, (25, 4, 3)) * [1, 1, 0]
    sensor = replace(SENSOR, likelihood=kind)
    theta = cloud.theta.clone()
    theta[3] *= GRAMS_TO_MILLIGRAMS  # the release rate; concentrations are proportional to it
    scaled = make_cloud([WIDE] * 25, theta, cloud.log_w, seeds=range(25))
    scaled = replace(scaled, counts=cloud.counts)
    scaled_sensor = replace(
        sensor, threshold=sensor.threshold * GRAMS_TO_MILLIGRAMS, sigma=sensor.sigma * GRAMS_TO_MILLIGRAMS
    )
    grams = score(tabulate_draws(cloud, points, sensor=sensor))
    milligrams = score(tabulate_draws(scaled, points, sensor=scaled_sensor))
    torch.testing.assert_close(grams, milligrams, rtol=2e-3, atol=2e-3)
    assert best_candidate(grams).tolist() == best_candidate(milligrams).tolist()
    assert len(set(best_candidate(grams).tolist())) > 1


def test_entrotaxis_is_the_entropy_of_readings_in_steps_of_the_noise():
    """Against enumeration: the probability of every step of the mixture's readings, by the normal distribution."""
    sensor = replace(SENSOR, likelihood="consistent")
    theta = torch.ones(8, 1, 3)
    theta[0, 0], theta[1, 0] = torch.tensor([8.0, 11.0, 14.0]), torch.tensor([10.0, 12.0, 9.0])
    w = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    cloud = make_cloud([WIDE], theta, torch.log(w).float().unsqueeze(0), seeds=[3])
    found = entrotaxis(tabulate_draws(cloud, POINTS[:1], sensor=sensor, nz=6000))[0]
    width, normal = noise_width(sensor), torch.distributions.Normal(0.0, 1.0)
    for point, entropy in zip(POINTS[0], found.tolist(), strict=True):
        clean = torch.as_tensor(concentration(point, theta[:, 0].T.double().numpy()))
        spread = sensor.sigma_fraction * clean + sensor.sigma
        edges = sensor.threshold + width * torch.arange(200_000, dtype=F64)
        below = normal.cdf((edges.unsqueeze(-1) - clean) / spread) @ w
        steps = sensor.detect * below.diff()
        chances = torch.cat([1 - steps.sum().reshape(1), steps])
        assert entropy == pytest.approx(float(-torch.special.xlogy(chances, chances).sum()), abs=0.06)


def test_a_deaf_sensor_teaches_nothing():
    deaf = Sensor(threshold=1e6, detect=1e-9)
    seen = tabulate_draws(CLOUD, POINTS, sensor=deaf)
    assert infotaxis(seen).abs().max() < 1e-4


def test_what_no_hypothesis_allows_has_no_part_in_a_score():
    near = WIDE.fix(x=10.0, y=10.0, z=0.0, rate=5.0)
    points = np.array([[[10.5, 10, 0], [0, 0, 0], [24, 24, 0]]])
    seen = tabulate_draws(draw_prior([near], 200, seeds=[1]), points, sensor=Sensor(detect=1.0))
    for score in (infotaxis, entrotaxis, dcee):
        assert torch.isfinite(score(seen)).all(), score.__name__
    never = enumerated([0.5, 0.5], [[[1.0, 1.0], [0.0, 0.0]]], [[0, 0], [4, 0]], [[1.0, 0.0]])
    for score in (infotaxis, entrotaxis, dcee):
        assert torch.isfinite(score(never)).all(), score.__name__
    assert float(infotaxis(never)) == pytest.approx(0) and float(dcee(never)) == pytest.approx(-5)


def test_tables_depend_on_the_belief_alone():
    whole = tabulate_draws(CLOUD, POINTS, sensor=SENSOR)
    alone = draw_prior([WIDE], 300, seeds=[1])
    alone = replace(
        alone, theta=CLOUD.theta[:, 1:], derived=CLOUD.derived[:, 1:], log_w=CLOUD.log_w[1:], counts=CLOUD.counts[1:]
    )
    part = tabulate_draws(alone, POINTS[1:], sensor=SENSOR)
    for score in (infotaxis, entrotaxis, dcee, greedy):
        torch.testing.assert_close(score(whole)[1], score(part)[0])
    assert (random_scores(CLOUD, POINTS)[1] == random_scores(alone, POINTS[1:])[0]).all()


def test_simple_planners():
    theta = torch.ones(8, 1, 2)
    theta[0, 0], theta[1, 0] = torch.tensor([4.0, 16.0]), torch.tensor([5.0, 5.0])
    cloud = make_cloud([WIDE], theta, torch.log(torch.tensor([[0.75, 0.25]])), seeds=[0])
    points = np.array([[[7.0, 4, 0], [7, 5.5, 0], [4, 5, 0]]])
    assert go_to_mean(cloud, points)[0].tolist() == pytest.approx([-1, -0.5, -3])
    clean = [concentration(point, theta[:, 0].T.double().numpy()) @ [0.75, 0.25] for point in points[0]]
    assert greedy(tabulate_draws(cloud, points, sensor=SENSOR))[0].tolist() == pytest.approx(clean, rel=1e-4)
    assert choose_candidate("greedy", cloud, points, sensor=SENSOR).tolist() == [2]
    assert choose_candidate("go_to_mean", cloud, points, sensor=SENSOR).tolist() == [1]
    assert choose_candidate("go_to_mean", cloud, points, sensor=SENSOR, allowed=[[True, False, True]]).tolist() == [0]


def test_the_first_of_equals_among_those_allowed():
    assert best_candidate(torch.tensor([[1.0, 3, 3], [2, 2, 2], [0, 9, 1]])).tolist() == [1, 0, 1]
    assert best_candidate(torch.tensor([[1.0, 3, 3]]), [[True, False, True]]).tolist() == [2]


def test_bad_input():
    with pytest.raises(ConfigError, match="infotaxis"):
        choose_candidate("infotaxi", CLOUD, POINTS, sensor=SENSOR)
    with pytest.raises(BatchMismatch):
        tabulate_draws(CLOUD, POINTS[:1], sensor=SENSOR)
    with pytest.raises(ConfigError):
        tabulate_draws(CLOUD, POINTS, sensor=SENSOR, nz=0)
    with pytest.raises(ConfigError, match="no concentrations"):
        greedy(two())


def steps_taken(name, tasks, world):
    """Steps until the spread is below 1 m with the estimate within 2 m; other episodes count as all steps."""
    batch = world.batch(len(tasks))
    batch.begin(range(len(tasks)), tasks)
    cloud = draw_prior(batch.priors, 300, seeds=range(len(tasks)))
    found = np.full(len(tasks), world.horizon)
    while batch.running.any():
        cloud = update(cloud, batch.position, batch.reading, sensor=batch.sensor, reuse=True, collapse="renew")
        told = summarize_cloud(cloud)
        sure = batch.running & (told.spread < 1.0)
        error = np.hypot(*(told.mean[:, :2] - batch.source[:, :2]).T)
        found[sure & (error < 2.0)] = batch.steps[sure & (error < 2.0)]
        batch.end(np.flatnonzero(sure))
        if batch.running.any():
            places, inside = batch.candidates()
            batch.step(choose_candidate(name, cloud, places, sensor=batch.sensor, allowed=inside, nz=6).numpy())
    return found.mean()


@pytest.mark.long
def test_the_order_of_planners_on_a_fixed_panel():
    """DCEE and going to the mean need the fewest steps, random walks the most; both -taxes lie between."""
    world = PlumeWorld(sizes=Sizes(train=14, dev=0, test=0))
    tasks = world.tasks("train", "seen")
    steps = {name: steps_taken(name, tasks, world) for name in PLANNERS if name != "greedy"}
    best_two, worse = max(steps["dcee"], steps["go_to_mean"]), min(steps["infotaxis"], steps["entrotaxis"])
    assert best_two < worse and max(steps["infotaxis"], steps["entrotaxis"]) < steps["random"], steps
