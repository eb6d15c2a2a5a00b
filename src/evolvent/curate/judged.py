"""Measures by a policy: hidden states as features, and the easiness, difficulty or usefulness of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.curate.demonstrations import answer_only, build_demonstration, prompt_for
from evolvent.curate.difficulty import answer_logprobs, answer_spans, mean_logprob_score, split_by_lines
from evolvent.curate.features import answer_features
from evolvent.curate.selectors import ifd_scores, reducible_losses
from evolvent.curate.shards import Row
from evolvent.curate.subset import RowMeasurements, TextMeasure
from evolvent.errors import ConfigError, NothingToLearn, Problem, SampleInvalid, VocabularyMismatch
from evolvent.trajectory import JsonObject

if TYPE_CHECKING:
    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.models.policy import Policy

__all__ = ["QUALITIES", "PolicyMeasure", "Quality"]

Quality = Literal["none", "easiness", "difficulty", "ifd", "reducible"]
QUALITIES: tuple[Quality, ...] = ("none", "easiness", "difficulty", "ifd", "reducible")


@dataclass(frozen=True)
class PolicyMeasure:
    """Features and quality of demonstrations by a policy (`curate.demonstrations` lists the forms of rows).

    Args:
        policy: The policy.
        name: Digest of the policy (`LocalBackend.origin`), part of the settings.
        features: "policy": mean of its hidden states at the answer; "text": features of `text`; "none".
        quality: "easiness": geometric mean of the answer's probabilities (P3's s, arXiv 2408.05541); "difficulty":
            1 minus it; "ifd": how little the prompt helps (2308.12032); "reducible": its loss minus that of the
            reference (2206.07137); "none".
        lines: Whether easiness and difficulty are computed line by line.
        truncate: Whether rows longer than the context are truncated; otherwise they are refused.
        text: Features of texts, and the field for quality.
        reference: For "reducible": a policy trained on held-out data, and its digest.
    Raises:
        ConfigError: "reducible" without a reference, or a reference with another tokenizer.
    """

    policy: Policy
    name: str
    features: Literal["policy", "text", "none"] = "policy"
    quality: Quality = "easiness"
    lines: bool = False
    truncate: bool = False
    text: TextMeasure = field(default_factory=TextMeasure)
    reference: tuple[Policy, str] | None = None

    def __post_init__(self) -> None:
        if self.quality == "reducible" and self.reference is None:
            raise ConfigError([Problem("reference", "a reducible loss needs a reference model", "set reference")])
        if self.reference is not None:
            from evolvent.learn.sources import vocabulary_digest

            if len({vocabulary_digest(candidate.tokenizer) for candidate in (self.policy, self.reference[0])}) > 1:
                raise ConfigError(
                    [
                        Problem(
                            "reference",
                            "its tokenizer differs from the policy's",
                            "choose a reference with the same tokenizer",
                        )
                    ]
                )

    def settings(self) -> JsonObject:
        """Returns everything that results depend on; policies by their digests."""
        return {
            "policy": self.name,
            "features": self.features,
            "quality": self.quality,
            "lines": self.lines,
            "truncate": self.truncate,
            "text": dict(self.text.settings()) if self._uses_texts else None,
            "reference": None if self.reference is None else self.reference[1],
        }

    @property
    def _uses_texts(self) -> bool:
        return self.features == "text" or bool(self.text.quality)

    def __call__(self, rows: Sequence[Row]) -> RowMeasurements:
        """Measures rows; refuses rows that are not a demonstration for the policy, and rows without a required text."""
        text_measured = self.text(rows) if self._uses_texts else None
        refused = dict(text_measured.refused) if text_measured is not None else {}
        prompt = prompt_for(self.policy)
        sequences: dict[int, TokenSequence] = {}
        answers_only: dict[int, TokenSequence] = {}
        for index, row in enumerate(rows):
            if index in refused:
                continue
            try:
                sequence = build_demonstration(
                    row,
                    self.policy,
                    name=f"row-{index}",
                    prompt=prompt,
                    too_long="truncate" if self.truncate else "refuse",
                )
                if self.quality == "ifd":
                    answers_only[index] = answer_only(sequence, self.policy)
                sequences[index] = split_by_lines(sequence, self._decode) if self.lines else sequence
            except (SampleInvalid, VocabularyMismatch, NothingToLearn) as error:
                refused[index] = str(error)
        used_sequences = list(sequences.values())
        text_rows = [
            index for index in range(len(rows)) if text_measured is not None and index not in text_measured.refused
        ]
        shared_indices = [text_index for text_index, index in enumerate(text_rows) if index in sequences]
        if text_measured is not None and self.features == "text":
            features: NDArray[np.floating] = text_measured.features[shared_indices]
        elif self.features == "policy" and used_sequences:
            features = answer_features(self.policy, used_sequences)
        else:
            features = np.ones((len(used_sequences), 1))
        quality = self._compute_quality(used_sequences, list(answers_only.values()))
        if text_measured is not None and text_measured.quality is not None:
            quality = text_measured.quality[shared_indices]
        return RowMeasurements(features, quality, dict(sorted(refused.items())))

    def _decode(self, token: int) -> str:
        return str(self.policy.tokenizer.decode([token]))

    def _compute_quality(
        self, sequences: Sequence[TokenSequence], answers_only: Sequence[TokenSequence]
    ) -> NDArray[np.float64] | None:
        if self.quality == "none":
            return None
        if not sequences:
            return np.zeros(0)
        policy_logprobs = answer_logprobs(self.policy, sequences)
        if self.quality == "ifd":
            return ifd_scores(policy_logprobs, answer_logprobs(self.policy, answers_only))
        if self.quality == "reducible" and self.reference is not None:
            reference_logprobs = answer_logprobs(self.reference[0], sequences)
            return reducible_losses(
                *(
                    [-float(np.mean(token_logprobs)) for token_logprobs in sample_logprobs]
                    for sample_logprobs in (policy_logprobs, reference_logprobs)
                )
            )
        spans = [answer_spans(sequence) for sequence in sequences] if self.lines else None
        scores = mean_logprob_score(policy_logprobs, spans=spans)
        return 1 - scores if self.quality == "difficulty" else scores
