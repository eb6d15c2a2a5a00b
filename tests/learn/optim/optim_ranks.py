"""What tests of optimizers run in every rank: a small network trained on any layout, and norms of mixed gradients."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from evolvent.learn.optim import OptimizerConfig, build_optimizer
from evolvent.learn.optim.clip import clip_factor, local_part, scale_, total_norm

ROWS, VOCABULARY = 8, 23
BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)  # the number of groups depends on the layout


class Net(nn.Module):
    """An embedding, a gated block with a norm, and a head, which may be the embedding; odd sizes on purpose."""

    def __init__(self, *, tied=False):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 20)
        self.down = nn.Linear(20, 16, bias=False)
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.down(torch.tanh(self.up(self.norm(x)))))


def net(*, tied=False, dtype=torch.float32):
    torch.manual_seed(7)
    return Net(tied=tied).to(dtype)


def batch(step):
    draw = torch.Generator().manual_seed(step)
    return torch.randint(0, VOCABULARY, (ROWS, 7), generator=draw)


def loss_of(model, step, *, at=0, of=1):
    """This rank's share of the mean loss, times the number of shares, since FSDP divides gradients by it."""
    ids = batch(step)
    mine = ids[at::of]
    total = nn.functional.cross_entropy(
        model(mine[:, :-1]).flatten(0, 1).float(), mine[:, 1:].flatten(), reduction="sum"
    )
    return total * of / (ids.numel() - len(ids))


def laid(model, replicate, shard, tp):
    if replicate * shard * tp == 1:
        return None
    mesh = init_device_mesh("cpu", (replicate, shard, tp), mesh_dim_names=("replicate", "shard", "tp"))
    if tp > 1:
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if replicate * shard > 1:
        data = mesh["replicate", "shard"] if replicate > 1 else mesh["shard"]
        for part in (model.up, model.down):
            fully_shard(part, mesh=data)
        fully_shard(model, mesh=data)
    return mesh


@contextmanager
def sent():
    """Counts the bytes that `dist.all_reduce` is given."""
    real, count = dist.all_reduce, [0]

    def counting(tensor, *args, **kwargs):
        count[0] += tensor.numel() * tensor.element_size()
        return real(tensor, *args, **kwargs)

    dist.all_reduce = counting
    try:
        yield count
    finally:
        dist.all_reduce = real


def one_update(model, optimizer, step, *, at, of, clip):
    """As a Learner does it: armed if fused, two passes if clipped and fused."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    fused = getattr(optimizer, "fused", False)
    if fused and clip is not None:
        with optimizer.measure_norm() as norm:
            loss_of(model, step, at=at, of=of).backward()
        optimizer.arm(clip_factor(clip, norm))
    elif fused:
        optimizer.arm()
    loss = loss_of(model, step, at=at, of=of)
    loss.backward()
    if fused:
        assert all(p.grad is None for p in params)
    elif clip is not None:
        scale_(params, clip, total_norm(params))
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def train(name, options):
    """Losses, whole weights, local shapes of state and bytes of a training; for options see below."""
    layout = options.get("layout", (1, 1, 1))
    model = net(tied=options.get("tied", False))
    mesh = laid(model, *layout)
    of = layout[0] * layout[1]
    at = 0 if mesh is None else mesh["replicate"].get_local_rank() * layout[1] + mesh["shard"].get_local_rank()
    settings = {"clip": "two_pass" if "clip" in options else "none", **options.get("settings", {})}
    if name not in ("lomo", "adalomo"):
        settings.pop("clip")
    optimizer = build_optimizer(
        OptimizerConfig(name=name, **settings),
        model.named_parameters(),
        lr=options.get("lr", 0.02),
        betas=(0.9, 0.98),
        weight_decay=options.get("weight_decay", 0.0),
    )
    if "load" in options:
        found = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=BY_NAME), strict=True))
        dcp.load(found, checkpoint_id=options["load"], no_dist=mesh is None)
        both = {"model_state_dict": found["model"], "optim_state_dict": found["optimizer"]}
        set_state_dict(model, optimizer, **both, options=BY_NAME)
    if options.get("curvature"):
        loss_of(model, 99, at=at, of=of).backward()
        optimizer.update_hessian(48)
        optimizer.zero_grad()
    losses, start = [], options.get("start", 0)
    with sent() as count:
        for step in range(start, start + options.get("steps", 5)):
            losses.append(one_update(model, optimizer, step, at=at, of=of, clip=options.get("clip")))
        bytes_sent = count[0]
    if "save" in options:
        found = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=BY_NAME), strict=True))
        dcp.save(found, checkpoint_id=options["save"], no_dist=mesh is None)
    for loss in losses if mesh is not None and of > 1 else ():
        for dim in ("replicate", "shard"):
            dist.all_reduce(loss, group=mesh.get_group(dim))
        loss /= of
    whole = {
        n: (p.full_tensor() if isinstance(p, DTensor) else p).detach().numpy() for n, p in model.named_parameters()
    }
    state = {
        f"{n}/{key}": tuple(local_part(value).shape)
        for n, p in model.named_parameters()
        for key, value in optimizer.state[p].items()
    }
    found = {"losses": [float(loss) for loss in losses], "weights": whole, "state": state, "sent": bytes_sent}
    return found | {"clipped": getattr(optimizer, "clipped_share", None)}


def norms():
    """4 ranks as 2 stages x 2 shards; plain, sharded, replicated and unsummed gradients, some on another mesh."""
    stages = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "shard"))
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))["tp"]
    stage, mesh = stages["pp"].get_local_rank(), stages["shard"]
    draw = torch.Generator().manual_seed(stage)  # the same gradients in all ranks of a stage
    whole = [torch.randn(shape, generator=draw) for shape in ((5, 4), (3, 6), (7,), (4, 4), (3,), (2, 2))]

    def parameter(value, on=None, placements=None, grad=None):
        given = torch.zeros_like(value)
        p = nn.Parameter(given if on is None else distribute_tensor(given, on, placements))
        p.grad = (
            grad
            if grad is not None
            else value.clone()
            if on is None
            else distribute_tensor(value.clone(), on, placements)
        )
        return p

    partial = DTensor.from_local(whole[3] / 2, mesh, [Partial()], run_check=False)
    params = [
        parameter(whole[0], mesh, [Shard(0)]),
        parameter(whole[1], other, [Shard(1)]),
        parameter(whole[2], mesh, [Replicate()]),
        parameter(whole[3], mesh, [Shard(0)], partial),
        parameter(whole[4]),
        nn.Parameter(torch.zeros(2)),  # without a gradient
    ]
    copy = parameter(whole[5]) if stage else None  # a tied weight that another stage counts
    params += [copy] if stage else []
    norm = total_norm((p for p in params), pp_group=stages.get_group("pp"), skip=[copy] if stage else [])
    squares = sum(value.square().sum() for value in whole[:5])
    dist.all_reduce(squares, group=stages.get_group("pp"))
    scale_(params, 0.5, norm)
    found = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in params if p.grad is not None]
    far = max(float((g - value * clip_factor(0.5, norm)).abs().max()) for g, value in zip(found, whole, strict=False))
    return float(norm), float(squares.sqrt()), far
