"""pass@k, from n samples of which c passed (Chen et al. 2021, arXiv 2107.03374, equation 1)."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

from evolvent.errors import ConfigError

__all__ = ["mean_pass_at_k", "pass_at_k"]


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Computes the unbiased probability that at least one of k samples passes: 1 - C(n - c, k) / C(n, k).

    Computed as `1 - prod_{i=n-c+1..n} (1 - k/i)`, which never leaves the range of floats.

    Args:
        samples: n, number of drawn samples, at least k.
        passed: c, number of samples that passed.
        k: Number of attempts, at least 1.
    Raises:
        ConfigError: numbers that do not fit each other.
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ConfigError(
            "cannot compute pass@k", value=(samples, passed, k), expected="passed <= samples, 1 <= k <= samples"
        )
    if samples - passed < k:
        return 1.0
    product = 1.0
    for i in range(samples - passed + 1, samples + 1):
        product *= 1.0 - k / i
    return 1.0 - product


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """Computes the mean of pass@k over problems, each given as (samples, passed).

    Raises:
        ConfigError: as `pass_at_k`, or no problems.
    """
    estimates = [pass_at_k(samples, passed, k) for samples, passed in counts]
    if not estimates:
        raise ConfigError("cannot compute pass@k", value="no problems", expected="at least one")
    return fsum(estimates) / len(estimates)
