"""LoRA adapters on their way to endpoints: a version is the adapter's folder, which a server loads over its base.

    trainer                                           endpoint (vLLM, SGLang, `evolvent serve --policy`)
    adapter of a version -> a folder (peft's files)   serves the base that the adapter is trained on
         name: the label of its weights ------------> loads the folder under that name
    requests that name it -------------------------->  replies of that version

Before anything is played, the first adapter is loaded and a few tokens are sampled with it. Their log-probabilities
tell whether the server has the adapter's base: only servers of ours compare digests themselves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from evolvent.engine.asks import Sampling
from evolvent.engine.served_adapters import ServedAdapter
from evolvent.errors import ConfigError, EndpointError, Incomplete, Problem
from evolvent.models.adapter_notes import AdapterNote, compute_base_digests, read_adapter_note, write_adapter_note
from evolvent.models.policy import Policy
from evolvent.models.snapshots import publish_snapshot
from evolvent.models.tuned import adapter_tensors, kind_of, save_adapter

if TYPE_CHECKING:
    from evolvent.engine.endpoint import Endpoint

__all__ = [
    "AdapterPublisher",
    "check_hand_over_routes",
    "check_served_adapter",
    "count_folder_bytes",
    "measure_sampler_difference",
    "uses_adapter",
]

_NUM_PROBES, _PROBE_TOKENS = 4, 16  # sampled texts of the first adapter, and tokens of their prompts and replies
_MAX_DIFFERENCE = 0.1  # nats between two engines' log-probabilities, on average; 16 bits of one model differ by 0.03


def uses_adapter(policy: Policy) -> bool:
    """Returns whether a policy is a LoRA adapter, which every server loads; others are merged into whole weights."""
    return kind_of(policy.model) == "lora"


def count_folder_bytes(folder: Path) -> int:
    """Counts the bytes of the files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass
class AdapterPublisher:
    """Writes adapters where endpoints find them, each once.

    Args:
        folder: the folder that both sides see.
        keep: number of versions that stay there.
    """

    folder: Path
    keep: int = 2
    _digests: dict[str, str] | None = field(default=None, init=False)
    _base: object = field(default=None, init=False)

    def publish(self, policy: Policy) -> ServedAdapter:
        """Writes the adapter of a policy, alone, and returns it under the label of its weights.

        An adapter that is there already is not written again.

        Raises:
            CheckpointError, StoreError: as it is written.
        """
        digests = self.read_base_digests(policy)
        tensors = adapter_tensors(policy.model)
        name = _make_label(policy, tensors, digests["float32"])
        for path in sorted((self.folder / "snapshots").glob(f"step-{policy.version:06d}*")):
            if _read_label(path) == name:
                return ServedAdapter(name, path.resolve())

        def write(target: Path) -> None:
            location = str(policy.base.folder) if policy.base is not None else ""
            save_adapter(policy.model, target, tensors=tensors, base=location)
            write_adapter_note(target, AdapterNote(policy.version, name, digests), dialect=policy.dialect.name)

        path = publish_snapshot(self.folder, policy.version, write, keep=self.keep)
        return ServedAdapter(name, path.resolve())

    def read_base_digests(self, policy: Policy) -> dict[str, str]:
        """Returns the digests of a policy's base, which stays as it is while its adapter is trained."""
        weights = next(weight for weight in policy.model.parameters() if not weight.requires_grad).data_ptr()
        if self._digests is None or self._base != weights:
            self._digests, self._base = compute_base_digests(policy.model), weights
        return self._digests


def _make_label(policy: Policy, tensors: dict[str, torch.Tensor], base: str) -> str:
    """Returns `evolvent-vVERSION-DIGEST` of an adapter: of every weight, its settings and its base."""
    settings = policy.model.peft_config[policy.model.active_adapter]
    digest = hashlib.sha256(f"{base} {settings.r} {settings.lora_alpha} {settings.use_rslora}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.float().numpy().tobytes())
    return f"evolvent-v{policy.version}-{digest.hexdigest()[:12]}"


def _read_label(folder: Path) -> str:
    try:
        return read_adapter_note(folder).label
    except Incomplete:
        return ""


def check_hand_over_routes(endpoint: Endpoint, policy: Policy, *, sends_adapters: bool | None) -> bool:
    """Checks that an endpoint has the routes for a policy's weights, and returns whether adapters may be sent.

    Args:
        sends_adapters: True: adapters alone; False: whole weights; None: adapters where both sides can.
    Raises:
        ConfigError: a route is missing, or the policy is not a LoRA adapter; names what works.
        EndpointError: no answer.
    """
    if sends_adapters and not uses_adapter(policy):
        message = "the policy is not a LoRA adapter, which alone could be handed over"
        raise ConfigError([Problem("hand_over_as", message, "set --adapter.kind lora, or --hand_over_as whole")])
    if sends_adapters is False or not uses_adapter(policy):
        endpoint.check_weights()
        return False
    try:
        endpoint.check_adapters()
    except ConfigError as error:
        if sends_adapters:
            raise
        check_fallback(endpoint, error)
        return False
    return True


def check_fallback(endpoint: Endpoint, refusal: ConfigError) -> None:
    """Checks that an endpoint that cannot load adapters takes whole weights. Raises ConfigError with both reasons."""
    try:
        endpoint.check_weights()
    except ConfigError as error:
        raise ConfigError([*error.problems, *refusal.problems]) from refusal


def check_served_adapter(endpoint: Endpoint, adapter: ServedAdapter, policy: Policy, *, wait_s: float) -> None:
    """Loads the first adapter, and checks that the endpoint samples with it as the policy does.

    Raises:
        ConfigError: the endpoint refuses it, or serves another base; names what works. EndpointError: no answer.
    """
    hint = "serve the model that the adapter is trained on, or set --hand_over_as whole"
    try:
        endpoint.load_adapter(adapter, wait_s=wait_s)
        difference = measure_sampler_difference(endpoint.using(adapter), policy)
    except EndpointError as error:
        if not (isinstance(error.value, int) or "refused the adapter" in str(error)):
            raise
        reason = f"{endpoint.root} does not load the adapter: {error.hint or error}"
        needs = f"start vLLM or SGLang with --enable-lora --max-lora-rank {_rank(policy)}"
        raise ConfigError([Problem("hand_over_as", reason, f"{needs}, or set --hand_over_as whole")]) from error
    if not difference <= _MAX_DIFFERENCE:
        message = (
            f"{endpoint.root} serves another base than the adapter's: log-probabilities differ by {difference:.2g}, "
            f"expected at most {_MAX_DIFFERENCE}"
        )
        raise ConfigError([Problem("hand_over_as", message, hint)])


def _rank(policy: Policy) -> int:
    return int(policy.model.peft_config[policy.model.active_adapter].r)


def measure_sampler_difference(endpoint: Endpoint, policy: Policy) -> float:
    """Returns the mean absolute difference of log-probabilities between an endpoint and a policy, in nats.

    The endpoint samples a few tokens at temperature 1 after tokens from all over the vocabulary.

    Raises:
        EndpointError: it returned no token, so that nothing can be compared. Others: see `Endpoint.complete`.
    """
    special = set(policy.tokenizer.all_special_ids)
    ordinary = [index for index in range(len(policy.tokenizer)) if index not in special]
    length = max(1, min(_PROBE_TOKENS, policy.context // 4))
    differences = []
    for probe in range(_NUM_PROBES):
        positions = np.linspace(0, len(ordinary) - 1, length + _NUM_PROBES)[probe : probe + length]
        prompt = [ordinary[int(position)] for position in positions]
        reply = endpoint.complete(prompt, sampling=Sampling(), max_tokens=length, seed=probe)
        if reply.tokens is not None and len(reply.tokens.ids):
            logprobs = _compute_logprobs(policy, prompt, reply.tokens.ids.tolist())
            differences.append(np.abs(logprobs - reply.tokens.logprobs).mean())
    if not differences:
        raise EndpointError(
            f"{endpoint.root} returned no tokens to compare with the policy",
            value=f"{_NUM_PROBES} empty replies",
            expected="token ids and log-probabilities",
        )
    return float(np.mean(differences))


@torch.no_grad()
def _compute_logprobs(policy: Policy, prompt: list[int], ids: list[int]) -> np.ndarray:
    """Computes the log-probabilities of the ids after a prompt under the policy."""
    device = next(policy.model.parameters()).device
    was_training = policy.model.training
    policy.model.eval()
    logits = policy.model(torch.tensor([prompt + ids], device=device)).logits[0, len(prompt) - 1 : -1].float()
    policy.model.train(was_training)
    scores = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids, device=device)[:, None])[:, 0]
    return scores.cpu().numpy()
