"""Pipeline stages: a model cut by layers over ranks, and the schedules that move micro-batches through them.

The loss is computed inside the last stage's forward. What travels between stages is therefore hidden states alone, and
every objective works under every schedule; what else a stage reads of a micro-batch it looks up by its number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor

from evolvent.errors import BatchMismatch, ConfigError, Problem
from evolvent.learn.forward import fed
from evolvent.learn.objectives import Need, Outputs
from evolvent.learn.packing import Batch
from evolvent.learn.parallel.mesh import Schedule
from evolvent.learn.parallel.ranks import Ranks

__all__ = ["Chunk", "Pipeline", "check_pipeline", "cut", "micro_batches", "spread"]

Loss = Callable[[Outputs, Batch], Tensor]
_ONE_EACH: dict[str, Any] = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}
_TWO_EACH: dict[str, Any] = {
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "looped_bfs": schedules.ScheduleLoopedBFS,
    "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}


class Chunk(nn.Module):
    """One stage: its layers, after the embedding on the first, before norm, heads and loss on the last.

    Attributes:
        model: the cut model; its parameters have the names that they have in the whole one.
        wire: the type in which hidden states travel. tied: whether embedding and head are one weight in the whole.
        work: the update in progress: micro-batches, their loss, and what it needs.
    """

    wire: torch.dtype
    tied: bool
    work: tuple[Sequence[Batch], Loss, Collection[Need]]

    def __init__(
        self, model: Any, place: int, *, last: bool, compute: Callable[..., Outputs], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.model, self.place, self.first, self.last = model, place, place == 0, last
        self._compute, self._dtype = compute, dtype

    def __call__(self, x: Tensor, *, which: Tensor) -> Any:
        """`forward`. The number is read before FSDP's hooks move it to the device, where reading it would wait."""
        return super().__call__(x, which=int(which))

    def forward(self, x: Tensor, *, which: int) -> Tensor:
        """Ids `[B, T]` or hidden states -> hidden states `[B, T, H]`, on the last stage the loss `[1]`, of a batch."""
        batches, loss, needs = self.work
        batch, hidden = batches[which], None if self.first else x
        if self.last:
            return loss(self._compute(self.model, batch, needs=needs, hidden=hidden), batch).reshape(1)
        with nullcontext() if self._dtype == torch.float32 else torch.autocast(x.device.type, self._dtype):
            body = _causal_lm(self.model).model
            states: Tensor = body(**fed(self.model, batch, hidden, explicit=True), use_cache=False).last_hidden_state
        states = states.to(self.wire)
        return states.clone() if states._is_view() else states  # zero bubbles detach it in place

    def shared(self) -> nn.Parameter | None:
        """The copy that this stage trains of a weight that is embedding and head in one, if it has one."""
        if not self.tied or not (self.first or self.last):
            return None
        layer = self.model.get_input_embeddings() if self.first else self.model.get_output_embeddings()
        return layer.weight if layer.weight.requires_grad else None


class Pipeline:
    """Runs updates through this rank's stages: chunks from `cut`, already parallel in other directions and sharded."""

    def __init__(self, chunks: Sequence[Chunk], ranks: Ranks, schedule: Schedule) -> None:
        self._chunks, self._ranks, self._schedule = list(chunks), ranks, schedule
        self._built: tuple[tuple[int, ...], Any] = (), None
        copied = chunks[-1].shared() if chunks[-1].last else None
        self._copies = {name for name, weight in chunks[-1].model.named_parameters() if weight is copied}
        ranks.sum(torch.zeros(1, device=ranks.device), "pp")  # NCCL: a group's first call has to be one of all ranks

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters, under their names in the whole model."""
        for chunk in self._chunks:
            yield from chunk.model.named_parameters()

    def counted(self, name: str) -> bool:
        """Whether a parameter counts in sums over the pipeline: the last stage's copy of a tied weight does not."""
        return name not in self._copies

    def backward(self, batches: Sequence[Batch], loss: Loss, needs: Collection[Need]) -> Tensor:
        """Forward and backward of all micro-batches; gradients are those of the sum of their losses.

        Args:
            batches: the same on all ranks of the pipeline, of one shape, as many as `micro_batches` says.
        Returns:
            The sum of the losses on the last stage's rank, 0 on others.
        Raises:
            BatchMismatch: batches of several shapes, or a number of them that the schedule cannot run.
        """
        schedule, which, losses = self._ready(batches), torch.arange(len(batches)), list[Tensor]()
        inputs = [torch.cat([batch.ids for batch in batches])] if self._chunks[0].first else []
        ends = {"target": which, "losses": losses} if self._chunks[-1].last else {}
        for chunk in self._chunks:
            chunk.work = (batches, loss, needs)
        try:
            schedule.step(*inputs, which=which, return_outputs=False, **ends)
        except RuntimeError as error:
            found = error.__cause__ or error  # torch wraps what a stage raised
            raise found from found.__cause__
        finally:
            for chunk in self._chunks:
                del chunk.work
        return sum((amount.detach() for amount in losses), torch.zeros((), device=self._ranks.device))

    def _ready(self, batches: Sequence[Batch]) -> Any:
        """The schedule for updates of this shape: that of the last update, or a new one, which takes milliseconds."""
        sizes, count, pp = sorted({tuple(batch.ids.shape) for batch in batches}), len(batches), self._ranks.mesh.pp
        if len(sizes) != 1:
            raise BatchMismatch("micro-batches of one update differ in shape", value=sizes, expected="one [B, T]")
        if count != (wanted := micro_batches(self._schedule, pp, count)):
            what = f"schedule {self._schedule!r} over {pp} ranks cannot run so many micro-batches"
            raise BatchMismatch(what, value=count, expected=wanted, hint="fill up with batches without targets")
        if self._built[0] != (*sizes[0], count):
            self._built = (), None  # the buffers of the old one are freed before the new one has its own
            self._built = (*sizes[0], count), self._build(sizes[0], count)
        return self._built[1]

    def _build(self, shape: tuple[int, ...], count: int) -> Any:
        """Shapes are given, so that torch need not find them by sending pickled descriptions from stage to stage."""
        size, dtype = self._chunks[0].model.config.hidden_size, self._chunks[0].wire
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
        kind = (_ONE_EACH | _TWO_EACH)[self._schedule]
        stage = stages[0] if self._schedule in _ONE_EACH else stages
        return kind(stage, count, loss_fn=lambda found, _: found.sum(), scale_grads=False)

    def reduce(self) -> None:
        """Sum the gradients of both copies of a tied weight: equal updates then keep them equal, bit for bit."""
        grads = [_gradient(weight) for chunk in self._chunks if (weight := chunk.shared()) is not None]
        if len(grads) == 2:
            grads[1].copy_(grads[0].add_(grads[1]))
        elif grads:
            group, peer, mine = self._ranks.group("pp"), self._ranks.mesh.pp - 1 - self._ranks.at("pp"), grads[0]
            ends = (dist.isend, mine.contiguous()), (dist.irecv, other := torch.empty_like(mine.contiguous()))
            work = [dist.P2POp(way, end, group=group, group_peer=peer) for way, end in ends]
            for sent in dist.batch_isend_irecv(work):
                sent.wait()
            mine.add_(other)


def _gradient(weight: nn.Parameter) -> Tensor:
    """What this rank holds of it, as it is in memory."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad


def spread(layers: int, stages: int) -> list[range]:
    """The layers of each stage: neighbours, as equal in number as can be.

    The remainder goes, one each, to the second stage and those after it, then to the first, which has the embedding;
    never to the last, which has the head.
    """
    least, left = divmod(layers, stages)
    richer = [*range(1, stages - 1), 0][:left]
    ends = [least * (stage + 1) + sum(other <= stage for other in richer) for stage in range(stages)]
    return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def micro_batches(schedule: Schedule, pp: int, count: int) -> int:
    """The least number of micro-batches, from `count` on, that a schedule can run over `pp` ranks."""
    if schedule == "1f1b":
        return max(count, pp)
    if schedule in ("interleaved", "zero_bubble"):  # equal rounds, of `pp` micro-batches or some more
        return next(number for number in range(count, 2 * count + pp) if number % max(1, number // pp) == 0)
    return count


def check_pipeline(config: Any, pp: int, schedule: Schedule) -> list[Problem]:
    """What keeps a model from being cut, found before it is built: `config` is that of a Hugging Face causal LM."""
    layers, each = int(config.num_hidden_layers), 1 if schedule in _ONE_EACH else 2
    if pp * each <= layers:
        return []
    hint = f"at most pp {max(1, layers // each)}"
    if each == 2 and pp <= layers:
        hint += ", or a schedule of one stage a rank: '1f1b' or 'gpipe'"
    return [Problem("parallel.pp", f"{pp * each} stages (schedule {schedule!r}) of a model of {layers} layers", hint)]


def cut(
    model: Any, ranks: Ranks, schedule: Schedule, *, compute: Callable[..., Outputs], dtype: torch.dtype = torch.float32
) -> list[Chunk]:
    """This rank's stages of a Hugging Face causal LM, or of one under LoRA; two for schedules that pass a rank twice.

    The model stays as it is and shares its parts with the stages: drop it to be rid of what other ranks own.

    Args:
        compute: `evolvent.learn.forward.outputs`, its settings bound; the last stage calls it.
        dtype: of the forward, as in `compute`.
    Raises:
        ConfigError: more stages than layers, or a model that is more than its layers one after the other.
    """
    problems = check_pipeline(model.config, ranks.mesh.pp, schedule) or _check_body(model)
    if problems:
        raise ConfigError(problems)
    pp, rank, base = ranks.mesh.pp, ranks.at("pp"), _causal_lm(model)
    places = [rank] if schedule in _ONE_EACH else [rank, 2 * pp - 1 - rank if schedule == "zbv" else rank + pp]
    end, own = pp * len(places) - 1, spread(len(base.model.layers), pp * len(places))
    chunks = []
    for at in places:
        part = _part(model, own[at], at == 0, at == end)
        chunks.append(chunk := Chunk(part, at, last=at == end, compute=compute, dtype=dtype))
        # FSDP gathers weights in the forward's type; without it the states between layers are of the weights' own.
        chunk.wire = dtype if ranks.mesh.dp > 1 and dtype != torch.float32 else base.dtype
        chunk.tied = base.lm_head.weight is base.model.embed_tokens.weight
    if chunks[0].tied and chunks[0].first and chunks[-1].last:  # two stages cannot both shard one parameter
        head = _causal_lm(chunks[-1].model).lm_head = _shallow(base.lm_head)
        head.weight = nn.Parameter(head.weight.detach().clone(), head.weight.requires_grad)
    return chunks


class _Skip(nn.Module):
    """In the place of a layer that another stage owns, so that the layers of this one keep their names."""

    attention_type = "full_attention"  # some families ask every layer

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        return hidden_states


def _causal_lm(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _check_body(model: Any) -> list[Problem]:
    """Between embedding and norm there may be layers only: what else there is, every stage would do again."""
    base = _causal_lm(model)
    if base is not model and model.active_peft_config.is_prompt_learning:
        return [Problem("parallel.pp", "prefix and prompt tuning cannot be cut into stages", "use pp 1, or LoRA")]
    body: Any = getattr(base, "model", None)
    if hasattr(base, "lm_head") and all(hasattr(body, name) for name in ("embed_tokens", "layers", "norm")):
        states = torch.zeros(1, 1, model.config.hidden_size, device=body.embed_tokens.weight.device)
        mask, place = states.new_zeros(1, 1, 1, 1), states.new_zeros(1, 1, dtype=torch.int64)
        empty = _part(base, range(0), False, False).model
        empty.training = True  # dropout of embeddings
        with torch.no_grad():
            found = empty(inputs_embeds=states, attention_mask=mask, position_ids=place, use_cache=False)
        if found.last_hidden_state is states:
            return []
    what = f"a {model.config.model_type!r} model is more than embed_tokens, layers, norm and lm_head in a row"
    return [Problem("parallel.pp", what, "use pp 1")]


def _part(model: Any, own: range, first: bool, last: bool) -> Any:
    """A copy of the model that has these layers of its own and shares what else it needs."""
    whole = _shallow(model)
    if hasattr(model, "get_base_model"):
        whole.base_model = _shallow(model.base_model)
        whole.base_model.model = _part(model.base_model.model, own, first, last)
        if not last:
            whole.value_head = None
        return whole
    body = whole.model = _shallow(model.model)
    body.layers = nn.ModuleList(layer if at in own else _Skip() for at, layer in enumerate(body.layers))
    if not first:
        body.embed_tokens = None
    if not last:
        body.norm, whole.lm_head, whole.value_head = nn.Identity(), None, None
    return whole


def _shallow(module: Any) -> Any:
    """A module with the same parts, whose parts and hooks can be changed without changing those of the other."""
    clone = copy.copy(module)
    vars(clone).update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    return clone
