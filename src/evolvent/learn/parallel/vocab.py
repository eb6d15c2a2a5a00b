"""Log-probabilities and draws where every rank of the tp dimension has the logits of its own slice of the vocabulary.

Shapes: `N` positions, `V` words, `P = V / tp` words a rank. No rank ever holds `[N, V]` logits.
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
    """`log p` of words in float32, shaped like `ids` and equal on all ranks; differentiable once in the logits.

    Args:
        logits: `[N, P]`, this rank's slice, in the order of ranks; all of them where tp is 1.
        ids: `[N]` or `[N, k]`, words of the whole vocabulary, the same on all ranks.
    """
    group = ranks.group("tp")
    if group is not None and group.size() > 1:
        columns = ids if ids.dim() == logits.dim() else ids.unsqueeze(-1)
        found: Tensor = _LogProbs.apply(logits, columns, ranks.at("tp") * logits.shape[-1], group)  # type: ignore[no-untyped-call]
        return found.view_as(ids)
    if ids.dim() == 1:
        return -F.cross_entropy(logits.float(), ids, reduction="none")
    whole = logits.float()
    return whole.gather(-1, ids) - whole.logsumexp(-1, keepdim=True)


class _LogProbs(torch.autograd.Function):
    """`x_y - log sum exp x` over slices. Its gradient is local: `g (1[y] - p)` in each slice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, first: int, group: dist.ProcessGroup) -> Tensor:
        slice_ = logits.float()
        here = (ids >= first) & (ids < first + slice_.shape[-1])
        columns = torch.where(here, ids - first, 0)
        own = slice_.logsumexp(-1, keepdim=True)
        top = own.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        sums = torch.cat([(own - top).exp(), torch.where(here, slice_.gather(-1, columns) - top, 0.0)], dim=-1)
        dist.all_reduce(sums, group=group)
        rest = sums[..., :1].log()
        ctx.save_for_backward(logits, top + rest, columns, here)
        return sums[..., 1:] - rest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, total, columns, here = ctx.saved_tensors
        found = (logits.float() - total).exp_().mul_(-grad.sum(-1, keepdim=True))
        found.scatter_add_(-1, columns, torch.where(here, grad, 0.0))
        return found.to(logits.dtype), None, None, None


def vocab_entropy(logits: Tensor, ranks: Ranks) -> Tensor:
    """`-sum_v p_v log p_v` of `softmax(logits)` in nats, float32 `[N]`, equal on all ranks; differentiable once.

    Args:
        logits: `[N, P]`, this rank's slice.
    """
    group = ranks.group("tp")
    if group is not None and group.size() > 1:
        found: Tensor = _Entropy.apply(logits, group)  # type: ignore[no-untyped-call]
        return found
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
        rest = sums[0].log()
        entropy = rest - sums[1] / sums[0]
        ctx.save_for_backward(logits, top + rest, entropy)
        return entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, total, entropy = ctx.saved_tensors
        logp = logits.float() - total[:, None]
        found = -logp.exp() * (logp + entropy[:, None]) * grad[:, None]
        return found.to(logits.dtype), None


@torch.no_grad()
def vocab_sample(logits: Tensor, ranks: Ranks, generator: torch.Generator | None = None) -> Tensor:
    """One word a position from `softmax(logits)`, `[N]`, the same on all ranks of the tp dimension.

    The largest of logit plus Gumbel noise is such a draw (Gumbel-max), and a maximum can be found slice by slice. Every
    rank draws the noise of the whole vocabulary and uses its part, so that a draw does not depend on tp.

    Args:
        logits: `[N, P]`, this rank's slice.
        generator: in the same state on all ranks of the dimension; None: torch's own.
    """
    size, first = logits.shape[-1], ranks.at("tp") * logits.shape[-1]
    best, ids = [], []
    for rows in torch.split(logits, _ROWS):
        noise = torch.empty(len(rows), size * ranks.mesh.tp, device=rows.device).exponential_(generator=generator)
        score, at = (rows.float() - noise[:, first : first + size].log()).max(-1)
        best.append(score)
        ids.append(at + first)
    found = torch.stack([torch.cat(best).double(), torch.cat(ids).double()])  # [2, N]; a double holds any id
    if ranks.mesh.tp > 1:
        parts = [torch.empty_like(found) for _ in range(ranks.mesh.tp)]
        dist.all_gather(parts, found, group=ranks.group("tp"))
        stacked = torch.stack(parts)
        found = stacked.gather(0, stacked[:, :1].argmax(0, keepdim=True).expand(1, 2, -1))[0]
    return found[1].long()
