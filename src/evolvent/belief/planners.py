"""Planners that score candidate positions of the sensor by the readings expected there.

All of them use one table, computed once: Nz hypotheses drawn systematically, one noisy reading of each at every
candidate, and the posterior after each reading. Higher scores are better.

- random; greedy: highest expected concentration; go to mean: nearest to the posterior mean of the source's position;
- infotaxis (Vergassola, Villermaux and Shraiman, Nature 445, 2007): expected decrease of the entropy of the weights;
- entrotaxis (Hutchinson, Liu and Chen, Information Fusion 42, 2018): entropy of the next reading, in steps of the
  sensor's noise (`noise_width`);
- DCEE (Chen, Rhodes and Liu, Automatica 133:109851, 2021): expected squared distance from the posterior mean, and
  trace of the posterior covariance, both small. If readings are drawn from the model that updates, the sum of the two
  does not depend on the readings at all (tower property): exact DCEE with equal weights goes to the posterior mean.

All non-detections give one posterior, so they are one outcome with their share of the draws as weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from evolvent.belief.cloud import Cloud, make_generators
from evolvent.belief.likelihood import log_likelihood
from evolvent.belief.moves import resample_systematic
from evolvent.errors import BatchMismatch, ConfigError, unknown_name_problem
from evolvent.worlds.plume.model import Sensor, Terms, dilution, simulate_reading

__all__ = [
    "PLANNERS",
    "PredictiveTable",
    "best_candidate",
    "choose_candidate",
    "dcee",
    "entrotaxis",
    "go_to_mean",
    "greedy",
    "infotaxis",
    "noise_width",
    "random_scores",
    "tabulate_draws",
    "tabulate_outcomes",
    "tabulate_readings",
]

_TABLE, _RANDOM = 8, 9  # purposes of random streams
_ROOT = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictiveTable:
    """Possible readings at K candidates, and the posteriors after them: J outcomes each.

    Args:
        positions: [B, K, 2]. Candidates, meters.
        allowed: [B, K]. Whether each candidate may be chosen.
        expected: [B, K]. Mean concentration (None: not known).
        prior_entropy: [B]. Entropy of the weights, nats.
        weight: [B, K, J]. Weight of an outcome; sums to 1. Where it is 0, so are all following fields except
            `mean`.
        evidence: [B, K, J]. Log predictive probability of the outcome; of a reading, its density times `noise_width`,
            the probability of a step of that width around it.
        entropy: [B, K, J]. Entropy of the weights after it, nats.
        information_gain: [B, K, J]. Sum of w' log(w' / w), nats.
        mean: [B, K, J, 2]. Mean of the source's position after it.
        trace: [B, K, J]. Trace of the covariance of the source's position after it.
    """

    positions: Tensor
    allowed: Tensor
    expected: Tensor | None
    prior_entropy: Tensor
    weight: Tensor
    evidence: Tensor
    entropy: Tensor
    information_gain: Tensor
    mean: Tensor
    trace: Tensor


def _moment_columns(log_w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Computes columns [B, N, 4] for the table's sums (x, y, x^2 + y^2 about the mean, log w), and the mean [B, 2]."""
    w = torch.exp(log_w)
    centre = torch.stack([(w * x).sum(-1), (w * y).sum(-1)], -1)
    dx, dy = x - centre[:, :1], y - centre[:, 1:]
    finite = torch.where(w > 0, log_w, 0.0)
    return torch.stack([dx, dy, dx * dx + dy * dy, finite], -1), centre


def _outcome_statistics(joint: Tensor, columns: Tensor) -> Tensor:
    """Computes [..., 6] log evidence, entropy, gain, mean x, mean y, trace from log w + log L [..., N] and columns
    [N, 4].

    The joint array is used up.
    """
    top = joint.amax(-1, keepdim=True).clamp_min(-1e30)
    joint.sub_(top).clamp_min_(-1e4)  # e^-10000 is 0, and 0 times a finite number is 0
    unnormalized = torch.exp(joint)
    total = unnormalized.sum(-1)
    x, y, square, log_w = ((unnormalized @ columns) / total.unsqueeze(-1)).unbind(-1)
    evidence = top.squeeze(-1) + torch.log(total)
    entropy = torch.log(total) - torch.linalg.vecdot(unnormalized, joint) / total
    return torch.stack([evidence, entropy, -entropy - log_w, x, y, square - x * x - y * y], -1)


def tabulate_outcomes(
    log_w: Tensor, log_l: Tensor, weight: Tensor, *, xy: Tensor, positions: Tensor, allowed: Tensor | None = None
) -> PredictiveTable:
    """Computes the table of arbitrary outcomes, given their likelihoods: for sensors that can be enumerated.

    Args:
        log_w: [B, N]. Normalized log weights.
        log_l: [B, K, J, N]. Log-likelihood of each outcome under each hypothesis.
        weight: [B, K, J]. Weight of each outcome; sums to 1 over J.
        xy: [2, B, N]. Position of each hypothesis.
        positions: [B, K, 2]. Candidates.
        allowed: [B, K]. Whether each may be chosen (None: all).
    """
    columns, centre = _moment_columns(log_w, *xy)
    statistics = torch.stack(
        [_outcome_statistics((log_w[b] + log_l[b]).reshape(-1, log_w.shape[-1]), columns[b]) for b in range(len(log_w))]
    ).reshape(*weight.shape, 6)
    return _assemble(log_w, statistics, weight, centre=centre, positions=positions, allowed=allowed, expected=None)


def _assemble(
    log_w: Tensor,
    statistics: Tensor,
    weight: Tensor,
    *,
    centre: Tensor,
    positions: Tensor,
    allowed: Tensor | None,
    expected: Tensor | None,
) -> PredictiveTable:
    statistics = torch.where(
        (weight > 0).unsqueeze(-1), statistics, 0.0
    )  # what cannot be read may have no posterior: NaN
    prior_entropy = -torch.where(log_w > -math.inf, torch.exp(log_w) * log_w, 0.0).sum(-1)
    return PredictiveTable(
        positions=positions,
        allowed=torch.ones_like(weight[..., 0], dtype=torch.bool) if allowed is None else allowed,
        expected=expected,
        prior_entropy=prior_entropy,
        weight=weight,
        evidence=statistics[..., 0],
        entropy=statistics[..., 1],
        information_gain=statistics[..., 2],
        mean=statistics[..., 3:5] + centre[:, None, None],
        trace=statistics[..., 5].clamp_min(0.0),
    )


def tabulate_draws(
    cloud: Cloud, candidates: object, *, sensor: Sensor, allowed: object = None, nz: int = 25
) -> PredictiveTable:
    """Draws readings and computes their table.

    Args:
        cloud: The beliefs.
        candidates: [B, K, 3]. Positions, meters; numpy or torch.
        sensor: The sensor.
        allowed: [B, K]. Whether each may be chosen (None: all).
        nz: Number of hypotheses drawn for each candidate.
    Raises:
        BatchMismatch: arrays of other shapes. ConfigError: nz below 1.
    """
    if nz < 1:
        raise ConfigError("number of readings out of range", value=nz, expected="nz of at least 1")
    positions = _check_candidates(cloud, candidates)
    all_concentrations = _concentrations(cloud, positions)
    b, k, _ = all_concentrations.shape
    random_rows = [
        torch.rand(1 + 2 * k * nz, generator=generator)
        for generator in make_generators(cloud.seeds, cloud.counts, _TABLE)
    ]
    numbers = torch.stack(random_rows).to(all_concentrations)
    hypothesis_indices = resample_systematic(cloud.log_w, numbers[:, 0], nz)
    concentrations = all_concentrations.gather(2, hypothesis_indices.unsqueeze(1).expand(-1, k, -1))
    first, second = numbers[:, 1:].reshape(b, 2, k, nz).unbind(1)
    normal = math.sqrt(2) * torch.erfinv((2 * first - 1).clamp(-1 + 1e-7, 1 - 1e-7))
    z = simulate_reading(concentrations, normal, second, sensor=sensor, xp=torch)
    return _tabulate(cloud, positions, all_concentrations, z=z, allowed=allowed, sensor=sensor)


def tabulate_readings(
    cloud: Cloud, candidates: object, z: Tensor, *, sensor: Sensor, allowed: object = None
) -> PredictiveTable:
    """Computes the table of given readings [B, K, Nz]; all non-detections of a candidate are outcome 0."""
    positions = _check_candidates(cloud, candidates)
    return _tabulate(cloud, positions, _concentrations(cloud, positions), z=z, allowed=allowed, sensor=sensor)


def _check_candidates(cloud: Cloud, candidates: object) -> Tensor:
    positions = torch.as_tensor(candidates, dtype=cloud.log_w.dtype, device=cloud.log_w.device)
    if positions.ndim != 3 or positions.shape[0] != cloud.size[0] or positions.shape[2] != 3:
        raise BatchMismatch(
            "candidates have the wrong shape", value=tuple(positions.shape), expected=(cloud.size[0], "K", 3)
        )
    return positions


def _concentrations(cloud: Cloud, positions: Tensor) -> Tensor:
    """Computes the concentration of each candidate and hypothesis, [B, K, N]."""
    source_terms = Terms(*(term.unsqueeze(1) for term in cloud.terms))
    concentrations: Tensor = dilution(source_terms, positions.unsqueeze(-2).unbind(-1), xp=torch)
    return concentrations


def _tabulate(
    cloud: Cloud, positions: Tensor, concentrations: Tensor, *, z: Tensor, allowed: object, sensor: Sensor
) -> PredictiveTable:
    log_w, (b, k, nz) = cloud.log_w, z.shape
    is_detection = z > sensor.threshold
    weight = torch.cat([(~is_detection).sum(-1, keepdim=True), is_detection], -1).to(log_w) / nz
    columns, centre = _moment_columns(log_w, cloud.theta[0], cloud.theta[1])
    statistics = log_w.new_zeros(b, k, 1 + nz, 6)
    miss_joint = log_w.unsqueeze(1) + log_likelihood(concentrations, log_w.new_zeros(()), sensor)
    spread = sensor.sigma_fraction * concentrations + sensor.sigma
    base = log_w.unsqueeze(1) - torch.log(spread / noise_width(sensor)) - _ROOT
    if sensor.likelihood == "consistent":
        base += math.log(sensor.detect)
    scale = 1.0 / spread
    for row in range(b):  # a belief's candidates one by one: their arrays stay in the cache
        statistics[row, :, 0] = _outcome_statistics(miss_joint[row], columns[row])
        for candidate in range(k):
            detected = is_detection[row, candidate].nonzero().squeeze(-1)
            if len(detected):
                error = torch.outer(z[row, candidate, detected], scale[row, candidate]).sub_(
                    concentrations[row, candidate] * scale[row, candidate]
                )
                joint = torch.addcmul(base[row, candidate], error, error, value=-0.5)
                statistics[row, candidate, 1 + detected] = _outcome_statistics(joint, columns[row])
    is_allowed = None if allowed is None else torch.as_tensor(allowed, dtype=torch.bool, device=log_w.device)
    expected = torch.linalg.vecdot(concentrations, torch.exp(log_w).unsqueeze(1))
    return _assemble(
        log_w, statistics, weight, centre=centre, positions=positions[..., :2], allowed=is_allowed, expected=expected
    )


def infotaxis(predictive_table: PredictiveTable, form: Literal["entropy", "published"] = "entropy") -> Tensor:
    """Computes the information gain in nats, [B, K]: mean of H(w) - H(w'), or AutoSTE's mean of sum w' log(w' / w).

    With a consistent likelihood both have the same expectation, the mutual information of source and reading.
    """
    if form == "published":
        return (predictive_table.weight * predictive_table.information_gain).sum(-1)
    return predictive_table.prior_entropy.unsqueeze(-1) - (predictive_table.weight * predictive_table.entropy).sum(-1)


def noise_width(sensor: Sensor) -> float:
    """Returns the standard deviation of the sensor's noise at its threshold, grams per cubic meter.

    Readings that differ by less are one reading to the entropy of `entrotaxis`: a probability of no detection and a
    density cannot be mixed, and a density depends on the unit of concentrations.
    """
    return sensor.sigma + sensor.sigma_fraction * sensor.threshold


def entrotaxis(predictive_table: PredictiveTable) -> Tensor:
    """Estimates the entropy of the next reading from the draws in nats, [B, K]: - mean log sum_n w_n L(z | theta_n).

    L is a probability on both sides of the threshold: of no detection, and of a reading within one `noise_width`. The
    source's criterion is the entropy over such discrete readings; units of concentration do not change it.
    """
    return -(predictive_table.weight * predictive_table.evidence).sum(-1)


def dcee(predictive_table: PredictiveTable, explore: float = 1.0) -> Tensor:
    """Computes minus the expected cost, [B, K], square meters: squared distance from the mean plus `explore` times
    the trace.
    """
    squared_distance = ((predictive_table.mean - predictive_table.positions.unsqueeze(2)) ** 2).sum(-1)
    return -(predictive_table.weight * (squared_distance + explore * predictive_table.trace)).sum(-1)


def greedy(predictive_table: PredictiveTable) -> Tensor:
    """Returns the expected concentration, [B, K]; raises ConfigError for a table without concentrations."""
    if predictive_table.expected is None:
        raise ConfigError(
            "the table has no concentrations", value="expected=None", expected="a table built with concentrations"
        )
    return predictive_table.expected


def go_to_mean(cloud: Cloud, candidates: object) -> Tensor:
    """Computes minus the distance from the posterior mean of the source's position, [B, K], meters."""
    w = torch.exp(cloud.log_w)
    mean = torch.stack([(w * cloud.theta[0]).sum(-1), (w * cloud.theta[1]).sum(-1)], -1)
    offsets = _check_candidates(cloud, candidates)[..., :2] - mean.unsqueeze(1)
    return -torch.sqrt((offsets * offsets).sum(-1))


def random_scores(cloud: Cloud, candidates: object) -> Tensor:
    """Draws scores [B, K] that depend only on the beliefs' seeds and steps."""
    k = _check_candidates(cloud, candidates).shape[1]
    score_rows = [
        torch.rand(k, generator=generator) for generator in make_generators(cloud.seeds, cloud.counts, _RANDOM)
    ]
    return torch.stack(score_rows).to(cloud.log_w)


def best_candidate(scores: Tensor, allowed: object = None) -> Tensor:
    """Returns the allowed candidate with the highest score, [B], the first among equals; 0 where none is allowed."""
    if allowed is not None:
        is_allowed = torch.as_tensor(allowed, dtype=torch.bool, device=scores.device)
        scores = torch.where(is_allowed, scores, -math.inf)
    top = scores.amax(-1, keepdim=True)
    return (scores >= top).to(torch.int8).argmax(-1)


PLANNERS: Mapping[str, Callable[[PredictiveTable], Tensor] | None] = MappingProxyType(
    {
        "random": None,
        "greedy": greedy,
        "go_to_mean": None,
        "infotaxis": infotaxis,
        "entrotaxis": entrotaxis,
        "dcee": dcee,
    }
)
"""The planners by name; None: one that needs no table."""


def choose_candidate(
    name: str, cloud: Cloud, candidates: object, *, sensor: Sensor, allowed: object = None, nz: int = 25
) -> Tensor:
    """Returns the candidate that a planner of `PLANNERS` chooses, [B]; raises ConfigError for another name."""
    if name not in PLANNERS:
        raise ConfigError([unknown_name_problem("planner", name, PLANNERS)])
    score_candidates = PLANNERS[name]
    if score_candidates is not None:
        scores = score_candidates(tabulate_draws(cloud, candidates, sensor=sensor, allowed=allowed, nz=nz))
    else:
        scores = (random_scores if name == "random" else go_to_mean)(cloud, candidates)
    return best_candidate(scores, allowed)
