"""Sampling: against distributions worked by hand, and against frequencies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.engine.streams import ChoiceTrie, distribution, draw, draw_plain, uniforms
from evolvent.errors import ConfigError

FOUR = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()


def settings_of(n: int = 1, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> dict[str, torch.Tensor]:
    return {
        "temperature": torch.full((n,), temperature),
        "top_k": torch.full((n,), top_k),
        "top_p": torch.full((n,), top_p),
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_k": 9}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.75}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"top_p": 1e-6}, [1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, [4 / 7, 3 / 7, 0, 0]),  # after top-k: .444 .333 .222
        ({"top_k": 2, "temperature": 0.5}, [16 / 25, 9 / 25, 0, 0]),
    ],
)
def test_distributions(changes: dict[str, float], expected: list[float]) -> None:
    found = distribution(FOUR, **settings_of(**changes)).exp()
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_allowed_tokens_share_all_probability() -> None:
    allowed = torch.tensor([[False, True, False, True]])
    np.testing.assert_allclose(
        distribution(FOUR, **settings_of(), allowed=allowed).exp()[0], [0, 0.75, 0, 0.25], atol=1e-6
    )
    greedy = distribution(FOUR, **settings_of(temperature=0.0), allowed=allowed).exp()[0]
    np.testing.assert_allclose(greedy, [0, 1, 0, 0])


def test_rows_do_not_influence_each_other() -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    mixed = {
        "temperature": torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0]),
        "top_k": torch.tensor([0, 0, 4, 0, 1]),
        "top_p": torch.tensor([1.0, 1.0, 0.9, 0.3, 1.0]),
    }
    together = distribution(logits, **mixed)
    for row in range(5):
        alone = distribution(logits[row : row + 1], **{name: value[row : row + 1] for name, value in mixed.items()})
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=0)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 12), st.floats(0.2, 3), st.integers(0, 6), st.floats(0.05, 1))
def test_log_probabilities_are_of_what_was_sampled(seed: int, n: int, temperature: float, k: int, p: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 9, generator=generator) * 3
    setting = settings_of(n, temperature=temperature, top_k=k, top_p=p)
    table = distribution(logits, **setting)
    torch.testing.assert_close(table.exp().sum(-1), torch.ones(n))
    tokens, logprobs = draw(logits, torch.rand(n, generator=generator, dtype=torch.float64), **setting)
    torch.testing.assert_close(table.gather(1, tokens[:, None])[:, 0], logprobs)
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("words", [40, 6000])
def test_plain_draw_equals_the_general_one(words: int) -> None:
    """Bit by bit: a token does not depend on what else is in its batch."""
    logits = torch.randn(200, words, generator=torch.Generator().manual_seed(1))
    uniform = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    plain, general = draw_plain(logits, uniform), draw(logits, uniform, **settings_of(200))
    assert torch.equal(plain[0], general[0]) and torch.equal(plain[1], general[1])
    assert draw_plain(logits[:0], uniform[:0])[0].shape == (0,)


def test_the_inverse_takes_the_first_token_above() -> None:
    """Cumulative .4 .7 .9 1: edges worked by hand; tokens without probability are never drawn."""
    uniform = torch.tensor([0.0, 0.39, 0.41, 0.69, 0.71, 0.89, 0.91, 1 - 2**-53], dtype=torch.float64)
    tokens, _ = draw_plain(FOUR.expand(8, 4), uniform)
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    gaps = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, 5)
    tokens, _ = draw_plain(gaps, torch.tensor([0.0, 0.49, 0.5, 1 - 2**-53], dtype=torch.float64))
    assert tokens.tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("words", [4096, 5000, 32_001])
def test_among_many_words_the_draw_is_the_same(words: int) -> None:
    """Against the inverse CDF in float64; a target within rounding of an edge may fall to either side."""
    generator = torch.Generator().manual_seed(words)
    logits = 3 * torch.randn(64, words, generator=generator)
    logits[1::2, 128:1000] = -torch.inf  # whole blocks, and the end
    logits[3::4, words - 200 :] = -torch.inf
    uniform = torch.rand(64, generator=generator, dtype=torch.float64)
    uniform[:8] = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64).repeat(4)
    tokens, logprobs = draw_plain(logits, uniform)
    exact = logits.double().log_softmax(-1)
    cumulative = exact.exp().cumsum(-1)
    target = uniform * cumulative[:, -1]
    assert (cumulative.gather(1, tokens[:, None])[:, 0] > target - 1e-6).all()
    assert ((cumulative - exact.exp()).gather(1, tokens[:, None])[:, 0] <= target + 1e-6).all()
    same = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0] == tokens
    assert same.float().mean() > 0.9 and len(set(tokens.tolist())) > 32
    torch.testing.assert_close(logprobs.double(), exact.gather(1, tokens[:, None])[:, 0], rtol=0, atol=1e-5)
    assert torch.isfinite(logprobs).all(), "never a token without probability"


def test_many_words_in_their_frequencies() -> None:
    n, logits = 20_000, torch.full((1, 4096), -torch.inf)
    places = [5, 127, 128, 4095]
    logits[0, places] = FOUR.flatten()
    uniform = torch.from_numpy(uniforms(np.arange(n, dtype=np.uint64), np.full(n, 3)))
    tokens = torch.cat([draw_plain(logits.expand(1000, -1), part)[0] for part in uniform.split(1000)])
    counts = np.array([int((tokens == place).sum()) for place in places])
    expected = np.array([0.4, 0.3, 0.2, 0.1]) * n
    assert counts.sum() == n and ((counts - expected) ** 2 / expected).sum() < 16.3  # p .001


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_broken_rows_of_many_words_give_nan(bad: float) -> None:
    logits = torch.zeros(2, 5000)
    logits[0, 4321 if bad > 0 else slice(None)] = bad
    tokens, logprobs = draw_plain(logits, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert logprobs[0].isnan() and float(logprobs[1]) == pytest.approx(-np.log(5000))
    assert int(tokens[1]) == 2500 and 0 <= int(tokens[0]) < 5000


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_broken_rows_give_nan_and_others_do_not(bad: float) -> None:
    logits = FOUR.repeat(2, 1)
    logits[0, 2] = bad
    uniform = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for _, logprobs in (
        draw_plain(logits, uniform),
        draw(logits, uniform, **settings_of(2)),
        draw(logits, uniform, **settings_of(2, temperature=0.0)),
    ):
        assert logprobs[0].isnan() and logprobs[1].isfinite()


def test_random_numbers_are_fixed_and_uniform() -> None:
    """Golden values hold on every machine; the stream passes a chi-square test; neighbours do not go together."""
    seeds, positions = np.array([0, 1, 2**63], np.uint64), np.array([0, 5, 9])
    np.testing.assert_array_equal(
        uniforms(seeds, positions), [split_mix(int(s), int(p)) for s, p in zip(seeds, positions, strict=True)]
    )
    grid = uniforms(np.repeat(np.arange(200, dtype=np.uint64), 100), np.tile(np.arange(100), 200))
    counts = np.histogram(grid, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, p .001
    square = grid.reshape(200, 100)
    assert abs(np.corrcoef(square[:-1].ravel(), square[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(square[:, :-1].ravel(), square[:, 1:].ravel())[0, 1]) < 0.03


def split_mix(seed: int, position: int) -> float:
    """The same with Python's integers."""
    mask = (1 << 64) - 1

    def mixed(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    return (mixed((mixed(seed) + (position + 1) * 0x9E3779B97F4A7C15) & mask) >> 11) * 2.0**-53


def test_frequencies_follow_the_distribution() -> None:
    n = 20_000
    uniform = torch.from_numpy(uniforms(np.arange(n, dtype=np.uint64), np.full(n, 3)))
    tokens, _ = draw_plain(FOUR.expand(n, 4), uniform)
    counts = np.bincount(tokens.numpy(), minlength=4)
    expected = np.array([0.4, 0.3, 0.2, 0.1]) * n
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p .001


def test_choices() -> None:
    trie = ChoiceTrie([(1, 2, 3), (1, 4), (5,)])
    assert trie.allowed(()) == [1, 5]
    assert trie.allowed((1,)) == [2, 4]
    assert trie.allowed((1, 4)) == []
    for bad in ((), ((),), ((1,), (1, 2))):
        with pytest.raises(ConfigError):
            ChoiceTrie(bad)
