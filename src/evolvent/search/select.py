"""Selection rules of tree searches: pure functions on the arrays `[A]` of one node's children.

q: the children's mean values. prior: their probabilities P. visits: N of each, parent_visits: N of the node
itself.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem

__all__ = [
    "Schedule",
    "Select",
    "complete_values",
    "dirichlet_noise",
    "gumbel_scores",
    "halving_schedule",
    "improved_policy",
    "interior_scores",
    "mixed_value",
    "normalize_values",
    "puct",
    "rescale_values",
    "sigma",
    "uct",
]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Schedule = Literal["mctx", "rescale"]
_MIN_RANGE = 1e-8  # the least range that values are divided by; mctx takes the same


class Select(Protocol):
    """A rule that scores the children of a node `[A]`; the search goes to the highest score."""

    def __call__(self, q: Floats, prior: Floats, *, parent_visits: int, visits: Counts) -> Floats: ...


# ------------------------------------------------------------------ PUCT and UCT


def puct(
    q: Floats, prior: Floats, *, parent_visits: int, visits: Counts, c_init: float = 1.25, c_base: float = 19652.0
) -> Floats:
    """Computes `Q + P sqrt(N_parent) / (1 + N) (c_init + ln((N_parent + c_base + 1) / c_base))`, scores `[A]`.

    Source: Silver et al., Science 362, 2018 (AlphaZero), pseudocode; Schrittwieser et al., arXiv 1911.08265
    (MuZero), appendix B, equation 2. The scripts of TS-LLM (arXiv 2309.17179) set c_init to 3.

    Args:
        q: `[A]`. Mean values of the children.
        prior: `[A]`. Probabilities of the children.
        parent_visits: N of the node itself.
        visits: `[A]`. N of each child.
        c_init, c_base: constants of the exploration rate.
    """
    scale = c_init + math.log((parent_visits + c_base + 1.0) / c_base)
    scores: Floats = q + prior * (scale * math.sqrt(parent_visits)) / (1.0 + visits)
    return scores


def uct(q: Floats, prior: Floats, *, parent_visits: int, visits: Counts, c: float = 2.0) -> Floats:
    """Computes `Q + c sqrt(ln(N_parent) / N)`, scores `[A]`, infinite where N is 0; the prior is ignored.

    Source: Kocsis and Szepesvari, "Bandit based Monte-Carlo planning", ECML 2006 (UCB1 of Auer et al., 2002).

    Args:
        q: `[A]`. Mean values of the children.
        prior: `[A]`. Ignored.
        parent_visits: N of the node itself.
        visits: `[A]`. N of each child.
        c: exploration constant.
    """
    spread = math.log(max(parent_visits, 1)) / np.maximum(visits, 1)
    return np.where(visits > 0, q + c * np.sqrt(spread), np.inf)


def dirichlet_noise(prior: Floats, rng: np.random.Generator, *, share: float = 0.25, alpha: float = 0.3) -> Floats:
    """Computes `(1 - share) P + share Dir(alpha)`, probabilities `[A]`: noise on the priors of a root (AlphaZero).

    Args:
        prior: `[A]`. Probabilities P of the children.
        share: weight of the noise. alpha: of the Dirichlet distribution.
    """
    return (1.0 - share) * prior + share * rng.dirichlet(np.full(len(prior), alpha))


def normalize_values(q: Floats, *, visits: Counts, parent: float) -> Floats:
    """Normalizes values to 0..1 over the siblings and the node itself; 0 for children that were not visited.

    As MuZero's search normalizes values, node by node (mctx, `qtransform_by_parent_and_siblings`).

    Args:
        q: `[A]`. Mean values of the children.
        visits: `[A]`. N of each child.
        parent: the node's own mean value.
    """
    is_visited = visits > 0
    known_values = np.where(is_visited, q, parent)
    low, high = min(parent, known_values.min()), max(parent, known_values.max())
    return np.where(is_visited, (q - low) / max(high - low, _MIN_RANGE), 0.0)


# ------------------------------------------------------------------ Gumbel search
# Danihelka, Guez, Schrittwieser, Silver, "Policy improvement by planning with Gumbel", ICLR 2022.


def mixed_value(q: Floats, prior: Floats, *, visits: Counts, raw: float) -> float:
    """Computes `(raw + sum(N) sum_{N>0}(P q) / sum_{N>0}(P)) / (1 + sum(N))`: a node's value, for its unvisited
    children.

    Source: the paper's appendix D.

    Args:
        q: `[A]`. Mean values of the children.
        prior: `[A]`. Probabilities P of the children.
        visits: `[A]`. N of each child.
        raw: the value that the node was given.
    """
    is_visited = visits > 0
    if not is_visited.any():
        return raw
    shares = np.maximum(prior[is_visited], np.finfo(np.float64).tiny)
    weighted = float((shares * q[is_visited]).sum() / shares.sum())
    total = int(visits.sum())
    return (raw + total * weighted) / (1 + total)


def complete_values(q: Floats, prior: Floats, *, visits: Counts, raw: float) -> Floats:
    """Returns q where a child was visited, and the mixed value elsewhere, `[A]`."""
    return np.where(visits > 0, q, mixed_value(q, prior, visits=visits, raw=raw))


def rescale_values(q: Floats) -> Floats:
    """Computes `(q - min q) / (max q - min q)`, `[A]`: a constant added to all values changes nothing."""
    low = q.min()
    scaled: Floats = (q - low) / max(float(q.max() - low), _MIN_RANGE)
    return scaled


def sigma(q: Floats, *, visits: Counts, c_visit: float = 50.0, c_scale: float = 0.1) -> Floats:
    """Computes `c_scale (c_visit + max N) q`, `[A]`: a monotone transformation of values."""
    return c_scale * (c_visit + float(visits.max())) * q


def improved_policy(prior: Floats, transformed_values: Floats) -> Floats:
    """Computes `softmax(ln P + sigma(completed q))`, `[A]`: also a training target for a policy.

    Args:
        prior: `[A]`. Probabilities P of the children.
        transformed_values: sigma of the completed values, `[A]`.
    """
    logits = _log_prior(prior) + transformed_values
    weights = np.exp(logits - logits.max())
    policy: Floats = weights / weights.sum()
    return policy


def interior_scores(prior: Floats, transformed_values: Floats, *, visits: Counts) -> Floats:
    """Computes `softmax(ln P + sigma(completed q)) - N / (1 + sum N)`, `[A]`: the choice below the root (section 5).

    Args:
        prior: `[A]`. Probabilities P of the children.
        transformed_values: sigma of the completed values, `[A]`.
        visits: `[A]`. N of each child.
    """
    scores: Floats = improved_policy(prior, transformed_values) - visits / (1.0 + visits.sum())
    return scores


def gumbel_scores(prior: Floats, transformed_values: Floats, *, noise: Floats) -> Floats:
    """Computes `g + ln P + sigma(q)`, `[A]`: it ranks actions at the root, the survivors, and the final choice.

    Args:
        prior: `[A]`. Probabilities P of the children.
        transformed_values: sigma of the completed values. noise: g, drawn from Gumbel(0, 1), both `[A]`.
    """
    return noise + _log_prior(prior) + transformed_values


def halving_schedule(considered: int, simulations: int, kind: Schedule = "mctx") -> tuple[int, ...]:
    """Returns how often each simulated action was visited before, in order of simulations, `[simulations]`.

    A run of k equal numbers v is one visit to k actions that were visited v times.

    - "mctx": phases of `max(1, floor(n / (ceil(log2 m) k)))` visits to each of k actions, then k is halved, down to
      2, until n are spent.
    - "rescale": floor(log2 m) phases, k halved from one to the next; each gives every action the same share of the
      remaining simulations, and the last one all that are left (arXiv 2603.21162).

    Source: Karnin, Koren, Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013.

    Args:
        considered: m. simulations: n.
    Raises:
        ConfigError: one of them is below 1.
    """
    problems = [
        Problem(name, f"got {size}, expected 1 or more")
        for name, size in (("considered", considered), ("simulations", simulations))
        if size < 1
    ]
    if problems:
        raise ConfigError(problems)
    if considered == 1:
        return tuple(range(simulations))
    sequence: list[int] = []
    width, visit_count, phase = considered, 0, 0
    phases = considered.bit_length() - 1 if kind == "rescale" else (considered - 1).bit_length()
    while len(sequence) < simulations:
        if kind == "mctx":
            visits = simulations // (phases * width)
        elif phase < phases - 1:
            visits = (simulations - len(sequence)) // ((phases - phase) * width)
        else:
            visits = simulations
        for _ in range(max(1, visits)):
            sequence += [visit_count] * width
            visit_count += 1
            if len(sequence) >= simulations:
                break
        width, phase = max(2, width // 2), phase + 1
    return tuple(sequence[:simulations])


def _log_prior(prior: Floats) -> Floats:
    return np.log(np.maximum(prior, np.finfo(np.float64).tiny))
