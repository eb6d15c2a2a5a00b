"""What turns texts into vectors: hashed n-grams by default, sentence-transformers, a policy's own hidden states.

An encoder is any callable with a name. Its name and a vector of a probe text are kept with what it embedded, so that a
memory is never searched with vectors of another.
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
from evolvent.memory.index import unit_rows

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["Encoder", "HashedNgrams", "HiddenStates", "Named", "SentenceEncoder"]

_WORD = re.compile(r"[^\W_]+|[^\w\s]")
_HASHED = re.compile(r"hashed-ngrams-1/(\d+)/(\d+)")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_PAIR = np.uint64(0x9E3779B97F4A7C15)


class Encoder(Protocol):
    """A callable that embeds texts, and the name under which it is known. Equal texts get equal vectors."""

    @property
    def id(self) -> str:
        """Its name, with everything that its vectors depend on."""
        ...

    def __call__(self, texts: Sequence[str]) -> ArrayLike:
        """`[N, D]` a vector for each text, of any length; they are divided by it where they are compared."""
        ...


@dataclass(frozen=True, slots=True)
class Named:
    """Any callable as an encoder.

    Args:
        id: a name that changes whenever its vectors would. call: `[N]` texts to `[N, D]`.
    """

    id: str
    call: Callable[[Sequence[str]], ArrayLike]

    def __call__(self, texts: Sequence[str]) -> ArrayLike:
        return self.call(texts)


@dataclass(frozen=True, slots=True)
class HashedNgrams:
    """Words, pairs of words and trigrams of letters, hashed into `dim` places with a sign: no model, no download.

    Feature hashing (Weinberger et al., ICML 2009). A feature that occurs n times counts 1 + log n; pairs and trigrams
    count less than words. The hash is of the text alone, so that vectors are the same on every machine and in every
    process. It knows no synonyms: texts are alike where they say the same words.

    Args:
        dim: places; more of them collide less. seed: another draw of places and signs.
    Raises:
        ConfigError: fewer than 8 places, or a negative seed.
    """

    dim: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dim < 8 or self.seed < 0:
            raise ConfigError(
                "no hashed n-grams", value=f"dim {self.dim}, seed {self.seed}", expected="dim >= 8 and seed >= 0"
            )

    @property
    def id(self) -> str:
        return f"hashed-ngrams-1/{self.dim}/{self.seed}"

    @classmethod
    def of_id(cls, name: str) -> HashedNgrams:
        """The encoder of such a name.

        Raises:
            ConfigError: a name of another encoder, which has to be handed in.
        """
        match = _HASHED.fullmatch(name)
        if match is None:
            hint = "give the encoder that the memory was built with, or the folder of its model"
            raise ConfigError([Problem("encoder", f"no hashed n-grams have the name {name!r}", hint)])
        return cls(int(match[1]), int(match[2]))

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        known: dict[str, NDArray[np.uint64]] = {}
        made = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            words = _WORD.findall(text.lower())
            if words:
                made[row] = self._vector([_features(word, self.seed, known) for word in words])
        return unit_rows(made)

    def _vector(self, words: Sequence[NDArray[np.uint64]]) -> NDArray[np.float64]:
        singles = np.fromiter((word[0] for word in words), np.uint64, len(words))
        pairs = _mixed(singles[:-1] * _PAIR + singles[1:])
        letters = np.concatenate([word[1:] for word in words])
        total = np.zeros(self.dim)
        for features, weight in ((singles, 1.0), (pairs, 0.5), (letters, 0.25)):
            each, counts = np.unique(features, return_counts=True)
            signs = np.where(each >> np.uint64(63), -1.0, 1.0)
            places = (each % np.uint64(self.dim)).astype(np.int64)
            total += np.bincount(places, weights=weight * signs * (1 + np.log(counts)), minlength=self.dim)
        return total


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sixty-four bits well stirred (the finish of SplitMix64, Steele et al., OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))


def _features(word: str, seed: int, known: dict[str, NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """The hash of a word, then those of its trigrams with its ends marked; numbers and marks have none."""
    found = known.get(word)
    if found is None:
        framed = f"<{word}>"
        parts = [framed[at : at + 3] for at in range(len(framed) - 2)] if word.isalpha() and len(word) > 2 else []
        digests = [
            hashlib.blake2b(f"{seed} {part}".encode("utf-8", "replace"), digest_size=8).digest()
            for part in (f"word {word}", *parts)
        ]
        found = known[word] = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    return found


class SentenceEncoder:
    """A model of sentence-transformers (the extra `embed`).

    Args:
        model: the folder of a model; the name of one only with `allow_download`.
        allow_download: your word that a model may be fetched from its hub.
        device: where it runs; None: as sentence-transformers chooses. batch: texts of a forward.
    Raises:
        ConfigError: no such folder, and no leave to fetch it. MissingExtra: the extra is not installed.
    """

    def __init__(
        self, model: str | Path, *, allow_download: bool = False, device: str | None = None, batch: int = 64
    ) -> None:
        if not allow_download and not Path(model).is_dir():
            raise ConfigError(
                [Problem("model", f"no folder {str(model)!r}", "name a model's folder, or allow_download=True")]
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
        self.id = f"sentence/{Path(model).name}/{_weights(self._model)}"

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        made = self._model.encode(
            list(texts),
            batch_size=self._batch,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        )
        return np.asarray(made, np.float32)


class HiddenStates:
    """A policy as an encoder: the mean of the last hidden states over the tokens of a text.

    It costs no second model, and is as good as the policy knows its words. The end of a text beyond the context counts,
    not its beginning.

    Args:
        policy: whose model is read; its weights must not change while a memory made with it is in use.
        batch: texts of a forward.
    """

    def __init__(self, policy: Policy, *, batch: int = 16) -> None:
        self._policy, self._batch = policy, batch
        self.id = f"hidden/{type(policy.model).__name__}/{_weights(policy.model)}"

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import torch

        policy, made = self._policy, []
        width = int(policy.model.config.hidden_size)
        was = policy.model.training
        policy.model.eval()
        with torch.inference_mode():
            for at in range(0, len(texts), self._batch):
                ids = [
                    policy.tokenizer(text, add_special_tokens=False)["input_ids"][-policy.context :]
                    for text in texts[at : at + self._batch]
                ]
                made.append(_pooled(policy.model, ids))
        policy.model.train(was)
        return np.concatenate(made) if made else np.zeros((0, width), np.float32)


def _pooled(model: Any, ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """`[B, hidden]` means over each row's own tokens. Attention is causal, so padding at the end changes nothing."""
    import torch

    lengths = torch.tensor([len(row) for row in ids])
    padded = torch.zeros((len(ids), max(1, int(lengths.max()))), dtype=torch.long)
    for row, own in enumerate(ids):
        padded[row, : len(own)] = torch.tensor(own, dtype=torch.long)
    states = model(input_ids=padded.to(model.device), output_hidden_states=True, use_cache=False).hidden_states[-1]
    inside = (torch.arange(padded.shape[1]) < lengths[:, None]).to(states.device)[..., None]
    means: NDArray[np.float32] = (
        ((states.float() * inside).sum(1) / lengths.clamp(min=1).to(states.device)[:, None]).cpu().numpy()
    )
    return means


def _weights(model: Any) -> str:
    """A digest of a model's weights, 16 hex digits."""
    import torch

    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
