"""Encoders of texts to vectors: hashed n-grams by default, sentence-transformers, or a policy's hidden states.

An encoder is any callable with a name. Its name and the vector of a probe text are stored with its embeddings,
so that a memory is never searched with vectors of another encoder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import ConfigError, MissingExtra, Problem, boundary
from evolvent.memory.index import normalize_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from evolvent.models.policy import Policy

__all__ = ["Encoder", "HashedNgrams", "HiddenStates", "NamedEncoder", "SentenceEncoder"]

_WORD = re.compile(r"[^\W_]+|[^\w\s]")
_HASHED = re.compile(r"hashed-ngrams-1/(\d+)/(\d+)")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_PAIR = np.uint64(0x9E3779B97F4A7C15)


class Encoder(Protocol):
    """A named callable that embeds texts. Equal texts get equal vectors."""

    @property
    def id(self) -> str:
        """Returns its name, with everything that its vectors depend on."""
        ...

    def __call__(self, texts: Sequence[str]) -> ArrayLike:
        """Computes a vector for each text, `[N, D]`, of any length; comparisons normalize them."""
        ...


@dataclass(frozen=True, slots=True)
class NamedEncoder:
    """Any callable as an encoder.

    Args:
        id: Name that changes whenever its vectors would.
        embed: Embeds `[N]` texts as `[N, D]`.
    """

    id: str
    embed: Callable[[Sequence[str]], ArrayLike]

    def __call__(self, texts: Sequence[str]) -> ArrayLike:
        return self.embed(texts)


@dataclass(frozen=True, slots=True)
class HashedNgrams:
    """Words, pairs of words and letter trigrams, hashed to `dim` signed positions: no model, no download.

    Feature hashing (Weinberger et al., ICML 2009). A feature that occurs n times counts 1 + log n; pairs and
    trigrams count less than words. The hash depends on the text alone, so vectors are the same on every machine and
    in every process. It does not know synonyms: texts are similar where they share words.

    Args:
        dim: Number of positions; more positions have fewer collisions.
        seed: Seed of positions and signs.
    Raises:
        ConfigError: fewer than 8 positions, or a negative seed.
    """

    dim: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dim < 8 or self.seed < 0:
            raise ConfigError(
                "invalid settings of hashed n-grams",
                value=f"dim {self.dim}, seed {self.seed}",
                expected="dim >= 8 and seed >= 0",
            )

    @property
    def id(self) -> str:
        return f"hashed-ngrams-1/{self.dim}/{self.seed}"

    @classmethod
    def from_id(cls, name: str) -> HashedNgrams:
        """Creates the encoder of a name.

        Raises:
            ConfigError: a name of another encoder, which has to be handed in.
        """
        match = _HASHED.fullmatch(name)
        if match is None:
            hint = "pass the encoder that the memory was built with, or its model folder"
            raise ConfigError([Problem("encoder", f"unknown hashed n-gram encoder {name!r}", hint)])
        return cls(int(match[1]), int(match[2]))

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        cache: dict[str, NDArray[np.uint64]] = {}
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            tokens = _WORD.findall(text.lower())
            if tokens:
                vectors[row] = self._embed([_hash_word(token, self.seed, cache) for token in tokens])
        return normalize_rows(vectors)

    def _embed(self, word_hashes: Sequence[NDArray[np.uint64]]) -> NDArray[np.float64]:
        singles = np.fromiter((hashes[0] for hashes in word_hashes), np.uint64, len(word_hashes))
        pairs = _mix(singles[:-1] * _PAIR + singles[1:])
        letters = np.concatenate([hashes[1:] for hashes in word_hashes])
        total = np.zeros(self.dim)
        for features, weight in ((singles, 1.0), (pairs, 0.5), (letters, 0.25)):
            unique_features, counts = np.unique(features, return_counts=True)
            signs = np.where(unique_features >> np.uint64(63), -1.0, 1.0)
            positions = (unique_features % np.uint64(self.dim)).astype(np.int64)
            total += np.bincount(positions, weights=weight * signs * (1 + np.log(counts)), minlength=self.dim)
        return total


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns well mixed 64-bit values (the finalizer of SplitMix64, Steele et al., OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))


def _hash_word(word: str, seed: int, cache: dict[str, NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Computes the hash of a word, then those of its trigrams with marked ends; numbers and punctuation have none."""
    hashes = cache.get(word)
    if hashes is None:
        framed = f"<{word}>"
        parts = (
            [framed[start : start + 3] for start in range(len(framed) - 2)] if word.isalpha() and len(word) > 2 else []
        )
        digests = [
            hashlib.blake2b(f"{seed} {part}".encode("utf-8", "replace"), digest_size=8).digest()
            for part in (f"word {word}", *parts)
        ]
        hashes = cache[word] = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    return hashes


class SentenceEncoder:
    """A model of sentence-transformers (the extra `embed`).

    Args:
        model: Folder of a model; the name of a model only with `allow_download`.
        allow_download: Whether a model may be downloaded from its hub.
        device: Device of the model; None: chosen by sentence-transformers.
        batch: Texts of a forward.
    Raises:
        ConfigError: no such folder, and no permission to download it. MissingExtra: the extra is not installed.
    """

    def __init__(
        self, model: str | Path, *, allow_download: bool = False, device: str | None = None, batch: int = 64
    ) -> None:
        if not allow_download and not Path(model).is_dir():
            raise ConfigError(
                [
                    Problem(
                        "model", f"folder {str(model)!r} not found", "pass a model folder, or set allow_download=True"
                    )
                ]
            )
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtra("embed", "embedding with sentence-transformers") from error
        with boundary(ConfigError, "sentence-transformers cannot load the model", model=str(model)):
            self._model: Any = SentenceTransformer(
                str(model),
                device=device,
                local_files_only=not allow_download,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        self._batch = batch
        self.id = f"sentence/{Path(model).name}/{_weights_digest(self._model)}"

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = self._model.encode(
            list(texts),
            batch_size=self._batch,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        )
        return np.asarray(vectors, np.float32)


class HiddenStates:
    """A policy as an encoder: the mean of the last hidden states over the tokens of a text.

    It needs no second model, and its quality is that of the policy. Of a text longer than the context the end
    counts.

    Args:
        policy: The policy; its weights must not change while a memory made with it is in use.
        batch: Texts of a forward.
    """

    def __init__(self, policy: Policy, *, batch: int = 16) -> None:
        self._policy, self._batch = policy, batch
        self.id = f"hidden/{type(policy.model).__name__}/{_weights_digest(policy.model)}"

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import torch

        policy, pooled = self._policy, []
        width = int(policy.model.config.hidden_size)
        was_training = policy.model.training
        policy.model.eval()
        with torch.inference_mode():
            for start in range(0, len(texts), self._batch):
                ids = [
                    policy.tokenizer(text, add_special_tokens=False)["input_ids"][-policy.context :]
                    for text in texts[start : start + self._batch]
                ]
                pooled.append(_pool_states(policy.model, ids))
        policy.model.train(was_training)
        return np.concatenate(pooled) if pooled else np.zeros((0, width), np.float32)


def _pool_states(model: PreTrainedModel, ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Computes means `[B, hidden]` over each row's tokens. Attention is causal, so padding at the end changes
    nothing.
    """
    import torch

    lengths = torch.tensor([len(row) for row in ids])
    padded = torch.zeros((len(ids), max(1, int(lengths.max()))), dtype=torch.long)
    for row, row_ids in enumerate(ids):
        padded[row, : len(row_ids)] = torch.tensor(row_ids, dtype=torch.long)
    states = model(input_ids=padded.to(model.device), output_hidden_states=True, use_cache=False).hidden_states[-1]
    inside = (torch.arange(padded.shape[1]) < lengths[:, None]).to(states.device)[..., None]
    means: NDArray[np.float32] = (
        ((states.float() * inside).sum(1) / lengths.clamp(min=1).to(states.device)[:, None]).cpu().numpy()
    )
    return means


def _weights_digest(model: PreTrainedModel) -> str:
    """Computes a digest of a model's weights, 16 hex digits."""
    import torch

    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
