"""A straightforward implementation of MAT's published loop, in our own words: what `benchmarks.mat_speed` is beside.

The same network, numbers and schedule, written the obvious way: for every agent the whole decoder runs again over the
stream so far; observations, actions and values go to numpy and back at every step; advantages are a loop over steps;
a generator cuts minibatches out of numpy arrays and each is turned into tensors; Adam as it comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evolvent.models.mat import MultiAgentTransformer
from evolvent.models.trunk import Attention, Block, Trunk

__all__ = ["PlainLoop", "PlainMat"]

Floats = NDArray[np.float32]


class _Attention(nn.Module):
    earlier: Tensor

    def __init__(self, width: int, *, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        self.register_buffer("earlier", torch.ones(64, 64).tril())
        self.key, self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, key: Tensor, value: Tensor, query: Tensor) -> Tensor:
        k, v, q = self.key(key), self.value(value), self.query(query)
        weight = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        if self.masked:
            places = weight.shape[-1]
            weight = weight.masked_fill(self.earlier[:places, :places] == 0, -torch.inf)
        found: Tensor = self.out(weight.softmax(-1) @ v)
        return found


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))


class _Encode(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.mlp = _Attention(width, masked=False), _mlp(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, x, x))
        found: Tensor = self.norm2(x + self.mlp(x))
        return found


class _Decode(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.cross, self.mlp = _Attention(width, masked=True), _Attention(width, masked=True), _mlp(width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: Tensor, representation: Tensor) -> Tensor:
        x = self.norm1(x + self.own(x, x, x))
        x = self.norm2(representation + self.cross(x, x, representation))
        found: Tensor = self.norm3(x + self.mlp(x))
        return found


def _head(width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, outputs))


class PlainMat(nn.Module):
    """One head, one block; discrete with one choice, or continuous. Its weights are copied from ours."""

    def __init__(self, model: MultiAgentTransformer) -> None:
        super().__init__()
        shape, width = model.shape, model.shape.width
        self.discrete, self.outputs = bool(shape.sizes), shape.outputs
        self.observe = nn.Sequential(
            nn.LayerNorm(shape.observation), nn.Linear(shape.observation, width), nn.GELU(), nn.LayerNorm(width)
        )
        self.encode, self.decode = _Encode(width), _Decode(width)
        self.embed = nn.Sequential(
            nn.Linear(shape.outputs + self.discrete, width, bias=not self.discrete), nn.GELU(), nn.LayerNorm(width)
        )
        self.value_head, self.policy_head = _head(width, 1), _head(width, shape.outputs)
        self.log_std = nn.Parameter(torch.ones(shape.outputs)) if not self.discrete else None
        self._copy(model)

    def _copy(self, model: MultiAgentTransformer) -> None:
        for name in ("observe", "embed", "value_head", "policy_head"):
            getattr(self, name).load_state_dict(getattr(model, name).state_dict())
        if not isinstance(model.encoder, Trunk) or not isinstance(model.decoder, Trunk):
            raise TypeError("only MAT itself has a plain counterpart")
        for own, block in ((self.encode, model.encoder.blocks[0]), (self.decode, model.decoder.blocks[0])):
            if not isinstance(block, Block):
                raise TypeError(type(block))
            own.mlp[0].load_state_dict(block.up.state_dict())
            own.mlp[2].load_state_dict(block.down.state_dict())
            norms = [block.norm_attention, *([block.norm_cross] if block.norm_cross else []), block.norm_mlp]
            for number, norm in enumerate(norms, 1):
                getattr(own, f"norm{number}").load_state_dict(norm.state_dict())
        _copy_attention(self.encode.attention, model.encoder.blocks[0].attention)
        _copy_attention(self.decode.own, model.decoder.blocks[0].attention)
        _copy_attention(self.decode.cross, model.decoder.blocks[0].cross)

    def represent(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Values `[B, n, 1]` and representations `[B, n, D]`."""
        found = self.encode(self.observe(observation))
        return self.value_head(found), found

    def outputs_of(self, tokens: Tensor, representation: Tensor) -> Tensor:
        """`[B, n, A]` from the whole stream."""
        found: Tensor = self.policy_head(self.decode(self.embed(tokens), representation))
        return found

    def distribution(self, outputs: Tensor, available: Tensor | None) -> torch.distributions.Distribution:
        """Of one or more agents' actions."""
        if self.log_std is None:
            if available is not None:
                outputs = outputs.masked_fill(available == 0, -1e10)
            return torch.distributions.Categorical(logits=outputs)
        return torch.distributions.Normal(outputs, 0.5 * torch.sigmoid(self.log_std))

    @torch.no_grad()
    def act(self, observation: Floats, available: Floats | None) -> tuple[Floats, Floats, Floats]:
        """Actions, log-probabilities and values `[B, n, ...]`: the decoder runs over all places for every agent."""
        seen = torch.from_numpy(observation)
        masks = None if available is None else torch.from_numpy(available)
        values, representation = self.represent(seen)
        batch, agents = seen.shape[:2]
        tokens = torch.zeros(batch, agents, self.outputs + self.discrete)
        if self.discrete:
            tokens[:, 0, 0] = 1
        width = 1 if self.discrete else self.outputs
        actions, logps = torch.zeros(batch, agents, width), torch.zeros(batch, agents, width)
        for agent in range(agents):
            outputs = self.outputs_of(tokens, representation)[:, agent, :]
            drawn = self.distribution(outputs, None if masks is None else masks[:, agent, :])
            action = drawn.sample()
            logp = drawn.log_prob(action)
            actions[:, agent, :] = action.unsqueeze(-1) if self.discrete else action
            logps[:, agent, :] = logp.unsqueeze(-1) if self.discrete else logp
            if agent + 1 < agents:
                if self.discrete:
                    tokens[:, agent + 1, 1:] = nn.functional.one_hot(action, num_classes=self.outputs)
                else:
                    tokens[:, agent + 1, :] = action
        return actions.numpy(), logps.numpy(), values.numpy()

    def evaluate(self, observation: Tensor, actions: Tensor, available: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities `[B, n, K]`, the mean entropy, and values `[B, n, 1]`."""
        values, representation = self.represent(observation)
        batch, agents = observation.shape[:2]
        tokens = torch.zeros(batch, agents, self.outputs + self.discrete)
        if self.discrete:
            tokens[:, 0, 0] = 1
            one_hot = nn.functional.one_hot(actions.squeeze(-1).long(), num_classes=self.outputs)
            tokens[:, 1:, 1:] = one_hot[:, :-1, :]
        else:
            tokens[:, 1:, :] = actions[:, :-1, :]
        drawn = self.distribution(self.outputs_of(tokens, representation), available)
        if self.discrete:
            return drawn.log_prob(actions.squeeze(-1).long()).unsqueeze(-1), drawn.entropy().mean(), values
        return drawn.log_prob(actions), drawn.entropy().mean(), values


def _copy_attention(own: _Attention, theirs: object) -> None:
    if not isinstance(theirs, Attention):
        raise TypeError(type(theirs))
    with torch.no_grad():
        weights, biases = list(theirs.mix.weight.chunk(3)), list(theirs.mix.bias.chunk(3))
        if theirs.query is not None:
            weights = [theirs.query.weight, *theirs.mix.weight.chunk(2)]
            biases = [theirs.query.bias, *theirs.mix.bias.chunk(2)]
        for layer, weight, bias in zip((own.query, own.key, own.value), weights, biases, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        own.out.load_state_dict(theirs.out.state_dict())


class PlainLoop:
    """Rollouts in numpy arrays, and PPO on them."""

    def __init__(self, model: PlainMat, *, lr: float, epochs: int, minibatches: int, clip: float) -> None:
        self.model, self.epochs, self.minibatches, self.clip = model, epochs, minibatches, clip
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr, eps=1e-5, foreach=False)
        self.mean, self.square, self.weight = torch.zeros(1), torch.zeros(1), torch.zeros(1)

    def rollout(self, observations: Floats, available: Floats | None) -> dict[str, Floats]:
        """Act on `[T + 1, E, n, O]`, the last for its values alone."""
        steps, rows, agents = len(observations) - 1, *observations.shape[1:3]
        width = 1 if self.model.discrete else self.model.outputs
        kept = {name: np.zeros((steps, rows, agents, width), np.float32) for name in ("actions", "logp")}
        kept["values"] = np.zeros((steps + 1, rows, agents, 1), np.float32)
        kept["observations"] = np.zeros_like(observations)
        for t in range(steps):
            kept["observations"][t] = observations[t].copy()
            actions, logp, values = self.model.act(observations[t], None if available is None else available[t])
            kept["actions"][t], kept["logp"][t], kept["values"][t] = actions.copy(), logp.copy(), values.copy()
        with torch.no_grad():
            kept["values"][-1] = self.model.represent(torch.from_numpy(observations[-1]))[0].numpy()
        return kept

    def _moments(self) -> tuple[float, float]:
        weight = self.weight.clamp(min=1e-5)
        mean = self.mean / weight
        return float(mean), float((self.square / weight - mean**2).clamp(min=1e-2).sqrt())

    def update(self, kept: dict[str, Floats], reward: Floats, going: Floats, available: Floats | None) -> None:
        """`reward [T, E, n, 1]`, `going [T, E, n, 1]`: 0 where an episode ended."""
        steps = len(reward)
        returns, advantages, carry = np.zeros_like(kept["values"][:-1]), np.zeros_like(kept["values"][:-1]), 0.0
        mean, std = self._moments()
        for t in reversed(range(steps)):
            now, after = kept["values"][t] * std + mean, kept["values"][t + 1] * std + mean
            delta = reward[t] + 0.99 * after * going[t] - now
            carry = delta + 0.99 * 0.95 * going[t] * carry
            advantages[t], returns[t] = carry, carry + now
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-5)
        for _ in range(self.epochs):
            for sample in self._minibatches(kept, returns, advantages, available):
                self._step(*sample)

    def _minibatches(
        self, kept: dict[str, Floats], returns: Floats, advantages: Floats, available: Floats | None
    ) -> Iterator[tuple[list[Floats], Floats | None]]:
        flat = [
            x.reshape(-1, *x.shape[2:])
            for x in (
                kept["observations"][:-1],
                kept["actions"],
                kept["logp"],
                kept["values"][:-1],
                returns,
                advantages,
            )
        ]
        masks = None if available is None else available[:-1].reshape(-1, *available.shape[2:])
        order = torch.randperm(len(flat[0])).numpy()
        size = len(order) // self.minibatches
        for number in range(self.minibatches):
            index = order[number * size : (number + 1) * size]
            yield [x[index] for x in flat], None if masks is None else masks[index]

    def _step(self, arrays: list[Floats], available: Floats | None) -> None:
        observation, actions, old, before, returns, advantage = (torch.from_numpy(x) for x in arrays)
        masks = None if available is None else torch.from_numpy(available)
        logp, entropy, values = self.model.evaluate(observation, actions, masks)
        ratio = torch.exp(logp - old)
        gain = torch.min(ratio * advantage, torch.clamp(ratio, 1 - self.clip, 1 + self.clip) * advantage)
        policy = -torch.sum(gain, dim=-1, keepdim=True).mean()
        self.mean = 0.99999 * self.mean + 1e-5 * returns.mean()
        self.square = 0.99999 * self.square + 1e-5 * (returns**2).mean()
        self.weight = 0.99999 * self.weight + 1e-5
        mean, std = self._moments()
        target = (returns - mean) / std
        held = before + (values - before).clamp(-self.clip, self.clip)
        value = torch.max(_huber(target - held), _huber(target - values)).mean()
        loss = policy - 0.001 * entropy + value
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        policy.item(), value.item(), entropy.item()  # as a trainer that logs them does


def _huber(error: Tensor) -> Tensor:
    small = (error.abs() <= 10.0).float()
    return small * error**2 / 2 + (1 - small) * 10.0 * (error.abs() - 5.0)
