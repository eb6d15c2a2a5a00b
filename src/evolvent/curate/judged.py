"""What a policy says of rows: hidden states as features, and how easy, hard or instructive they are for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.curate.demonstrations import alone, demonstration, prompt_for
from evolvent.curate.difficulty import answer_logprobs, answer_spans, by_lines, mean_logprob_score
from evolvent.curate.features import answer_features
from evolvent.curate.selectors import ifd_scores, reducible_losses
from evolvent.curate.shards import Row
from evolvent.curate.subset import Measured, TextMeasure
from evolvent.errors import ConfigError, NothingToLearn, Problem, SampleInvalid, VocabularyMismatch

if TYPE_CHECKING:
    from evolvent.learn.token_sequences import Parts
    from evolvent.models.policy import Policy

__all__ = ["QUALITIES", "PolicyMeasure", "Quality"]

Quality = Literal["none", "easiness", "difficulty", "ifd", "reducible"]
QUALITIES: tuple[Quality, ...] = ("none", "easiness", "difficulty", "ifd", "reducible")


@dataclass(frozen=True)
class PolicyMeasure:
    """What a policy says of demonstrations (see `curate.demonstrations` for the rows that are some).

    Args:
        policy: who is asked. name: a digest of it (`LocalVerbs.origin`), part of the settings.
        features: "policy": the mean of its hidden states at the answer; "text": those of `text`; "none".
        quality: "easiness": the geometric mean of the answer's probabilities (P3's s, arXiv 2408.05541), "difficulty":
            1 less it; "ifd": how little the prompt helps (2308.12032); "reducible": its loss less the reference's
            (2206.07137); "none".
        lines: easiness and difficulty line by line. truncate: cut what is longer than the context; else it cannot be
            used.
        text: features of texts, and a field for quality. reference: for "reducible": a policy trained on held-out data,
            and its digest.
    Raises:
        ConfigError: reducible without a reference, or a reference with another tokenizer.
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
            raise ConfigError([Problem("reference", "a reducible loss is over that of another model", "name one")])
        if self.reference is not None:
            from evolvent.learn.sources import vocabulary_digest

            if len({vocabulary_digest(one.tokenizer) for one in (self.policy, self.reference[0])}) > 1:
                raise ConfigError(
                    [
                        Problem(
                            "reference",
                            "it has another tokenizer than the policy",
                            "losses are compared over the same tokens: choose another",
                        )
                    ]
                )

    def settings(self) -> Mapping[str, Any]:
        """Everything that results depend on; policies by their digests."""
        return {
            "policy": self.name,
            "features": self.features,
            "quality": self.quality,
            "lines": self.lines,
            "truncate": self.truncate,
            "text": dict(self.text.settings()) if self._texts else None,
            "reference": None if self.reference is None else self.reference[1],
        }

    @property
    def _texts(self) -> bool:
        return self.features == "text" or bool(self.text.quality)

    def __call__(self, rows: Sequence[Row]) -> Measured:
        """Rows that are no demonstration for the policy cannot be used, nor those without a text that is asked for."""
        told = self.text(rows) if self._texts else None
        refused = dict(told.refused) if told is not None else {}
        prompt = prompt_for(self.policy)
        parts: dict[int, Parts] = {}
        bare: dict[int, Parts] = {}
        for at, row in enumerate(rows):
            if at in refused:
                continue
            try:
                part = demonstration(
                    row,
                    self.policy,
                    name=f"row-{at}",
                    prompt=prompt,
                    too_long="truncate" if self.truncate else "refuse",
                )
                if self.quality == "ifd":
                    bare[at] = alone(part, self.policy)
                parts[at] = by_lines(part, self._decode) if self.lines else part
            except (SampleInvalid, VocabularyMismatch, NothingToLearn) as error:
                refused[at] = str(error)
        used = list(parts.values())
        kept = [at for at in range(len(rows)) if told is not None and at not in told.refused]
        mine = [number for number, at in enumerate(kept) if at in parts]
        if told is not None and self.features == "text":
            features: NDArray[np.floating] = told.features[mine]
        elif self.features == "policy" and used:
            features = answer_features(self.policy, used)
        else:
            features = np.ones((len(used), 1))
        quality = self._quality(used, list(bare.values()))
        if told is not None and told.quality is not None:
            quality = told.quality[mine]
        return Measured(features, quality, dict(sorted(refused.items())))

    def _decode(self, token: int) -> str:
        return str(self.policy.tokenizer.decode([token]))

    def _quality(self, parts: Sequence[Parts], bare: Sequence[Parts]) -> NDArray[np.float64] | None:
        if self.quality == "none":
            return None
        if not parts:
            return np.zeros(0)
        said = answer_logprobs(self.policy, parts)
        if self.quality == "ifd":
            return ifd_scores(said, answer_logprobs(self.policy, bare))
        if self.quality == "reducible" and self.reference is not None:
            other = answer_logprobs(self.reference[0], parts)
            return reducible_losses(*([-float(np.mean(one)) for one in each] for each in (said, other)))
        spans = [answer_spans(part) for part in parts] if self.lines else None
        scores = mean_logprob_score(said, spans=spans)
        return 1 - scores if self.quality == "difficulty" else scores
