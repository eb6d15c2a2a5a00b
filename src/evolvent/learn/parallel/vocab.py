"""Log-probabilities and samples where every rank of the tp dimension has the logits of its own slice of the
vocabulary.

Shapes: `N` positions, `V` tokens, `P = V / tp` tokens per rank. No rank ever holds `[N, V]` logits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from evolvent.learn.parallel.ranks import Ranks

__all__ = ["vocab_entropy", "vocab_logprobs", "vocab_sample"]

_ROWS = 256  # positions whose noise is drawn at once: it covers the whole vocabulary


def vocab_logprobs(logits: Tensor, ids: Tensor, ranks: Ranks) -> Tensor:
    """Computes `log p` of tokens in float32, shaped like `ids` and equal on all ranks; differentiable once in the
    logits.

    Args:
        logits: `[N, P]`, this rank's slice, in the order of ranks; all of them where tp is 1.
        ids: `[N]` or `[N, k]`, token ids of the whole vocabulary, the same on all ranks.
    """
    group = ranks.group("tp")
    if group is not None and group.size() > 1:
        columns = ids if ids.dim() == logits.dim() else ids.unsqueeze(-1)
        logprobs: Tensor = _LogProbs.apply(logits, columns, ranks.rank_along("tp") * logits.shape[-1], group)  # type: ignore[no-untyped-call]
        return logprobs.view_as(ids)
    if ids.dim() == 1:
        return -F.cross_entropy(logits.float(), ids, reduction="none")
    float_logits = logits.float()
    return float_logits.gather(-1, ids) - float_logits.logsumexp(-1, keepdim=True)


class _LogProbs(torch.autograd.Function):
    """`x_y - log sum exp x` over slices. Its gradient is local: `g (1[y] - p)` in each slice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, first: int, group: dist.ProcessGroup) -> Tensor:
        slice_ = logits.float()
        is_local = (ids >= first) & (ids < first + slice_.shape[-1])
        columns = torch.where(is_local, ids - first, 0)
        local_log_sum = slice_.logsumexp(-1, keepdim=True)
        top = local_log_sum.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        sums = torch.cat(
            [(local_log_sum - top).exp(), torch.where(is_local, slice_.gather(-1, columns) - top, 0.0)], dim=-1
        )
        dist.all_reduce(sums, group=group)
        log_remainder = sums[..., :1].log()
        ctx.save_for_backward(logits, top + log_remainder, columns, is_local)
        return sums[..., 1:] - log_remainder

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, total, columns, is_local = ctx.saved_tensors
        gradient = (logits.float() - total).exp_().mul_(-grad.sum(-1, keepdim=True))
        gradient.scatter_add_(-1, columns, torch.where(is_local, grad, 0.0))
        return gradient.to(logits.dtype), None, None, None


def vocab_entropy(logits: Tensor, ranks: Ranks) -> Tensor:
    """Computes `-sum_v p_v log p_v` of `softmax(logits)` in nats, float32 `[N]`, equal on all ranks; differentiable
    once.

    Args:
        logits: `[N, P]`, this rank's slice.
    """
    group = ranks.group("tp")
    if group is not None and group.size() > 1:
        entropy: Tensor = _Entropy.apply(logits, group)  # type: ignore[no-untyped-call]
        return entropy
    logp = logits.float().log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


class _Entropy(torch.autograd.Function):
    """`H = log Z - E[x]` over slices. Its gradient is local: `-p (log p + H)` in each slice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, group: dist.ProcessGroup) -> Tensor:
        slice_ = logits.float()
        top = slice_.amax(-1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        shifted = slice_ - top[:, None]
        weights = shifted.exp()
        sums = torch.stack([weights.sum(-1), (weights * shifted).sum(-1)])
        dist.all_reduce(sums, group=group)
        log_remainder = sums[0].log()
        entropy = log_remainder - sums[1] / sums[0]
        ctx.save_for_backward(logits, top + log_remainder, entropy)
        return entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, total, entropy = ctx.saved_tensors
        logp = logits.float() - total[:, None]
        gradient = -logp.exp() * (logp + entropy[:, None]) * grad[:, None]
        return gradient.to(logits.dtype), None


@torch.no_grad()
def vocab_sample(logits: Tensor, ranks: Ranks, generator: torch.Generator | None = None) -> Tensor:
    """Samples one token per position from `softmax(logits)`, `[N]`, the same on all ranks of the tp dimension.

    The largest of logit plus Gumbel noise is such a sample (Gumbel-max), and a maximum can be found slice by slice.
    Every rank draws the noise of the whole vocabulary and uses its part, so that a sample does not depend on tp.

    Args:
        logits: `[N, P]`, this rank's slice.
        generator: in the same state on all ranks of the dimension; None: torch's own.
    """
    size, first = logits.shape[-1], ranks.rank_along("tp") * logits.shape[-1]
    best, ids = [], []
    for rows in torch.split(logits, _ROWS):
        noise = torch.empty(len(rows), size * ranks.mesh.tp, device=rows.device).exponential_(generator=generator)
        score, column = (rows.float() - noise[:, first : first + size].log()).max(-1)
        best.append(score)
        ids.append(column + first)
    best_pairs = torch.stack([torch.cat(best).double(), torch.cat(ids).double()])  # [2, N]; a double holds any id
    if ranks.mesh.tp > 1:
        parts = [torch.empty_like(best_pairs) for _ in range(ranks.mesh.tp)]
        dist.all_gather(parts, best_pairs, group=ranks.group("tp"))
        stacked = torch.stack(parts)
        best_pairs = stacked.gather(0, stacked[:, :1].argmax(0, keepdim=True).expand(1, 2, -1))[0]
    return best_pairs[1].long()
