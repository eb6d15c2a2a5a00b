"""BLEU, chrF and ROUGE: worked by hand, equal to the libraries' own corpus scores, and told where they are missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from evolvent.bench.text_metrics import check_text_metrics, measure_texts
from evolvent.errors import BatchMismatch, MissingExtra

ANSWERS = [["the cat sat on the mat"], ["a dog runs in the park now"], ["it is raining today"]]
REFERENCES = [
    ["the cat sat on a mat", "there is a cat on the mat"],
    ["the dog runs in the park"],
    ["today it is raining", "it rains"],
]


def test_rouge_is_the_f1_of_the_best_reference():
    """Words: 5 of 6 and 6, F1 5/6 (first reference); bigrams: cat sat, sat on, the cat are 3 of 5 and 5: 3/5.

    The longest common subsequence is "the cat sat on mat", 5 of 6 and 6.
    """
    pytest.importorskip("rouge_score")
    measures = measure_texts(ANSWERS[:1], REFERENCES[:1], ["rouge1", "rouge2", "rougeL"])
    assert [measure.value for measure in measures] == pytest.approx([5 / 6, 3 / 5, 5 / 6])
    assert [(measure.metric, measure.low, measure.n) for measure in measures[:1]] == [("rouge1", None, 1)]


def test_bleu_by_hand():
    """Unigrams 3/4, bigrams 1/3, no trigram (smoothed to 1 / (2 * 2)), no 4-gram (1 / (4 * 1)); no brevity penalty."""
    pytest.importorskip("sacrebleu")
    (measure,) = measure_texts([["a b c d"]], [["a b d e"]], ["bleu"])
    assert measure.value == pytest.approx(100 * (3 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** 0.25)


def test_a_corpus_scores_as_in_sacrebleu():
    """Also with several references for some questions only."""
    sacrebleu = pytest.importorskip("sacrebleu")
    bleu, chrf = measure_texts(ANSWERS, REFERENCES, ["bleu", "chrf"])
    padded = [[row[0] for row in REFERENCES], [row[1] if len(row) > 1 else None for row in REFERENCES]]
    expected = sacrebleu.metrics.BLEU().corpus_score([row[0] for row in ANSWERS], padded)
    assert bleu.value == pytest.approx(expected.score) and bleu.low <= bleu.value <= bleu.high
    single = [sacrebleu.sentence_chrf(row[0], texts).score for row, texts in zip(ANSWERS, REFERENCES, strict=True)]
    assert chrf.value == pytest.approx(np.mean(single)) and bleu.n == chrf.n == 3


def test_a_missing_library_is_told_with_its_install_line(monkeypatch):
    check_text_metrics([])
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingExtra, match=r"pip install 'evolvent\[text\]'"):
        measure_texts(ANSWERS, REFERENCES, ["bleu"])
    with pytest.raises(BatchMismatch, match="answers do not match the references"):
        measure_texts(ANSWERS, REFERENCES[:2], [])
