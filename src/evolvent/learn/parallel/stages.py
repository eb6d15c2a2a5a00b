"""Pipeline stages: a model split by layers over ranks, and the schedules that move micro-batches through them.

The loss is computed inside the last stage's forward. Only hidden states are sent between stages, and every
objective works under every schedule; a stage looks up everything else about a micro-batch by its number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.learn.forward import model_inputs
from evolvent.learn.objectives import Need, Outputs
from evolvent.learn.parallel.ranks import Ranks, Schedule
from evolvent.learn.token_sequences import Batch
from evolvent.models.pieces import is_dtensor

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["Pipeline", "StageModule", "check_pipeline", "min_micro_batches", "split_into_stages", "split_layers"]

Loss = Callable[[Outputs, Batch], Tensor]
_SINGLE_STAGE_SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
_DOUBLE_STAGE_SCHEDULES = {
    "interleaved": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
}


class StageModule(nn.Module):
    """One stage: its layers, after the embedding on the first, before norm, heads and loss on the last.

    Attributes:
        model: the stage's part of the model; its parameters have the names that they have in the whole model.
        wire_dtype: the type in which hidden states are sent.
        is_tied: whether embedding and head are one weight in the whole model.
        work: the update in progress: micro-batches, their loss, and its needs.
    """

    wire_dtype: torch.dtype
    is_tied: bool
    work: tuple[Sequence[Batch], Loss, Collection[Need]]

    def __init__(
        self,
        model: PreTrainedModel,
        stage_index: int,
        *,
        is_last: bool,
        compute: Callable[..., Outputs],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.model, self.place, self.first, self.last = model, stage_index, stage_index == 0, is_last
        self._compute, self._dtype = compute, dtype

    def __call__(self, x: Tensor, *, which: Tensor) -> object:
        """Runs `forward`. The number is read before FSDP's hooks move it to the device, where reading it would wait."""
        return super().__call__(x, which=int(which))

    def forward(self, x: Tensor, *, which: int) -> Tensor:
        """Returns hidden states `[B, T, H]` from ids `[B, T]` or hidden states; on the last stage the loss `[1]` of
        a batch.
        """
        batches, loss, needs = self.work
        batch, hidden = batches[which], None if self.first else x
        if self.last:
            return loss(self._compute(self.model, batch, needs=needs, hidden=hidden), batch).reshape(1)
        with nullcontext() if self._dtype == torch.float32 else torch.autocast(x.device.type, self._dtype):
            body = _causal_lm(self.model).model
            states: Tensor = body(
                **model_inputs(self.model, batch, hidden, explicit_positions=True), use_cache=False
            ).last_hidden_state
        states = states.to(self.wire_dtype)
        return states.clone() if states._is_view() else states  # zero bubbles detach it in place

    def tied_weight(self) -> nn.Parameter | None:
        """Returns this stage's trained copy of a weight that is both embedding and head, if it has one."""
        if not self.is_tied or not (self.first or self.last):
            return None
        layer = self.model.get_input_embeddings() if self.first else self.model.get_output_embeddings()
        return layer.weight if layer.weight.requires_grad else None


class Pipeline:
    """Runs updates through this rank's stages: modules from `split_into_stages`, already distributed in other
    directions.
    """

    def __init__(self, stage_modules: Sequence[StageModule], ranks: Ranks, schedule: Schedule) -> None:
        self._chunks, self._ranks, self._schedule = list(stage_modules), ranks, schedule
        self._built: tuple[tuple[int, ...], Any] = (), None
        copied = stage_modules[-1].tied_weight() if stage_modules[-1].last else None
        self._copies = {name for name, weight in stage_modules[-1].model.named_parameters() if weight is copied}
        ranks.sum(torch.zeros(1, device=ranks.device), "pp")  # NCCL: a group's first call has to be one of all ranks

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Returns this rank's parameters, under their names in the whole model."""
        for chunk in self._chunks:
            yield from chunk.model.named_parameters()

    def is_counted(self, name: str) -> bool:
        """Returns whether a parameter counts in sums over the pipeline: the last stage's copy of a tied weight does
        not.
        """
        return name not in self._copies

    def backward(self, batches: Sequence[Batch], loss: Loss, needs: Collection[Need]) -> Tensor:
        """Runs forward and backward of all micro-batches; gradients are those of the sum of their losses.

        Args:
            batches: the same on all ranks of the pipeline, of one shape, as many as `min_micro_batches` says.
        Returns:
            the sum of the losses on the last stage's rank, 0 on others.
        Raises:
            BatchMismatch: batches have several shapes, or the schedule cannot run their number.
        """
        schedule, which, losses = self._get_schedule(batches), torch.arange(len(batches)), list[Tensor]()
        inputs = [torch.cat([batch.ids for batch in batches])] if self._chunks[0].first else []
        ends = {"target": which, "losses": losses} if self._chunks[-1].last else {}
        for chunk in self._chunks:
            chunk.work = (batches, loss, needs)
        try:
            schedule.step(*inputs, which=which, return_outputs=False, **ends)
        except RuntimeError as error:
            cause = error.__cause__ or error  # torch wraps what a stage raised
            raise cause from cause.__cause__
        finally:
            for chunk in self._chunks:
                del chunk.work
        return sum((amount.detach() for amount in losses), torch.zeros((), device=self._ranks.device))

    def _get_schedule(self, batches: Sequence[Batch]) -> Any:
        """Returns the schedule for updates of this shape: that of the last update, or a new one, which takes
        milliseconds.
        """
        sizes, count, pp = sorted({tuple(batch.ids.shape) for batch in batches}), len(batches), self._ranks.mesh.pp
        if len(sizes) != 1:
            raise BatchMismatch("micro-batches of one update differ in shape", value=sizes, expected="one [B, T]")
        if count != (expected_count := min_micro_batches(self._schedule, pp, count)):
            message = f"schedule {self._schedule!r} over {pp} ranks cannot run this number of micro-batches"
            raise BatchMismatch(message, value=count, expected=expected_count, hint="add batches without targets")
        if self._built[0] != (*sizes[0], count):
            self._built = (), None  # the buffers of the old one are freed before the new one has its own
            self._built = (*sizes[0], count), self._build_schedule(sizes[0], count)
        return self._built[1]

    def _build_schedule(self, shape: tuple[int, ...], count: int) -> Any:
        """Builds a schedule with given shapes, so that torch need not send pickled descriptions from stage to stage."""
        # Loads torch's compiler, which a process without stages does not need.
        from torch.distributed.pipelining import PipelineStage, schedules

        size, dtype = self._chunks[0].model.config.hidden_size, self._chunks[0].wire_dtype
        ids, end = torch.empty(shape, dtype=torch.int64, device="meta"), torch.empty(1, device="meta")
        states = torch.empty(*shape, size, dtype=dtype, device="meta", requires_grad=True)
        stages = [
            PipelineStage(
                chunk,
                chunk.place,
                self._ranks.mesh.pp * len(self._chunks),
                self._ranks.device,
                ids if chunk.first else states,
                end if chunk.last else states,
                group=self._ranks.group("pp"),
            )
            for chunk in self._chunks
        ]
        kind = getattr(schedules, (_SINGLE_STAGE_SCHEDULES | _DOUBLE_STAGE_SCHEDULES)[self._schedule])
        stage = stages[0] if self._schedule in _SINGLE_STAGE_SCHEDULES else stages
        return kind(stage, count, loss_fn=lambda found, _: found.sum(), scale_grads=False)

    def reduce(self) -> None:
        """Sums the gradients of both copies of a tied weight: equal updates then keep them equal, bit for bit."""
        grads = [_local_gradient(weight) for chunk in self._chunks if (weight := chunk.tied_weight()) is not None]
        if len(grads) == 2:
            grads[1].copy_(grads[0].add_(grads[1]))
        elif grads:
            group, peer, own_gradient = (
                self._ranks.group("pp"),
                self._ranks.mesh.pp - 1 - self._ranks.rank_along("pp"),
                grads[0],
            )
            ends = (
                (dist.isend, own_gradient.contiguous()),
                (dist.irecv, peer_gradient := torch.empty_like(own_gradient.contiguous())),
            )
            work = [dist.P2POp(operation, buffer, group=group, group_peer=peer) for operation, buffer in ends]
            for request in dist.batch_isend_irecv(work):
                request.wait()
            own_gradient.add_(peer_gradient)


def _local_gradient(weight: nn.Parameter) -> Tensor:
    """Returns this rank's part of a gradient, as it is in memory."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad.to_local() if is_dtensor(weight.grad) else weight.grad


def split_layers(layers: int, stages: int) -> list[range]:
    """Splits the layers over stages: neighbors, as equal in number as possible.

    The remainder goes, one each, to the second stage and those after it, then to the first, which has the embedding;
    never to the last, which has the head.
    """
    min_layers, remainder = divmod(layers, stages)
    larger_stages = [*range(1, stages - 1), 0][:remainder]
    ends = [
        min_layers * (stage + 1) + sum(larger_stage <= stage for larger_stage in larger_stages)
        for stage in range(stages)
    ]
    return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def min_micro_batches(schedule: Schedule, pp: int, count: int) -> int:
    """Returns the least number of micro-batches, from `count` on, that a schedule can run over `pp` ranks."""
    if schedule == "1f1b":
        return max(count, pp)
    if schedule in ("interleaved", "zero_bubble"):  # equal rounds, of `pp` micro-batches or some more
        return next(number for number in range(count, 2 * count + pp) if number % max(1, number // pp) == 0)
    return count


def check_pipeline(config: PreTrainedConfig, pp: int, schedule: Schedule) -> list[Problem]:
    """Returns the reasons why a model cannot be split, before it is built: `config` is that of a Hugging Face causal
    LM.
    """
    layers, stages_per_rank = int(config.num_hidden_layers), 1 if schedule in _SINGLE_STAGE_SCHEDULES else 2
    if pp * stages_per_rank <= layers:
        return []
    hint = f"at most pp {max(1, layers // stages_per_rank)}"
    if stages_per_rank == 2 and pp <= layers:
        hint += ", or a schedule with one stage per rank: '1f1b' or 'gpipe'"
    return [
        Problem(
            "parallel.pp", f"{pp * stages_per_rank} stages (schedule {schedule!r}) of a model of {layers} layers", hint
        )
    ]


def split_into_stages(
    model: PreTrainedModel,
    ranks: Ranks,
    schedule: Schedule,
    *,
    compute: Callable[..., Outputs],
    dtype: torch.dtype = torch.float32,
) -> list[StageModule]:
    """Returns this rank's stages of a Hugging Face causal LM, or of one under LoRA; two for schedules that pass a
    rank twice.

    The model stays as it is and shares its parts with the stages: drop it to free the memory of other ranks' parts.

    Args:
        compute: `evolvent.learn.forward.compute_outputs`, with its settings bound; the last stage calls it.
        dtype: of the forward, as in `compute`.
    Raises:
        ConfigError: more stages than layers, or a model with more than layers in a row.
    """
    problems = check_pipeline(model.config, ranks.mesh.pp, schedule) or _check_body(model)
    if problems:
        raise ConfigError(problems)
    pp, rank, base = ranks.mesh.pp, ranks.rank_along("pp"), _causal_lm(model)
    stage_indices = (
        [rank] if schedule in _SINGLE_STAGE_SCHEDULES else [rank, 2 * pp - 1 - rank if schedule == "zbv" else rank + pp]
    )
    end, layer_ranges = pp * len(stage_indices) - 1, split_layers(len(base.model.layers), pp * len(stage_indices))
    chunks = []
    for stage_index in stage_indices:
        stage_model = _copy_part(model, layer_ranges[stage_index], stage_index == 0, stage_index == end)
        chunks.append(
            chunk := StageModule(stage_model, stage_index, is_last=stage_index == end, compute=compute, dtype=dtype)
        )
        # FSDP gathers weights in the forward's type; without it the states between layers are of the weights' own.
        chunk.wire_dtype = dtype if ranks.mesh.dp > 1 and dtype != torch.float32 else base.dtype
        chunk.is_tied = base.lm_head.weight is base.model.embed_tokens.weight
    if chunks[0].is_tied and chunks[0].first and chunks[-1].last:  # two stages cannot both shard one parameter
        head = _causal_lm(chunks[-1].model).lm_head = _copy_shallow(base.lm_head)
        head.weight = nn.Parameter(head.weight.detach().clone(), head.weight.requires_grad)
    return chunks


class _SkippedLayer(nn.Module):
    """A placeholder for a layer that another stage owns, so that the layers of this one keep their names."""

    attention_type = "full_attention"  # some families ask every layer

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        return hidden_states


def _causal_lm(model: PreTrainedModel) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _check_body(model: PreTrainedModel) -> list[Problem]:
    """Checks that between embedding and norm there are only layers: every stage would repeat anything else."""
    base = _causal_lm(model)
    if base is not model and model.active_peft_config.is_prompt_learning:
        return [Problem("parallel.pp", "prefix and prompt tuning cannot be cut into stages", "use pp 1, or LoRA")]
    body: Any = getattr(base, "model", None)
    if hasattr(base, "lm_head") and all(hasattr(body, name) for name in ("embed_tokens", "layers", "norm")):
        states = torch.zeros(1, 1, model.config.hidden_size, device=body.embed_tokens.weight.device)
        mask, position_ids = states.new_zeros(1, 1, 1, 1), states.new_zeros(1, 1, dtype=torch.int64)
        empty = _copy_part(base, range(0), False, False).model
        empty.training = True  # dropout of embeddings
        with torch.no_grad():
            result = empty(inputs_embeds=states, attention_mask=mask, position_ids=position_ids, use_cache=False)
        if result.last_hidden_state is states:
            return []
    message = f"a {model.config.model_type!r} model is not a sequence of embed_tokens, layers, norm and lm_head"
    return [Problem("parallel.pp", message, "use pp 1")]


def _copy_part(model: PreTrainedModel, layer_range: range, first: bool, last: bool) -> Any:
    """Returns a copy of the model that has these layers of its own and shares everything else that it needs."""
    copied_model = _copy_shallow(model)
    if hasattr(model, "get_base_model"):
        copied_model.base_model = _copy_shallow(model.base_model)
        copied_model.base_model.model = _copy_part(model.base_model.model, layer_range, first, last)
        if not last:
            copied_model.value_head = None
        return copied_model
    body = copied_model.model = _copy_shallow(model.model)
    body.layers = nn.ModuleList(
        layer if layer_index in layer_range else _SkippedLayer() for layer_index, layer in enumerate(body.layers)
    )
    if not first:
        body.embed_tokens = None
    if not last:
        body.norm, copied_model.lm_head, copied_model.value_head = nn.Identity(), None, None
    return copied_model


def _copy_shallow(module: Any) -> Any:
    """Returns a module with the same parts, whose parts and hooks can be changed without changing those of the
    original.
    """
    clone = copy.copy(module)
    vars(clone).update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    return clone
