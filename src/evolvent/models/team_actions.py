"""The common parts of team policies: their shape, their inputs, and the distributions of actions.

Axes: B decisions, n agents, O numbers of an observation, K parts of one agent's action (choices, or numbers), A
outputs of the network for one agent (logits of all choices, or means).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a policy of a team") from error

from evolvent.errors import BatchMismatch, ConfigError, Problem, unknown_name_problem

__all__ = ["ActionHead", "EvaluatedActions", "SampledActions", "TeamInputs", "TeamKind", "TeamModel", "TeamShape"]

TeamKind = Literal["mat", "mat_encoder", "mat_decoder", "mat_gru", "mat_dec", "mappo", "happo", "mlp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamShape:
    """The architecture of a team policy: JSON values only, stored beside its weights.

    Attributes:
        kind: the network. "mat"; its ablations "mat_encoder", "mat_decoder", "mat_gru"; "mat_dec"; "mappo"; "happo";
            "mlp", a policy over numbers.
        agents: n that it was made for; only "mat_dec" and "happo" without `share` have weights of single agents.
        observation: O. state: numbers of a central state, which only MAPPO's and HAPPO's critics read; 0: none.
        sizes: choices of each part of a discrete action. dim: numbers of a continuous one. Exactly one of the two.
        width, heads, blocks: of the trunk, or of the MLPs.
        share: one actor for all agents ("mat_dec" and "happo"; MAPPO's is always shared).
        prefix_values: values are read in the decoder, before each agent's action and knowing those before it ("mat").
    Raises:
        ConfigError: what contradicts itself, all at once.
    """

    kind: TeamKind = "mat"
    agents: int
    observation: int
    state: int = 0
    sizes: tuple[int, ...] = ()
    dim: int = 0
    width: int = 64
    heads: int = 1
    blocks: int = 1
    share: bool = False
    prefix_values: bool = False

    def __post_init__(self) -> None:
        minimums = {"agents": 1, "observation": 1, "state": 0, "dim": 0, "width": 2, "heads": 1, "blocks": 1}
        problems = [
            Problem(name, f"got {getattr(self, name)}, expected at least {minimum}")
            for name, minimum in minimums.items()
            if getattr(self, name) < minimum
        ]
        if bool(self.sizes) == bool(self.dim) or any(size < 1 for size in self.sizes):
            problems.append(
                Problem("sizes", f"got {self.sizes} choices and {self.dim} numbers", "set only one of sizes and dim")
            )
        if self.kind not in get_args(TeamKind):
            problems.append(unknown_name_problem("kind", self.kind, get_args(TeamKind)))
        if self.kind == "mat_gru" and self.width % 2:
            problems.append(Problem("width", f"got {self.width}, expected an even number for mat_gru"))
        if self.prefix_values and self.kind != "mat":
            problems.append(Problem("prefix_values", f"{self.kind} has no decoder to read values from"))
        if problems:
            raise ConfigError(problems)

    @property
    def outputs(self) -> int:
        """Returns A: logits of all parts, or means."""
        return sum(self.sizes) or self.dim

    @property
    def parts(self) -> int:
        """Returns K: choices, or numbers, of one agent's action."""
        return len(self.sizes) or self.dim


class TeamInputs(NamedTuple):
    """The inputs of B decisions.

    Attributes:
        observation: `[B, n, O]`. alive: `[B, n]` bool, the agents that decide; None: all do.
        available: `[B, n, A]` bool, the available choices; None: all. state: `[B, S]`, or None.
    """

    observation: Tensor
    alive: Tensor | None = None
    available: Tensor | None = None
    state: Tensor | None = None

    def rows(self, index: Tensor | slice) -> TeamInputs:
        """Selects some of the decisions, `[R]`."""
        return TeamInputs(*(None if x is None else x[index] for x in self))  # type: ignore[arg-type]


class SampledActions(NamedTuple):
    """Actions `[B, n, K]` (integers, or floats), their log-probabilities `[B, n]` and the critic's values `[B, n]`."""

    actions: Tensor
    logp: Tensor
    values: Tensor


class EvaluatedActions(NamedTuple):
    """Evaluation of given actions: log-probabilities `[B, n]`, entropies `[B, n]`, and values `[B, n]`."""

    logp: Tensor
    entropy: Tensor
    values: Tensor


class TeamModel(nn.Module):
    """The interface of a team policy. All agents' actions have a probability given those of earlier agents."""

    shape: TeamShape

    def act(self, inputs: TeamInputs, uniform: Tensor, *, greedy: bool = False) -> SampledActions:
        """Samples actions without gradients.

        Args:
            uniform: `[B, n, K]` in (0, 1), the random numbers; ignored where greedy.
        """
        raise NotImplementedError

    def evaluate(self, inputs: TeamInputs, actions: Tensor) -> EvaluatedActions:
        """Computes log-probabilities, entropies and values of actions `[B, n, K]`, for all agents in one pass."""
        raise NotImplementedError

    def values(self, inputs: TeamInputs) -> Tensor:
        """Computes the critic's values `[B, n]` before any decision."""
        raise NotImplementedError

    def update_scales(self, observation: Tensor) -> None:
        """Learns the scale of observations `[N, n, O]` after an update, where the network standardizes them."""

    def check(self, inputs: TeamInputs) -> None:
        """Checks that inputs belong to this policy's spaces.

        Raises:
            BatchMismatch: other axes than the shape has.
        """
        shape, observation = self.shape, inputs.observation
        if observation.dim() != 3 or observation.shape[2] != shape.observation:
            raise BatchMismatch(
                "observations do not match the team",
                value=tuple(observation.shape),
                expected=f"[B, n, {shape.observation}]",
            )
        if inputs.available is not None and inputs.available.shape != (*observation.shape[:2], shape.outputs):
            raise BatchMismatch(
                "masks of available actions do not match the team",
                value=tuple(inputs.available.shape),
                expected=(*observation.shape[:2], shape.outputs),
            )


class ActionHead(nn.Module):
    """The distribution of one agent's action, from the network's outputs `[..., A]`.

    Discrete: a softmax for each part over the available choices, parts independent of each other. Continuous: a
    Gaussian for each number, whose deviation `0.5 sigmoid(s)`, with s = 1 at first, does not depend on the
    observation (the code of arXiv 2205.14953). Log-probabilities and entropies are sums over the parts.
    """

    def __init__(self, shape: TeamShape) -> None:
        super().__init__()
        self.sizes, self.dim = shape.sizes, shape.dim
        self.log_std = nn.Parameter(torch.ones(shape.dim)) if shape.dim else None

    @property
    def std(self) -> Tensor:
        """Returns the standard deviation `[D]` of a continuous action."""
        if self.log_std is None:
            raise BatchMismatch("a discrete action has no standard deviation")
        return 0.5 * self.log_std.sigmoid()

    def encode(self, actions: Tensor) -> Tensor:
        """Converts actions `[..., K]` to a network's input `[..., A]`: one-hot (integers) for each part, or the
        numbers.
        """
        if self.log_std is not None:
            return actions
        parts = [nn.functional.one_hot(actions[..., k], size) for k, size in enumerate(self.sizes)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def sample(
        self, outputs: Tensor, uniform: Tensor, available: Tensor | None, *, greedy: bool
    ) -> tuple[Tensor, Tensor]:
        """Samples actions `[..., K]` by inverse CDF, or takes the likeliest, and returns log-probabilities `[...]`
        too.
        """
        actions = self.draw(outputs, uniform if greedy else self.noise(uniform), available, greedy=greedy)
        return actions, self.logp(outputs, actions, available)

    def noise(self, uniform: Tensor) -> Tensor:
        """Converts numbers `[..., K]` in (0, 1) to the noise of `draw`: themselves, or deviations of a Gaussian."""
        if self.log_std is None:
            return uniform
        deviations: Tensor = torch.special.ndtri(uniform).to(self.log_std.dtype) * self.std
        return deviations

    def draw(self, outputs: Tensor, noise: Tensor, available: Tensor | None, *, greedy: bool) -> Tensor:
        """Draws actions `[..., K]`."""
        if self.log_std is not None:
            return outputs if greedy else outputs + noise
        choices = []
        for k, logits in enumerate(self._split_logits(outputs, available)):
            choices.append(
                logits.argmax(-1, keepdim=True) if greedy else _sample_inverse_cdf(logits, noise[..., k : k + 1])
            )
        return choices[0] if len(choices) == 1 else torch.cat(choices, -1)

    def logp(self, outputs: Tensor, actions: Tensor, available: Tensor | None) -> Tensor:
        """Computes log-probabilities `[...]` of actions `[..., K]`."""
        if self.log_std is not None:
            return _gaussian_logp(actions, outputs, self.std.expand_as(outputs))
        part_logps = [
            logits.log_softmax(-1).gather(-1, actions[..., k : k + 1]).squeeze(-1)
            for k, logits in enumerate(self._split_logits(outputs, available))
        ]
        return part_logps[0] if len(part_logps) == 1 else torch.stack(part_logps).sum(0)

    def evaluate(self, outputs: Tensor, actions: Tensor, available: Tensor | None) -> tuple[Tensor, Tensor]:
        """Computes log-probabilities and entropies `[...]` of actions `[..., K]`."""
        if self.log_std is not None:
            std = self.std.expand_as(outputs)
            entropy = (0.5 + 0.5 * _LOG_2PI + std.log()).sum(-1)
            return _gaussian_logp(actions, outputs, std), entropy
        logp = entropy = outputs.new_zeros(outputs.shape[:-1])
        for k, logits in enumerate(self._split_logits(outputs, available)):
            logprobs = logits.log_softmax(-1)
            logp = logp + logprobs.gather(-1, actions[..., k : k + 1]).squeeze(-1)
            finite_logprobs = logprobs if available is None else logprobs.clamp(min=torch.finfo(logprobs.dtype).min)
            entropy = entropy - (logprobs.exp() * finite_logprobs).sum(-1)
        return logp, entropy

    def _split_logits(self, outputs: Tensor, available: Tensor | None) -> tuple[Tensor, ...]:
        """Returns the logits `[..., size]` of each part; -inf for unavailable choices."""
        if available is not None:
            outputs = outputs.masked_fill(~available, -torch.inf)
        return torch.split(outputs, list(self.sizes), -1) if len(self.sizes) > 1 else (outputs,)


_LOG_2PI = 1.8378770664093453


def _gaussian_logp(actions: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Computes the log-density `[...]` of `actions [..., D]`."""
    return (-0.5 * ((actions - mean) / std).square() - std.log() - 0.5 * _LOG_2PI).sum(-1)


def _sample_inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    """Returns `[..., 1]`, the first choice whose cumulative probability exceeds `uniform [..., 1]` times the total.

    A choice without probability is never drawn: its cumulative probability exceeds nothing more than the previous
    one.
    """
    reached = logits.double().softmax(-1).cumsum(-1)
    index = (reached <= uniform * reached[..., -1:]).sum(-1, keepdim=True)
    return index.clamp(max=logits.shape[-1] - 1)
