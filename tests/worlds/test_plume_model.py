"""The plume and its sensor: numbers worked out beforehand, and what noise has to look like."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.worlds.plume.model import NAMES, Sensor, SourceTerm, compute_terms, concentration, sense, simulate_reading
from evolvent.worlds.plume.prior import Marginal, PlumePrior

AUTOSTE = SourceTerm(40, 60, 1, 5, 4, math.pi / 2, 1, 8)
SMALL = SourceTerm(15.5, 16.6, 0, 5, 2, math.pi / 4, 2, 10)


@pytest.mark.parametrize(
    ("source", "place", "expected"),
    [
        (AUTOSTE, (40, 40, 1), 1.070000970e-2),
        (AUTOSTE, (39, 60, 1), 5.220401164e-2),
        (AUTOSTE, (40, 65, 1), 1.404636678e-10),
        (SMALL, (0, 0, 0), 2.943626763e-3),
        (SMALL, (10, 10, 0), 1.509910934e-2),
    ],
)
def test_concentrations(source, place, expected):
    assert concentration(np.array(place, dtype=float), source.vector()) == pytest.approx(expected, rel=2e-9)


@pytest.mark.parametrize(("source", "length"), [(AUTOSTE, 0.492365964), (SMALL, 1.825741858)])
def test_decay_lengths(source, length):
    assert 1 / compute_terms(*source.vector()).decay == pytest.approx(length, rel=1e-8)


def test_the_plume_reaches_away_from_where_the_wind_comes_from():
    north = concentration(np.array([40.0, 65.0, 1.0]), AUTOSTE.vector())
    south = concentration(np.array([40.0, 55.0, 1.0]), AUTOSTE.vector())
    assert south > 1e3 * north


def test_at_the_source_itself_the_distance_is_not_zero():
    found = concentration(np.array([40.0, 60.0, 1.0]), AUTOSTE.vector())
    assert found == pytest.approx(5 / (4 * math.pi * 1e-5), rel=1e-3)


def test_axes_broadcast():
    places = np.random.default_rng(0).uniform(0, 20, (4, 1, 3))
    sources = np.stack([SMALL.vector(), AUTOSTE.vector()])
    found = concentration(places, sources)
    assert found.shape == (4, 2)
    assert found[2, 1] == concentration(places[2, 0], sources[1])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_torch_gives_what_numpy_gives(seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    places = rng.uniform(0, 25, (6, 3))
    low, high = np.array([0, 0, 0, 0, 0, -3, 0.5, 1]), np.array([25, 25, 5, 9, 4, 3, 3, 15])
    sources = rng.uniform(low, high, (6, 8))
    found = concentration(torch.as_tensor(places), torch.as_tensor(sources), xp=torch).numpy()
    np.testing.assert_allclose(found, concentration(places, sources), rtol=1e-12)


def test_published_readings():
    """z = C (1 + s n) where something is read; below the threshold and where it is missed it is 0."""
    sensor = Sensor()
    clean = np.full(200_000, 0.01)
    z = sense(clean, sensor, np.random.default_rng(1))
    heard = z[z > 0]
    assert ((z == 0) | (z >= sensor.threshold)).all()
    expected = 0.7 * 0.5 * (1 + math.erf((0.01 - 5e-4) / (0.005 * math.sqrt(2))))
    assert len(heard) / len(z) == pytest.approx(expected, abs=0.005)
    assert np.median(heard) == pytest.approx(0.01 + 0.005 * 0.036, rel=0.02)  # the lowest 2.9 % are cut off


def test_consistent_readings_have_the_spread_of_the_likelihood():
    sensor = Sensor(detect=1.0, sigma=0.002, sigma_fraction=0.1, likelihood="consistent", threshold=1e-9)
    z = sense(np.full(100_000, 0.02), sensor, np.random.default_rng(1))
    assert z.std() == pytest.approx(0.002 + 0.1 * 0.02, rel=0.02)


def test_readings_without_noise():
    sensor = Sensor(noisy=False, threshold=1e-3)
    clean = np.array([0.0, 9e-4, 1e-3, 0.5])
    np.testing.assert_array_equal(sense(clean, sensor, np.random.default_rng(0)), [0, 0, 1e-3, 0.5])


def test_a_miss_is_a_miss_however_much_there_is():
    assert simulate_reading(np.array(1e3), np.array(0.0), np.array(0.7), sensor=Sensor()) == 0
    assert simulate_reading(np.array(1e3), np.array(0.0), np.array(0.69), sensor=Sensor()) == 1e3


def test_the_global_generator_is_left_alone():
    before = np.random.get_state()[1].copy()
    sense(np.ones(10), Sensor(), np.random.default_rng(0))
    PlumePrior(PRIOR.marginals, PRIOR.area).draw(np.random.default_rng(0))
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("detect", 0.0),
        ("detect", 1.1),
        ("detect", math.nan),
        ("threshold", 0.0),
        ("sigma", -1.0),
        ("sigma_fraction", -0.1),
        ("likelihood", "other"),
    ],
)
def test_sensors_that_cannot_be(name, value):
    with pytest.raises(ConfigError, match=name):
        replace(Sensor(), **{name: value})


def test_sensors_say_who_they_are():
    same, others = Sensor(), [Sensor(detect=0.8), Sensor(noisy=False), Sensor(likelihood="consistent"), Sensor(sigma=1)]
    assert same.id == Sensor().id
    assert len({same.id, *(other.id for other in others)}) == 5


def test_sources_that_cannot_be_are_told_all_at_once():
    with pytest.raises(ConfigError) as caught:
        SourceTerm(math.nan, 0, 0, -1, 1, 0, 0, -2)
    assert [problem.where for problem in caught.value.problems] == ["x", "rate", "diffusivity", "lifetime"]


def uniform(low, high):
    return Marginal("uniform", low, high)


PRIOR = PlumePrior(
    (
        uniform(0, 25),
        uniform(0, 25),
        uniform(0, 5),
        Marginal("gamma", 2, 5),
        Marginal("normal", 0.1, 1),
        Marginal("normal", 1, 0.2),
        uniform(1, 3),
        uniform(5, 15),
    ),
    ((0, 25), (0, 25)),
)


def test_priors_draw_what_a_source_may_be():
    rng = np.random.default_rng(0)
    drawn = np.array([PRIOR.draw(rng) for _ in range(2000)])
    assert (drawn[:, 4] > 0).all()
    assert drawn[:, 3].mean() == pytest.approx(10, abs=0.5)
    assert drawn[:, 0].min() >= 0 and drawn[:, 0].max() <= 25
    assert PRIOR.draw(np.random.default_rng(3)).tolist() == PRIOR.draw(np.random.default_rng(3)).tolist()


def test_known_unknowns_and_specs():
    known = PRIOR.fix(rate=5.0, lifetime=10.0)
    assert known.draw(np.random.default_rng(0))[[3, 7]].tolist() == [5.0, 10.0]
    assert PlumePrior.from_spec(known.to_spec()) == known
    with pytest.raises(ConfigError, match="speed"):
        PRIOR.fix(speed=1.0)
    with pytest.raises(ConfigError, match="invalid plume prior"):
        PlumePrior.from_spec({"marginals": 3})


def test_priors_that_are_none():
    wrong = (
        uniform(3, 1),
        Marginal("normal", 0, 0),
        Marginal("gamma", -1, 1),
        uniform(0, math.inf),
        *PRIOR.marginals[4:],
    )
    with pytest.raises(ConfigError) as caught:
        PlumePrior(wrong, ((0, 25), (25, 0)))
    assert [problem.where for problem in caught.value.problems] == [*NAMES[:4], "area y"]
