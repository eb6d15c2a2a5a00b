"""Scored rollouts: played episodes with the outputs of policy, critic and reference, ready for advantage estimation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.engine.asks import Sampling
from evolvent.engine.streams import ChoiceTrie
from evolvent.errors import BatchMismatch
from evolvent.learn.forward import compute_outputs, eval_mode, report_memory_errors, target_logits
from evolvent.learn.objectives import Outputs, require_output
from evolvent.learn.parallel.ranks import SINGLE_PROCESS, Ranks
from evolvent.learn.prefix_sharing import PrefixSharing, build_batches
from evolvent.learn.token_sequences import Batch, TokenSequence
from evolvent.models.dialects import Chat, Dialect
from evolvent.models.policy import Policy
from evolvent.rl.advantages import Advantages
from evolvent.rl.candidates import add_candidates, chosen_logprobs
from evolvent.rl.estimators import AdvantageEstimator
from evolvent.rl.rollout_batch import CUT_OFF, TRUNCATED, RolloutBatch, RolloutReport
from evolvent.trajectory import Array, JsonObject, Trajectory, sample_seed

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

__all__ = [
    "HistoryTruncation",
    "ScoreKind",
    "ScoredRollout",
    "ScoringConfig",
    "add_choice_support",
    "add_top_k_support",
    "append_final_observations",
    "evaluate_targets",
    "gather_column",
    "score_rollout",
    "score_sequences",
    "set_final_values",
]


ScoreKind = Literal["logprobs", "values", "entropy"]
_LOGPROBS: tuple[ScoreKind, ...] = ("logprobs",)
OutputFunction = Callable[["nn.Module", Batch], Mapping[str, Tensor]]
_MAX_LOGITS = 1 << 27  # of one forward: half a gibibyte in float32
_MEMORY_HINT = "lower train.max_tokens_per_forward"


def score_sequences(
    policy: Policy,
    sequences: Sequence[TokenSequence],
    *,
    needs: Collection[ScoreKind] = _LOGPROBS,
    temperature: float = 1.0,
    max_tokens_per_forward: int | None = None,
    dtype: torch.dtype = torch.float32,
    sharing: PrefixSharing | None = None,
    ranks: Ranks = SINGLE_PROCESS,
) -> list[dict[str, NDArray[np.float32]]]:
    """Scores every sequence: for each need a column `[T]`, 0 at tokens without weight.

    The value at a token is that of the prefix before it. Where a sequence has the column "support", log-probabilities
    and entropy are of its tokens alone (see `Objective.temperature`).

    Args:
        sequences: token sequences.
        needs: "logprobs", "entropy", or "values" of the policy's value head.
        temperature: sampling temperature of the tokens.
        max_tokens_per_forward: token limit of a forward pass, padding included; None: as many as give half a gibibyte
            of logits.
        dtype: float32, or bfloat16 for an autocast forward pass.
        sharing: how sequences share rows; None: each has its own.
        ranks: the ranks that share the forward passes; each has the whole policy.
    Raises:
        DeviceMemory: a forward pass does not fit.
    """

    def read_outputs(model: PreTrainedModel, batch: Batch) -> Mapping[str, Tensor]:
        model_outputs: Outputs = compute_outputs(model, batch, needs=tuple(needs), dtype=dtype, temperature=temperature)
        return {name: getattr(model_outputs, name) for name in needs}

    with _attach_value_head(policy) if "values" in needs else nullcontext():
        return evaluate_targets(
            policy.model,
            sequences,
            read_outputs,
            max_tokens_per_forward=max_tokens_per_forward,
            sharing=sharing,
            ranks=ranks,
        )


def add_top_k_support(
    policy: Policy,
    sequences: Sequence[TokenSequence],
    *,
    top_k: int,
    temperature: float,
    max_tokens_per_forward: int | None = None,
    sharing: PrefixSharing | None = None,
    ranks: Ranks = SINGLE_PROCESS,
) -> list[TokenSequence]:
    """Adds column "support" `[T, K]` int32 to the sequences: the tokens that top-k left at every learned token.

    It uses the weights that sampled, before any update. Later the same tokens stay the support, so that a ratio
    compares two distributions over one set. A sampled token that rounding pushed out of it takes the last entry.
    """

    def compute_support(model: PreTrainedModel, batch: Batch) -> Mapping[str, Tensor]:
        logits = target_logits(model, batch).float() / temperature
        top_tokens = logits.topk(min(top_k, logits.shape[-1]), dim=-1).indices
        is_missing = ~(top_tokens == batch.targets[:, None]).any(-1)
        top_tokens[:, -1] = torch.where(is_missing, batch.targets, top_tokens[:, -1])
        return {"support": top_tokens.int()}

    support_columns = evaluate_targets(
        policy.model,
        sequences,
        compute_support,
        max_tokens_per_forward=max_tokens_per_forward,
        sharing=sharing,
        ranks=ranks,
    )
    return [
        replace(sequence, columns={**sequence.columns, **column})
        for sequence, column in zip(sequences, support_columns, strict=True)
    ]


def add_choice_support(trajectories: Sequence[Trajectory], sequences: Sequence[TokenSequence]) -> list[TokenSequence]:
    """Adds column "support" `[T, K]` int32 to the sequences: the tokens that could still become a listed action.

    It serves episodes whose actions were sampled among the world's possible ones (`LanguageAgent(choose=True)`), and
    reads the notes of their steps.

    Raises:
        BatchMismatch: a learned step did not note the actions that it chose from.
    """
    trajectories_by_id = {trajectory.id: trajectory for trajectory in trajectories}
    allowed = [_allowed_tokens(trajectories_by_id[sequence.trajectory], sequence) for sequence in sequences]
    width = max((len(ids) for allowed_tokens in allowed for ids in allowed_tokens.values()), default=1)
    extended = []
    for sequence, allowed_tokens in zip(sequences, allowed, strict=True):
        support = np.full((len(sequence), width), -1, np.int32)
        for position, ids in allowed_tokens.items():
            support[position, : len(ids)] = ids
        extended.append(replace(sequence, columns={**sequence.columns, "support": support}))
    return extended


def _allowed_tokens(trajectory: Trajectory, sequence: TokenSequence) -> dict[int, list[int]]:
    """Returns the tokens that were possible at every learned position of a sequence."""
    allowed_by_position: dict[int, list[int]] = {}
    tries: dict[int, ChoiceTrie] = {}
    prefix: tuple[int, ...] = ()
    previous_step = -1
    for position in np.flatnonzero((sequence.weight != 0) & sequence.sampled).tolist():
        number = int(sequence.step[position])
        if number not in tries:
            choices = trajectory.steps[number].info.get("choices")
            if not choices:
                raise BatchMismatch(
                    f"step {number} of trajectory {trajectory.id!r} has no candidates",
                    hint="collect episodes with choose=True",
                )
            tries[number] = ChoiceTrie(choices)
        prefix = prefix if number == previous_step else ()
        allowed_by_position[position], previous_step = tries[number].allowed(prefix), number
        prefix = (*prefix, int(sequence.ids[position]))
    return allowed_by_position


def evaluate_targets(
    model: PreTrainedModel,
    sequences: Sequence[TokenSequence],
    compute: OutputFunction,
    *,
    max_tokens_per_forward: int | None = None,
    sharing: PrefixSharing | None = None,
    ranks: Ranks = SINGLE_PROCESS,
) -> list[dict[str, Array]]:
    """Evaluates a function at the targets of each sequence and spreads its results over the tokens, `[T, ...]`.

    Args:
        compute: takes the model and a batch on its device; returns tensors `[N, ...]`, one entry per target.
        ranks: the ranks that share the forward passes. The passes are those of one process, and so are the results,
            whatever their number.
    """
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    budget, rng = max_tokens_per_forward or max(1, _MAX_LOGITS // vocabulary), np.random.default_rng(0)
    columns: list[dict[str, NDArray[Any]]] = [{} for _ in sequences]
    learned = [index for index, sequence in enumerate(sequences) if sequence.feed]
    with torch.inference_mode(), eval_mode(model):
        batches = build_batches(sequences, learned, max_tokens=budget, rng=rng, sharing=sharing)
        outputs_by_batch: dict[int, Mapping[str, NDArray[Any]]] = {}
        for number in range(ranks.rank, len(batches), ranks.mesh.size):
            batch = batches[number]
            with report_memory_errors(tuple(batch.ids.shape), _MEMORY_HINT):
                outputs_by_batch[number] = {
                    name: tensor.cpu().numpy() for name, tensor in compute(model, batch.to(model.device)).items()
                }
    for number, outputs in sorted(_gather_outputs(outputs_by_batch, ranks).items()):
        _scatter_columns(columns, sequences, batches[number].samples, outputs)
    return columns


def _gather_outputs(
    outputs_by_batch: Mapping[int, Mapping[str, NDArray[Any]]], ranks: Ranks
) -> Mapping[int, Mapping[str, NDArray[Any]]]:
    """Returns the outputs of all ranks' batches, by the number of the batch."""
    if ranks.mesh.size == 1:
        return outputs_by_batch
    from safetensors.numpy import load, save

    named_outputs = {
        f"{number}/{name}": np.ascontiguousarray(values)
        for number, outputs in outputs_by_batch.items()
        for name, values in outputs.items()
    }
    gathered: dict[int, dict[str, NDArray[Any]]] = {}
    for payload in ranks.gather(save(named_outputs)):
        for key, values in load(payload).items():
            number, _, name = key.partition("/")
            gathered.setdefault(int(number), {})[name] = values
    return gathered


def _scatter_columns(
    columns: Sequence[dict[str, NDArray[Any]]],
    sequences: Sequence[TokenSequence],
    samples: Sequence[int],
    target_outputs: Mapping[str, NDArray[Any]],
) -> None:
    offset = 0
    for index in samples:
        positions = 1 + np.flatnonzero(sequences[index].weight[1:])
        for name, values in target_outputs.items():
            column = np.zeros((len(sequences[index]), *values.shape[1:]), values.dtype)
            column[positions] = values[offset : offset + len(positions)]
            columns[index][name] = column
        offset += len(positions)


@contextmanager
def _attach_value_head(policy: Policy) -> Iterator[None]:
    """Attaches the policy's value head to its model inside the block, where the forward pass expects it."""
    previous_head = getattr(policy.model, "value_head", None)
    if previous_head is policy.value_head:
        yield
        return
    policy.model.value_head = policy.value_head
    try:
        yield
    finally:
        if previous_head is None:
            del policy.model.value_head
        else:
            policy.model.value_head = previous_head


Columns = Mapping[str, Array]
HistoryTruncation = Callable[[Trajectory], Sequence[int] | None]
_VALUES: tuple[ScoreKind, ...] = ("values",)
_BOTH: tuple[ScoreKind, ...] = ("logprobs", "values")


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRollout:
    """Played episodes, ready for advantage estimation.

    Attributes:
        trajectories: all that was played, including episodes that cannot be learned from.
        sequences: token sequences of all of them.
        batch: the tokens of those that are learned.
        report: counts of the episodes that were left out.
        token_outputs: by name `[P]`, float64: "old", log-probabilities before the update under the weights that will be
            trained, unless the update itself gives them (`RLSpec.single_update_objective`); "values", of the prefix
            before each token; "reference", log-probabilities under the reference.
        episodes: `[E]`, the trajectories that `batch` is made of.
    """

    trajectories: Sequence[Trajectory]
    sequences: Sequence[TokenSequence]
    batch: RolloutBatch
    report: RolloutReport
    token_outputs: Columns
    episodes: tuple[Trajectory, ...]

    @property
    def old(self) -> NDArray[np.float64]:
        """Returns `[P]`, the policy's log-probabilities before the update; only where they were scored."""
        return self.token_outputs["old"]

    @property
    def values(self) -> NDArray[np.float64]:
        """Returns `[P]`, the values; only where there is a critic."""
        return self.token_outputs["values"]

    @property
    def reference(self) -> NDArray[np.float64]:
        """Returns `[P]`, the reference's log-probabilities; only where there is a reference."""
        return self.token_outputs["reference"]

    @property
    def anchors(self) -> NDArray[np.int64]:
        """Returns `[A]`, a hash of the observation that each action answered (GiGPO's anchor states)."""
        first = np.flatnonzero(np.append(True, self.batch.is_last_in_action[:-1]))
        hashes = []
        for part, episode in zip(first.tolist(), self.batch.episode.tolist(), strict=True):
            step = int(self.sequences[int(self.batch.sequence[part])].step[int(self.batch.position[part])])
            hashes.append(sample_seed(self.episodes[episode].steps[step].observation))
        return np.asarray(hashes, np.int64)

    def estimate_advantages(self, estimator: AdvantageEstimator) -> Advantages:
        """Estimates the advantages of these episodes, with all arrays that the estimator needs.

        Raises:
            BatchMismatch: it needs values or a reference that were not scored.
        """
        arrays = {name: self.token_outputs[name] for name in ("values", "reference") if name in self.token_outputs}
        anchors = self.anchors if "anchors" in estimator.needs else None
        return estimator(self.batch, logp=self.token_outputs.get("old"), anchors=anchors, **arrays)


@dataclass(frozen=True, slots=True)
class ScoringConfig:
    """The models that score a rollout, and how.

    Args:
        policy: plays and is trained.
        sampling: the distribution of actions; its temperature is also used when log-probabilities are recomputed.
        reference: the reference policy; None: no reference.
        critic: the policy whose value head is read; None: no values.
        restrict_to_admissible: whether tokens were sampled among the actions that the world listed.
        action_level: whether actions were sampled as wholes among those that the world listed (`rl/candidates.py`).
        max_tokens_per_forward: token limit of a forward pass; None: chosen by the size of the logits.
        dtype: of the forward pass.
        truncate_history: returns the tokens that the agent would have read at the end of a cut episode whose
            conversation was full or is rendered anew, or None where there is no such prompt. None: such conversations
            are over.
        sharing: how episodes share rows of a forward pass; None: not at all.
        ranks: the ranks that share the forward passes.
        scores_policy: whether log-probabilities under the policy are scored; not where its single update gives them.
    """

    policy: Policy
    sampling: Sampling
    reference: Policy | None = None
    critic: Policy | None = None
    restrict_to_admissible: bool = False
    action_level: bool = False
    max_tokens_per_forward: int | None = None
    dtype: torch.dtype = torch.float32
    truncate_history: HistoryTruncation | None = None
    sharing: PrefixSharing | None = None
    ranks: Ranks = SINGLE_PROCESS
    scores_policy: bool = True

    @property
    def forward_options(self) -> JsonObject:
        """Returns the options of a forward pass, as `score_sequences` takes them."""
        return {
            "max_tokens_per_forward": self.max_tokens_per_forward,
            "dtype": self.dtype,
            "sharing": self.sharing,
            "ranks": self.ranks,
        }


def score_rollout(
    config: ScoringConfig,
    trajectories: Sequence[Trajectory],
    sequences: Sequence[TokenSequence],
    *,
    batch: RolloutBatch,
    report: RolloutReport,
) -> ScoredRollout:
    """Scores every learned token with policy, critic and reference, each in one pass.

    A reference with an adapter shares the weights below it with the policy, and so does a critic.
    """
    if config.action_level:
        return _score_choices(config, trajectories, sequences, rollout_batch=batch, report=report)
    policy, critic, sampling = config.policy, config.critic, config.sampling
    episodes = tuple(trajectories[number] for number in report.episode_index)
    final_sequences: dict[int, int] = {}
    inputs = list(sequences)
    if config.restrict_to_admissible:
        inputs = add_choice_support(trajectories, inputs)
    elif sampling.top_k:
        inputs = add_top_k_support(
            policy,
            inputs,
            top_k=sampling.top_k,
            temperature=sampling.temperature,
            max_tokens_per_forward=config.max_tokens_per_forward,
            sharing=config.sharing,
            ranks=config.ranks,
        )
    policy_inputs = inputs
    if critic is not None:
        inputs, batch, final_sequences = append_final_observations(
            inputs,
            batch,
            episodes,
            dialect=policy.dialect,
            context=policy.context,
            truncate_history=config.truncate_history,
        )
    is_shared = critic is not None and critic.model is policy.model
    token_outputs: dict[str, NDArray[np.float64]] = {}
    if config.scores_policy or is_shared:
        policy_outputs = score_sequences(
            policy,
            inputs if is_shared else policy_inputs,
            needs=_BOTH if is_shared else _LOGPROBS,
            temperature=sampling.temperature,
            **config.forward_options,
        )
        token_outputs["old"] = gather_column(policy_outputs, "logprobs", batch)
    if critic is not None:
        values = (
            policy_outputs if is_shared else score_sequences(critic, inputs, needs=_VALUES, **config.forward_options)
        )
        token_outputs["values"] = gather_column(values, "values", batch)
        batch = set_final_values(batch, values, final_sequences)
    if config.reference is not None:
        reference_outputs = score_sequences(
            config.reference, policy_inputs, temperature=sampling.temperature, **config.forward_options
        )
        token_outputs["reference"] = gather_column(reference_outputs, "logprobs", batch)
    return ScoredRollout(trajectories, policy_inputs, batch, report, token_outputs, episodes)


def _score_choices(
    config: ScoringConfig,
    trajectories: Sequence[Trajectory],
    sequences: Sequence[TokenSequence],
    *,
    rollout_batch: RolloutBatch,
    report: RolloutReport,
) -> ScoredRollout:
    """Scores a rollout whose actions were sampled as wholes: "old" has the log-probability of each on its first
    token.
    """
    policy, critic, temperature = config.policy, config.critic, config.sampling.temperature
    episodes = tuple(trajectories[number] for number in report.episode_index)

    def compute_logprobs(model: PreTrainedModel, batch: Batch) -> Mapping[str, Tensor]:
        logprobs = require_output(compute_outputs(model, batch, dtype=config.dtype).logprobs, "logprobs")
        return {"logprobs": chosen_logprobs(logprobs, batch, temperature=temperature)}

    policy_outputs = evaluate_targets(
        policy.model,
        add_candidates(trajectories, sequences),
        compute_logprobs,
        max_tokens_per_forward=config.max_tokens_per_forward,
        ranks=config.ranks,
    )
    columns = {"old": gather_column(policy_outputs, "logprobs", rollout_batch)}
    if critic is not None:
        value_inputs, rollout_batch, final_sequences = append_final_observations(
            sequences,
            rollout_batch,
            episodes,
            dialect=policy.dialect,
            context=policy.context,
            truncate_history=config.truncate_history,
        )
        values = score_sequences(critic, value_inputs, needs=_VALUES, **config.forward_options)
        columns["values"] = gather_column(values, "values", rollout_batch)
        rollout_batch = set_final_values(rollout_batch, values, final_sequences)
    return ScoredRollout(trajectories, sequences, rollout_batch, report, columns, episodes)


def gather_column(
    columns: Sequence[Mapping[str, NDArray[np.generic]]], name: str, batch: RolloutBatch
) -> NDArray[np.float64]:
    """Returns a column of the sequences at the tokens of the batch, `[P]`, in double precision."""
    values = np.zeros(batch.num_tokens)
    order = np.argsort(batch.sequence, kind="stable")
    numbers, first = np.unique(batch.sequence[order], return_index=True)
    for number, token_index in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        values[token_index] = columns[number][name][batch.position[token_index]]
    return values


# ------------------------------------------------------------------ values of final observations


def append_final_observations(
    sequences: Sequence[TokenSequence],
    batch: RolloutBatch,
    episodes: Sequence[Trajectory],
    *,
    dialect: Dialect,
    context: int,
    truncate_history: HistoryTruncation | None = None,
) -> tuple[list[TokenSequence], RolloutBatch, dict[int, int]]:
    """Appends the final observations to the sequences of truncated episodes, so that they have values too.

    A value is read at the last of the added tokens; nothing is learned there. Where the final observation does not
    fit the context, or the chat template renders the past anew, the value is that of the prompt that the agent would
    have read instead: a sequence of its own, at the end. Without such a prompt there is no next action, and the
    episode is cut off.

    Args:
        truncate_history: see `ScoringConfig`.
    Returns:
        the sequences, the batch, and for each action at whose end a value is read, the index of its sequence.
    """
    extended, ended, final_sequences = list(sequences), batch.ended.copy(), {}
    last = np.flatnonzero(batch.is_last_in_action)
    for action in np.flatnonzero(batch.ended == TRUNCATED).tolist():
        number = int(batch.sequence[last[action]])
        episode = episodes[int(batch.episode[action])]
        longer_sequence = _append_observation(extended[number], episode, dialect)
        is_new_root = isinstance(dialect, Chat) and dialect.renders_past
        if longer_sequence is not None and len(longer_sequence) <= context and not is_new_root:
            extended[number], final_sequences[action] = longer_sequence, number
            continue
        root = truncate_history(episode) if longer_sequence is not None and truncate_history is not None else None
        if root and len(root) < context:
            final_sequences[action] = len(extended)
            extended.append(_start_sequence(extended[number], root))
        else:
            ended[action] = CUT_OFF
    return extended, replace(batch, ended=ended), final_sequences


def set_final_values(
    batch: RolloutBatch,
    columns: Sequence[Mapping[str, NDArray[np.generic]]],
    final_sequences: Mapping[int, int],
    *,
    name: str = "values",
) -> RolloutBatch:
    """Returns the batch with the values of its final observations, read at the last token of their sequences.

    Args:
        batch: its `bootstrap` `[num_actions]` is replaced; actions without a final observation get 0.
        columns: by sequence, columns `[num_targets]` by name.
        final_sequences: by action, the index of the sequence that ends with its final observation.
        name: the column that holds the values.
    """
    bootstrap = np.zeros(len(batch.ended))
    for action, number in final_sequences.items():
        bootstrap[action] = columns[number][name][-1]
    return replace(batch, bootstrap=bootstrap)


def _append_observation(sequence: TokenSequence, trajectory: Trajectory, dialect: Dialect) -> TokenSequence | None:
    """Appends the next prompt and one more token to a sequence; returns None where the observation is not text."""
    if not isinstance(trajectory.final_observation, str) or not trajectory.steps[-1].generations:
        return None
    stopped = trajectory.steps[-1].generations[-1].stop != "length"
    tail = dialect.turn(trajectory.final_observation, stopped=stopped)
    count = len(tail) + 1

    def lengthen(values: NDArray[Any], fill: object) -> NDArray[Any]:
        return np.concatenate([values, np.full((count, *values.shape[1:]), fill, values.dtype)])

    weight = lengthen(sequence.weight, 0)
    weight[-1] = 1.0
    return replace(
        sequence,
        ids=np.concatenate([sequence.ids, np.asarray([*tail, tail[-1] if tail else 0], np.int32)]),
        written=lengthen(sequence.written, False),
        sampled=lengthen(sequence.sampled, False),
        logprobs=lengthen(sequence.logprobs, 0),
        step=lengthen(sequence.step, sequence.step[-1]),
        span=lengthen(sequence.span, -1),
        weight=weight,
        columns={name: lengthen(column, -1 if name == "support" else 0) for name, column in sequence.columns.items()},
    )


def _start_sequence(sequence: TokenSequence, root: Sequence[int]) -> TokenSequence:
    """Builds a sequence from a new prompt and one more token, with no sampled tokens and the columns of `sequence`."""
    count = len(root) + 1
    columns = {name: np.zeros((count, *column.shape[1:]), column.dtype) for name, column in sequence.columns.items()}
    no_flags, weight = np.zeros(count, np.bool_), np.zeros(count, np.float32)
    weight[-1] = 1.0
    return TokenSequence(
        sequence.trajectory,
        np.asarray([*root, root[-1]], np.int32),
        no_flags,
        no_flags,
        np.zeros(count, np.float32),
        np.full(count, sequence.step[-1]),
        np.full(count, -1, sequence.span.dtype),
        weight,
        columns={name: column - 1 if name == "support" else column for name, column in columns.items()},
    )
