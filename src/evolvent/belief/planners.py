"""Where to smell next: planners that judge candidate places by what might be read there.

All of them look at one table, computed once: Nz hypotheses drawn systematically, one noisy reading of each at every
candidate, and what each reading would make of the belief. Every score is better the higher it is.

- random; greedy: where the expected concentration is highest;
- go to mean: nearest to the posterior mean of the source's place;
- infotaxis (Vergassola, Villermaux and Shraiman, Nature 445, 2007): expected fall of the entropy of the weights;
- entrotaxis (Hutchinson, Liu and Chen, Information Fusion 42, 2018): entropy of what will be read;
- DCEE (Chen, Rhodes and Liu, Automatica 133:109851, 2021): expected squared distance from the posterior mean, and
  trace of the posterior covariance, both small. If readings are drawn from the model that updates, the two together
  do not depend on the readings at all (tower property): exact DCEE with equal weights goes to the posterior mean.

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

from evolvent.belief.cloud import Cloud, streams
from evolvent.belief.likelihood import log_likelihood
from evolvent.belief.moves import systematic
from evolvent.errors import BatchMismatch, ConfigError, unknown
from evolvent.worlds.plume.model import Sensor, Terms, dilution, reading

__all__ = [
    "PLANNERS",
    "PredictiveTable",
    "best",
    "dcee",
    "entrotaxis",
    "go_to_mean",
    "greedy",
    "infotaxis",
    "plan",
    "predictive",
    "random_scores",
    "table",
    "tabulate",
]

_TABLE, _RANDOM = 8, 9  # purposes of random streams
_ROOT = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictiveTable:
    """What might be read at K candidates, and what it would mean: J outcomes each.

    Args:
        places: [B, K, 2] the candidates, metres.
        allowed: [B, K] which of them may be chosen.
        expected: [B, K] mean concentration (None: not known).
        prior_entropy: [B] of the weights, nats.
        weight: [B, K, J] how much an outcome counts; adds up to 1. Where it is 0, so is all that follows, but `mean`.
        evidence: [B, K, J] its log predictive density.
        entropy: [B, K, J] of the weights after it, nats.
        learned: [B, K, J] sum of w' log(w' / w), nats.
        mean: [B, K, J, 2] of the source's place after it; `trace` [B, K, J] of its covariance.
    """

    places: Tensor
    allowed: Tensor
    expected: Tensor | None
    prior_entropy: Tensor
    weight: Tensor
    evidence: Tensor
    entropy: Tensor
    learned: Tensor
    mean: Tensor
    trace: Tensor


def _columns(log_w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Columns [B, N, 4] whose weighted sums make the table (x, y, x^2 + y^2 about the mean, log w); the mean [B, 2]."""
    w = torch.exp(log_w)
    centre = torch.stack([(w * x).sum(-1), (w * y).sum(-1)], -1)
    dx, dy = x - centre[:, :1], y - centre[:, 1:]
    finite = torch.where(w > 0, log_w, 0.0)
    return torch.stack([dx, dy, dx * dx + dy * dy, finite], -1), centre


def _outcomes(joint: Tensor, columns: Tensor) -> Tensor:
    """[..., 6] log evidence, entropy, learned, mean x, mean y, trace from log w + log L [..., N] and columns [N, 4].

    The joint array is used up.
    """
    top = joint.amax(-1, keepdim=True).clamp_min(-1e30)
    joint.sub_(top).clamp_min_(-1e4)  # e^-10000 is 0, and 0 times a finite number is 0
    grown = torch.exp(joint)
    total = grown.sum(-1)
    x, y, square, log_w = ((grown @ columns) / total.unsqueeze(-1)).unbind(-1)
    evidence = top.squeeze(-1) + torch.log(total)
    entropy = torch.log(total) - torch.linalg.vecdot(grown, joint) / total
    return torch.stack([evidence, entropy, -entropy - log_w, x, y, square - x * x - y * y], -1)


def predictive(
    log_w: Tensor, log_l: Tensor, weight: Tensor, *, xy: Tensor, places: Tensor, allowed: Tensor | None = None
) -> PredictiveTable:
    """The table of any outcomes at all, given their likelihoods: for sensors that can be enumerated.

    Args:
        log_w: [B, N] normalised log weights.
        log_l: [B, K, J, N] log-likelihood of each outcome under each hypothesis.
        weight: [B, K, J] how much each outcome counts; adds up to 1 over J.
        xy: [2, B, N] the place that each hypothesis means.
        places: [B, K, 2] the candidates.
        allowed: [B, K] (None: all).
    """
    columns, centre = _columns(log_w, *xy)
    found = torch.stack(
        [_outcomes((log_w[b] + log_l[b]).reshape(-1, log_w.shape[-1]), columns[b]) for b in range(len(log_w))]
    ).reshape(*weight.shape, 6)
    return _assembled(log_w, found, weight, centre=centre, places=places, allowed=allowed, expected=None)


def _assembled(
    log_w: Tensor,
    found: Tensor,
    weight: Tensor,
    *,
    centre: Tensor,
    places: Tensor,
    allowed: Tensor | None,
    expected: Tensor | None,
) -> PredictiveTable:
    found = torch.where((weight > 0).unsqueeze(-1), found, 0.0)  # what cannot be read may have no posterior: NaN
    prior_entropy = -torch.where(log_w > -math.inf, torch.exp(log_w) * log_w, 0.0).sum(-1)
    return PredictiveTable(
        places=places,
        allowed=torch.ones_like(weight[..., 0], dtype=torch.bool) if allowed is None else allowed,
        expected=expected,
        prior_entropy=prior_entropy,
        weight=weight,
        evidence=found[..., 0],
        entropy=found[..., 1],
        learned=found[..., 2],
        mean=found[..., 3:5] + centre[:, None, None],
        trace=found[..., 5].clamp_min(0.0),
    )


def table(cloud: Cloud, candidates: object, *, sensor: Sensor, allowed: object = None, nz: int = 25) -> PredictiveTable:
    """Draw readings and tabulate them.

    Args:
        candidates: [B, K, 3] places, metres; numpy or torch.
        allowed: [B, K] which of them may be chosen (None: all).
        nz: hypotheses drawn for each candidate.
    Raises:
        BatchMismatch: arrays of other shapes. ConfigError: nz below 1.
    """
    if nz < 1:
        raise ConfigError("a table without readings", value=nz, expected="nz of at least 1")
    places = _places(cloud, candidates)
    clean = _clean(cloud, places)
    b, k, _ = clean.shape
    drawn = [torch.rand(1 + 2 * k * nz, generator=one) for one in streams(cloud.seeds, cloud.counts, _TABLE)]
    numbers = torch.stack(drawn).to(clean)
    picked = systematic(cloud.log_w, numbers[:, 0], nz)
    smelt = clean.gather(2, picked.unsqueeze(1).expand(-1, k, -1))
    first, second = numbers[:, 1:].reshape(b, 2, k, nz).unbind(1)
    normal = math.sqrt(2) * torch.erfinv((2 * first - 1).clamp(-1 + 1e-7, 1 - 1e-7))
    z = reading(smelt, normal, second, sensor=sensor, xp=torch)
    return _tabulated(cloud, places, clean, z=z, allowed=allowed, sensor=sensor)


def tabulate(cloud: Cloud, candidates: object, z: Tensor, *, sensor: Sensor, allowed: object = None) -> PredictiveTable:
    """The table of given readings [B, K, Nz]; all non-detections of a candidate are outcome 0."""
    places = _places(cloud, candidates)
    return _tabulated(cloud, places, _clean(cloud, places), z=z, allowed=allowed, sensor=sensor)


def _places(cloud: Cloud, candidates: object) -> Tensor:
    found = torch.as_tensor(candidates, dtype=cloud.log_w.dtype, device=cloud.log_w.device)
    if found.ndim != 3 or found.shape[0] != cloud.size[0] or found.shape[2] != 3:
        raise BatchMismatch("candidates of another shape", value=tuple(found.shape), expected=(cloud.size[0], "K", 3))
    return found


def _clean(cloud: Cloud, places: Tensor) -> Tensor:
    """[B, K, N] one concentration for each candidate and hypothesis."""
    known = Terms(*(term.unsqueeze(1) for term in cloud.terms))
    found: Tensor = dilution(known, places.unsqueeze(-2).unbind(-1), xp=torch)
    return found


def _tabulated(
    cloud: Cloud, places: Tensor, clean: Tensor, *, z: Tensor, allowed: object, sensor: Sensor
) -> PredictiveTable:
    log_w, (b, k, nz) = cloud.log_w, z.shape
    hit = z > sensor.threshold
    weight = torch.cat([(~hit).sum(-1, keepdim=True), hit], -1).to(log_w) / nz
    columns, centre = _columns(log_w, cloud.theta[0], cloud.theta[1])
    found = log_w.new_zeros(b, k, 1 + nz, 6)
    none = log_w.unsqueeze(1) + log_likelihood(clean, log_w.new_zeros(()), sensor)
    spread = sensor.sigma_fraction * clean + sensor.sigma
    base = log_w.unsqueeze(1) - torch.log(spread) - _ROOT
    if sensor.likelihood == "consistent":
        base += math.log(sensor.detect)
    scale = 1.0 / spread
    for row in range(b):  # a belief's candidates one by one: their arrays stay in the cache
        found[row, :, 0] = _outcomes(none[row], columns[row])
        for at in range(k):
            some = hit[row, at].nonzero().squeeze(-1)
            if len(some):
                error = torch.outer(z[row, at, some], scale[row, at]).sub_(clean[row, at] * scale[row, at])
                joint = torch.addcmul(base[row, at], error, error, value=-0.5)
                found[row, at, 1 + some] = _outcomes(joint, columns[row])
    may = None if allowed is None else torch.as_tensor(allowed, dtype=torch.bool, device=log_w.device)
    expected = torch.linalg.vecdot(clean, torch.exp(log_w).unsqueeze(1))
    return _assembled(log_w, found, weight, centre=centre, places=places[..., :2], allowed=may, expected=expected)


def infotaxis(seen: PredictiveTable, form: Literal["entropy", "published"] = "entropy") -> Tensor:
    """[B, K] what is learned, in nats: mean of H(w) - H(w'), or AutoSTE's mean of sum w' log(w' / w).

    With a consistent likelihood both have the same expectation, the mutual information of source and reading.
    """
    if form == "published":
        return (seen.weight * seen.learned).sum(-1)
    return seen.prior_entropy.unsqueeze(-1) - (seen.weight * seen.entropy).sum(-1)


def entrotaxis(seen: PredictiveTable) -> Tensor:
    """[B, K] the entropy of what will be read, estimated from the draws: - mean log sum_n w_n L(z | theta_n)."""
    return -(seen.weight * seen.evidence).sum(-1)


def dcee(seen: PredictiveTable, explore: float = 1.0) -> Tensor:
    """[B, K] minus the expected cost, square metres: squared distance from the mean, and `explore` times the trace."""
    away = ((seen.mean - seen.places.unsqueeze(2)) ** 2).sum(-1)
    return -(seen.weight * (away + explore * seen.trace)).sum(-1)


def greedy(seen: PredictiveTable) -> Tensor:
    """[B, K] the expected concentration; ConfigError for a table of other outcomes, which knows of none."""
    if seen.expected is None:
        raise ConfigError("no concentrations in this table", value="expected=None", expected="a table of readings")
    return seen.expected


def go_to_mean(cloud: Cloud, candidates: object) -> Tensor:
    """[B, K] minus the distance from the posterior mean of the source's place, metres."""
    w = torch.exp(cloud.log_w)
    mean = torch.stack([(w * cloud.theta[0]).sum(-1), (w * cloud.theta[1]).sum(-1)], -1)
    away = _places(cloud, candidates)[..., :2] - mean.unsqueeze(1)
    return -torch.sqrt((away * away).sum(-1))


def random_scores(cloud: Cloud, candidates: object) -> Tensor:
    """[B, K] numbers that depend on nothing but the beliefs' seeds and steps."""
    k = _places(cloud, candidates).shape[1]
    drawn = [torch.rand(k, generator=one) for one in streams(cloud.seeds, cloud.counts, _RANDOM)]
    return torch.stack(drawn).to(cloud.log_w)


def best(scores: Tensor, allowed: object = None) -> Tensor:
    """[B] the candidate with the highest score among those allowed; the first of equals. Where none is, 0."""
    if allowed is not None:
        may = torch.as_tensor(allowed, dtype=torch.bool, device=scores.device)
        scores = torch.where(may, scores, -math.inf)
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


def plan(
    name: str, cloud: Cloud, candidates: object, *, sensor: Sensor, allowed: object = None, nz: int = 25
) -> Tensor:
    """[B] the candidate that a planner of `PLANNERS` chooses; ConfigError for another name."""
    if name not in PLANNERS:
        raise ConfigError([unknown("planner", name, PLANNERS)])
    judge = PLANNERS[name]
    if judge is not None:
        scores = judge(table(cloud, candidates, sensor=sensor, allowed=allowed, nz=nz))
    else:
        scores = (random_scores if name == "random" else go_to_mean)(cloud, candidates)
    return best(scores, allowed)
