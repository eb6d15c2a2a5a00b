"""BLEU, chrF and ROUGE of generated texts, by the libraries that papers quote.

BLEU and chrF are those of sacrebleu (Post, "A Call for Clarity in Reporting BLEU Scores", arXiv 1804.08771), on its
scale of 0 to 100 and with its tokenizer; ROUGE is that of Google's rouge-score, F1 from 0 to 1 against the best
reference. `pip install 'evolvent[text]'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.bench.measures import LEVEL, RESAMPLES, Measure, mean_measure
from evolvent.errors import BatchMismatch, MissingExtra
from evolvent.trajectory import sample_rng

__all__ = ["TEXT_METRICS", "TextMetric", "check_text_metrics", "measure_texts"]

TextMetric = Literal["bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum"]
TEXT_METRICS: tuple[TextMetric, ...] = ("bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum")
_MAX_ORDER = 4  # of BLEU's n-grams


def check_text_metrics(metrics: Sequence[TextMetric]) -> None:
    """Raises MissingExtra where a metric's library is not installed."""
    try:
        if {"bleu", "chrf"} & set(metrics):
            import sacrebleu  # noqa: F401
        if any(metric.startswith("rouge") for metric in metrics):
            import rouge_score  # noqa: F401
    except ImportError as error:
        raise MissingExtra("text", "BLEU, chrF or ROUGE") from error


def measure_texts(
    answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]], metrics: Sequence[TextMetric]
) -> list[Measure]:
    """Computes metrics of answers against references, with 95 % intervals that resample questions.

    Args:
        answers: for each question its answers; each is scored. BLEU and chrF count all of them as one corpus.
        references: for each question its references, one or more.
        metrics: names, of `TEXT_METRICS`.
    Raises:
        MissingExtra: the library of a metric is not installed.
        BatchMismatch: the number of questions differs, or a question has no answer or reference.
    """
    check_text_metrics(metrics)
    if len(answers) != len(references) or not all(answers) or not all(references):
        raise BatchMismatch("answers do not match the references", value=len(answers), expected=len(references))
    measures = []
    for metric in metrics:
        if metric == "bleu":
            measures.append(_measure_bleu(answers, references))
        elif metric == "chrf":
            measures.append(_measure_chrf(answers, references))
        else:
            measures.append(_measure_rouge(answers, references, metric))
    return measures


def _measure_bleu(answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Measure:
    """Computes corpus BLEU; its counts are sums over questions, so that resampled sums give its interval."""
    from sacrebleu.metrics import BLEU

    scorer = BLEU(effective_order=True)  # of one question: corpus BLEU below does not read it
    counts = np.zeros((len(answers), 2 * _MAX_ORDER + 2), np.int64)
    for row, (texts, question_references) in enumerate(zip(answers, references, strict=True)):
        for text in texts:
            score = scorer.sentence_score(text, list(question_references))
            counts[row] += [*score.counts, *score.totals, score.sys_len, score.ref_len]

    def corpus_score(sums: NDArray[np.int64]) -> float:
        matches, totals = sums[:_MAX_ORDER].tolist(), sums[_MAX_ORDER : 2 * _MAX_ORDER].tolist()
        system_length, reference_length = sums[-2:].tolist()
        score: float = BLEU.compute_bleu(matches, totals, system_length, reference_length, smooth_method="exp").score
        return score

    rng = sample_rng("evaluators", "bleu")
    draws = rng.multinomial(len(answers), np.full(len(answers), 1.0 / len(answers)), size=RESAMPLES)
    return _with_interval("bleu", corpus_score(counts.sum(0)), [corpus_score(row @ counts) for row in draws], counts)


def _measure_chrf(answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Measure:
    """Computes the mean chrF of the answers (sentence chrF, which is more stable than that of a corpus)."""
    from sacrebleu.metrics import CHRF

    scorer = CHRF()
    scores = [
        np.mean([scorer.sentence_score(text, list(question_references)).score for text in texts])
        for texts, question_references in zip(answers, references, strict=True)
    ]
    return mean_measure(np.asarray(scores, np.float64), np.arange(len(scores)), "chrf", upper=100.0)


def _measure_rouge(
    answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]], metric: TextMetric
) -> Measure:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([metric])
    scores = [
        np.mean([scorer.score_multi(list(question_references), text)[metric].fmeasure for text in texts])
        for texts, question_references in zip(answers, references, strict=True)
    ]
    return mean_measure(np.asarray(scores, np.float64), np.arange(len(scores)), metric, upper=1.0)


def _with_interval(metric: str, value: float, resampled: list[float], counts: NDArray[np.int64]) -> Measure:
    if len(counts) < 2:  # one question: nothing to resample
        return Measure(metric, value, None, None, len(counts))
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Measure(metric, value, low, high, len(counts))
