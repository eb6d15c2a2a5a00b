"""Practice of table policies on locks, through the estimators, objectives and optimizer that trainings of models use.

What is a table here is the network alone: one logit for each door, position, word before and token, and a critic that
is linear in the number of right words so far. Credit (`rl.estimators`, `rl.advantages.q_targets`), losses
(`rl.objective`, `rl.critic`, `rl.soft_values`), optimizer and falling rate are the library's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.credit.lock import (
    COLORS,
    DOORS,
    END,
    LEGAL,
    PASS_PAY,
    START,
    VOCABULARY,
    Floats,
    Ints,
    Lock,
    Rollout,
    draw_phrases,
    play,
)
from evolvent.learn.learner import RL_OPTIMIZER, RL_TRAIN
from evolvent.learn.objectives import Objective, Outputs
from evolvent.learn.optim.make import build_optimizer
from evolvent.learn.token_sequences import Batch
from evolvent.rl.advantages import q_targets
from evolvent.rl.critic import critic_objective
from evolvent.rl.diagnostics import explained_variance
from evolvent.rl.estimators import GaeEstimator
from evolvent.rl.objective import policy_gradient
from evolvent.rl.policy_losses import clipped_surrogate
from evolvent.rl.presets import NTPO, POAD, PPO_ACTION, Preset
from evolvent.rl.rollout_batch import GOES_ON, TERMINATED, RolloutBatch
from evolvent.rl.settings import ValueLoss
from evolvent.rl.soft_values import expected_soft_value, log_sum_exp_value, soft_policy, soft_policy_kl, td_loss
from evolvent.trajectory import sample_rng

__all__ = ["ARMS", "Practice", "PracticePlan", "make_logits", "measure_soft_optimum", "practise"]

ARMS = ("poad", "ntpo", "ntpo99", "ppo", "etpo", "twosome10", "twosome100", "twosome10000")
_WRONG_LOGIT, _END_LOGIT = -3.5, 3.0  # of illegal words and early ends, and of the end after the code's length


@dataclass(frozen=True)
class PracticePlan:
    """The settings of a practice that all arms share.

    Args:
        iterations: rollouts, each learned in `ppo_epochs` x `minibatches` updates.
        episodes: of a rollout.
        gamma: discount between actions; `token_gamma` of ntpo too.
        critic_lr: of the critic, or of Q's tables. Rates fall to a tenth, as in `RL_TRAIN`.
        entropy_coef: of all arms but etpo.
        beta: weight of the divergence in etpo, as published. polyak: of its target tables.
    """

    iterations: int = 250
    episodes: int = 16
    ppo_epochs: int = 2
    minibatches: int = 2
    gamma: float = 0.9
    gae_lambda: float = 0.95
    critic_lr: float = 0.01
    entropy_coef: float = 1e-3
    beta: float = 0.01
    polyak: float = 0.5

    @property
    def updates(self) -> int:
        """Returns the number of updates of a policy."""
        return self.iterations * self.ppo_epochs * self.minibatches


@dataclass(frozen=True)
class Practice:
    """The result of a practice.

    Attributes:
        curve: `[iterations + 1]`. The exact expected return before each iteration, and at the end.
        explained: `[iterations]`. The share of the variance of returns that the critic explained before an update.
        actions: played in all.
    """

    curve: tuple[float, ...]
    explained: tuple[float, ...]
    actions: int


def make_logits(length: int) -> Tensor:
    """Makes the logits that all arms begin with, as after imitating legal phrases of the code's length."""
    logits = torch.zeros(DOORS, length + 1, COLORS + 1, VOCABULARY)
    logits[..., ~torch.from_numpy(LEGAL)] = _WRONG_LOGIT
    logits[:, :length, :, END] = _WRONG_LOGIT
    logits[:, length, :, END] = _END_LOGIT
    return logits


def practise(arm: str, length: int, *, seed: int, rate: float, plan: PracticePlan) -> Practice:
    """Practices one arm on the lock of a seed; all arms draw from equal random numbers.

    Args:
        rate: learning rate of the policy's table at first.
    """
    lock, rng = Lock.draw(length, seed), sample_rng("lengths", length, seed)
    if arm.startswith("twosome"):
        return _practise_listed(lock, _list_actions(lock, int(arm.removeprefix("twosome")), seed), rng, rate, plan)
    if arm == "etpo":
        return _practise_soft(lock, rng, rate, plan)
    return _practise_gradient(lock, _make_preset(arm, plan), rng, rate, plan)


# ------------------------------------------------------------------ networks that are tables


class _Table:
    """A parameter with its optimizer, whose rate falls with the share of the practice that is done."""

    def __init__(self, weight: Tensor, rate: float) -> None:
        self.weight = weight.clone().requires_grad_()
        self._train = RL_TRAIN.model_copy(update={"lr": rate})
        self._optimizer = build_optimizer(
            RL_OPTIMIZER, [("table", self.weight)], lr=rate, betas=self._train.betas, weight_decay=0.0
        )

    def update(self, loss: Tensor, share: float) -> None:
        """Takes one step."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([self.weight], self._train.max_grad_norm or torch.inf)
        for group in self._optimizer.param_groups:
            group["lr"] = self._train.learning_rate(0, share)
        self._optimizer.step()


class _Tokens:
    """The tokens of a rollout as tensors, and the outputs of tables at them."""

    def __init__(self, rollout: Rollout, length: int) -> None:
        index = (rollout.door, rollout.position, rollout.previous)
        self.door, self.position, self.previous = (torch.from_numpy(column) for column in index)
        self.token = torch.from_numpy(rollout.token)
        intact = ~rollout.broken
        features = np.stack([intact, intact * rollout.num_right / length, ~intact], axis=1)
        self.features = torch.from_numpy(features.astype(np.float32))
        batch = rollout.batch
        first_action = np.flatnonzero(np.append(True, np.diff(batch.episode) > 0))
        self.episode = batch.episode_of_token
        self.columns = {"action": torch.from_numpy(batch.action - first_action[self.episode])}

    def select(self, logits: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Returns the logits `[N, VOCABULARY]` of the table entries of some tokens."""
        return logits[self.door[rows], self.position[rows], self.previous[rows]]

    def estimate_values(self, weight: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Returns the values `[N]` of the prefixes before some tokens."""
        return (weight[self.door[rows], self.position[rows]] * self.features[rows]).sum(-1)

    def score(self, logits: Tensor, rows: Tensor | slice = slice(None)) -> Outputs:
        """Computes log-probabilities and entropies of some tokens."""
        logprobs = self.select(logits, rows).log_softmax(-1)
        chosen = logprobs.gather(-1, self.token[rows][:, None]).squeeze(-1)
        return Outputs(logprobs=chosen, entropy=-(logprobs.exp() * logprobs).sum(-1))

    def collate(self, rows: Tensor) -> Batch:
        """Builds the batch of some tokens, as an objective reads it."""
        count = len(rows)
        sequence = torch.from_numpy(self.episode)[rows]
        return Batch(
            torch.zeros(1, count, dtype=torch.int64),
            torch.arange(count),
            self.token[rows],
            torch.ones(count),
            tuple(sequence.unique().tolist()),
            count,
            sequence=sequence,
            columns={name: column[rows] for name, column in self.columns.items()},
        )

    def cut(self, plan: PracticePlan, rng: np.random.Generator) -> list[Tensor]:
        """Cuts the episodes into the minibatches of all passes; returns the tokens of each."""
        return [
            torch.from_numpy(np.flatnonzero(np.isin(self.episode, episodes)))
            for _ in range(plan.ppo_epochs)
            for episodes in np.array_split(rng.permutation(plan.episodes), plan.minibatches)
        ]


def _read_chances(logits: Tensor) -> Floats:
    chances: Floats = logits.detach().double().softmax(-1).numpy()
    return chances


def _share(iteration: int, plan: PracticePlan) -> float:
    return iteration / plan.iterations


# ------------------------------------------------------------------ POAD, NTPO and PPO over actions


def _make_preset(arm: str, plan: PracticePlan) -> Preset:
    """Returns a published preset with the discount, entropy and stopping rule that all arms share."""
    preset = {"poad": POAD, "ntpo": NTPO, "ntpo99": NTPO, "ppo": PPO_ACTION}[arm]
    assert isinstance(preset.estimator, GaeEstimator)
    token_gamma = {"ntpo": plan.gamma, "ntpo99": 0.99}.get(arm, 1.0)
    estimator = replace(preset.estimator, gamma=plan.gamma, gae_lambda=plan.gae_lambda, token_gamma=token_gamma)
    loss = replace(preset.loss, entropy_coef=plan.entropy_coef, target_kl=None, value_loss=None)
    return Preset(arm, estimator, loss)


def _practise_gradient(
    lock: Lock, preset: Preset, rng: np.random.Generator, rate: float, plan: PracticePlan
) -> Practice:
    assert isinstance(preset.estimator, GaeEstimator)
    level = preset.estimator.level
    policy = _Table(make_logits(lock.length), rate)
    critic = _Table(torch.zeros(DOORS, lock.length + 1, 3), plan.critic_lr)
    objective = policy_gradient(preset.loss, name=preset.name)
    fitting = critic_objective(ValueLoss(clip=0.2, level="action" if level == "action" else "part"))
    curve, explained, actions = [], [], 0
    for iteration in range(plan.iterations):
        chances = _read_chances(policy.weight)
        curve.append(lock.measure_return(chances))
        rollout = play(lock, chances, episodes=plan.episodes, rng=rng)
        tokens = _Tokens(rollout, lock.length)
        with torch.no_grad():
            values = tokens.estimate_values(critic.weight)
            old = tokens.score(policy.weight).logprobs
        advantages = preset.estimator(rollout.batch, values=values.numpy())
        fitted = rollout.position == 0 if level == "action" else slice(None)
        explained.append(explained_variance(values.numpy()[fitted], advantages.returns[fitted]))
        tokens.columns |= {
            "old": old,
            "old_values": values,
            "advantages": torch.from_numpy(advantages.advantage.astype(np.float32)),
            "returns": torch.from_numpy(advantages.returns.astype(np.float32)),
        }
        for rows in tokens.cut(plan, rng):
            batch = tokens.collate(rows)
            _minimize(policy, objective, tokens.score(policy.weight, rows), batch, _share(iteration, plan))
            values_now = Outputs(values=tokens.estimate_values(critic.weight, rows))
            _minimize(critic, fitting, values_now, batch, _share(iteration, plan))
        actions += len(rollout.batch.episode)
    curve.append(lock.measure_return(_read_chances(policy.weight)))
    return Practice(tuple(curve), tuple(explained), actions)


def _minimize(table: _Table, objective: Objective, outputs: Outputs, batch: Batch, share: float) -> None:
    loss, count = objective.loss(outputs, batch)
    table.update(loss / count, share)


# ------------------------------------------------------------------ ETPO


def _practise_soft(lock: Lock, rng: np.random.Generator, rate: float, plan: PracticePlan) -> Practice:
    reference = make_logits(lock.length)
    policy = _Table(reference, rate)
    action_values = _Table(torch.zeros_like(reference), plan.critic_lr)  # Q without the value of its prefix
    critic = _Table(torch.zeros(DOORS, lock.length + 1, 3), plan.critic_lr)
    targets = [table.weight.detach().clone() for table in (action_values, critic)]
    curve, explained, actions = [], [], 0
    for iteration in range(plan.iterations):
        chances, share = _read_chances(policy.weight), _share(iteration, plan)
        curve.append(lock.measure_return(chances))
        rollout = play(lock, chances, episodes=plan.episodes, rng=rng)
        tokens = _Tokens(rollout, lock.length)
        logrho = tokens.select(reference).log_softmax(-1)
        with torch.no_grad():
            q = tokens.estimate_values(targets[1])[:, None] + tokens.select(targets[0])
            logpi = tokens.select(policy.weight).log_softmax(-1)
            soft = expected_soft_value(q, logpi, logrho, beta=plan.beta).numpy()
            chosen = q.gather(-1, tokens.token[:, None]).squeeze(-1).numpy()
        returns = q_targets(soft, chosen, rollout.batch, gamma=plan.gamma, gae_lambda=0.95, token_lambda=0.95)
        explained.append(explained_variance(chosen, returns))
        goal = torch.from_numpy(returns.astype(np.float32))
        minibatches = tokens.cut(plan, rng)
        for rows in minibatches:
            advantage = tokens.select(action_values.weight, rows).gather(-1, tokens.token[rows][:, None]).squeeze(-1)
            loss = td_loss(tokens.estimate_values(critic.weight, rows) + advantage, goal[rows]).mean()
            _update_both(action_values, critic, loss, share)
        for target, table in zip(targets, (action_values, critic), strict=True):
            target.lerp_(table.weight.detach(), 1.0 - plan.polyak ** len(minibatches))
        for rows in minibatches:
            logpi = tokens.select(policy.weight, rows).log_softmax(-1)
            q = tokens.select(action_values.weight.detach(), rows)
            policy.update(soft_policy_kl(logpi, logrho[rows], q, beta=plan.beta).mean(), share)
        actions += len(rollout.batch.episode)
    curve.append(lock.measure_return(_read_chances(policy.weight)))
    return Practice(tuple(curve), tuple(explained), actions)


def measure_soft_optimum(lock: Lock, *, beta: float, gamma: float) -> float:
    """Computes the return of the policy at which ETPO's objective is greatest, by its backup over all prefixes.

    That policy is rho exp(Q / beta) / Z at every prefix; it may depend on the number of right words so far, which no
    table knows.
    """
    logrho = make_logits(lock.length).double().log_softmax(-1)
    num_right = torch.arange(lock.length + 1)
    share = num_right.double() / lock.length / DOORS
    next_value = next_return = 0.0
    for door in reversed(range(DOORS)):
        value = returned = torch.zeros(COLORS + 1, lock.length + 1, dtype=torch.float64)
        for position in reversed(range(lock.length + 1)):
            q = torch.zeros(COLORS + 1, lock.length + 1, VOCABULARY, dtype=torch.float64)
            paid = torch.zeros_like(q)
            if position == lock.length:
                q[..., END], paid[..., END] = share + gamma * next_value, share + next_return
            elif position == 0:
                q[..., END], paid[..., END] = PASS_PAY / DOORS + gamma * next_value, PASS_PAY / DOORS + next_return
            for word in range(COLORS) if position < lock.length else ():
                is_right = word == lock.codes[door, position]
                after = (num_right + int(is_right)).clamp(max=lock.length)
                allowed = torch.from_numpy(LEGAL[:, word])
                q[allowed, :, word], paid[allowed, :, word] = value[word, after], returned[word, after]
            reference = logrho[door, position][:, None].expand_as(q).reshape(-1, VOCABULARY)
            flat = q.reshape(-1, VOCABULARY)
            value = log_sum_exp_value(flat, reference, beta=beta).reshape(value.shape)
            chances = soft_policy(flat, reference, beta=beta).exp()
            returned = (chances * paid.reshape(-1, VOCABULARY)).sum(-1).reshape(value.shape)
        next_value, next_return = float(value[START, 0]), float(returned[START, 0])
    return next_return


def _update_both(first: _Table, second: _Table, loss: Tensor, share: float) -> None:
    """Takes a step of two tables that one loss reads."""
    gradients = torch.autograd.grad(loss, [first.weight, second.weight])
    for table, gradient in zip((first, second), gradients, strict=True):
        table.update((table.weight * gradient).sum(), share)


# ------------------------------------------------------------------ TWOSOME: a choice among listed actions


@dataclass(frozen=True, eq=False)
class Listed:
    """The actions that a world lists at its doors.

    Attributes:
        tokens, previous: `[DOORS, K, length + 1]`. Tokens with their end, and the word before each; 0 after the end.
        num_words: `[DOORS, K]`. Words before the end.
        pay, opens: `[DOORS, K]`. What an action pays, and whether the episode goes on after it.
    """

    tokens: Ints
    previous: Ints
    num_words: Ints
    pay: Floats
    opens: NDArray[np.bool_]


def _list_actions(lock: Lock, count: int, seed: int) -> Listed:
    """Lists the right action of each door and legal phrases of any length up to the code's."""
    rng = sample_rng("listed", lock.length, seed, count)
    tokens = np.zeros((DOORS, count, lock.length + 1), np.int64)
    num_words = np.zeros((DOORS, count), np.int64)
    for door in range(DOORS):
        phrases = draw_phrases(count, lock.length, rng)
        num_words[door] = rng.integers(1, lock.length + 1, size=count)
        right = int(rng.integers(count))
        phrases[right], num_words[door, right] = lock.codes[door], lock.length
        positions = np.arange(lock.length + 1)
        padded = np.append(phrases, np.full((count, 1), END), axis=1)
        tokens[door] = np.where(positions == num_words[door][:, None], END, padded)
        tokens[door][positions > num_words[door][:, None]] = 0
    previous = np.concatenate([np.full((DOORS, count, 1), START), tokens[:, :, :-1]], axis=2)
    is_word = np.arange(lock.length + 1) < num_words[..., None]
    previous[..., 1:][~is_word[..., :-1]] = 0
    opens = num_words == lock.length
    num_right = (tokens[..., :-1] == lock.codes[:, None]).sum(-1)
    return Listed(tokens, previous, num_words, np.where(opens, num_right / lock.length / DOORS, 0.0), opens)


def score_listed(logits: Tensor, listed: Listed) -> Tensor:
    """Computes the log-probability of every listed action, `[DOORS, K]`: a softmax over means of its words'."""
    doors, positions = np.arange(DOORS)[:, None, None], np.arange(listed.tokens.shape[2])
    logprobs = logits.log_softmax(-1)[doors, positions, listed.previous, listed.tokens]
    is_written = torch.from_numpy(positions <= listed.num_words[..., None])
    sums = torch.where(is_written, logprobs, 0.0).sum(-1)
    return (sums / torch.from_numpy(listed.num_words)).log_softmax(-1)


def choice_loss(
    scores: Tensor, door: Tensor, chosen: Tensor, *, old: Tensor, advantages: Tensor, entropy_coef: float
) -> Tensor:
    """Computes `rl.candidates.choice_objective` over decisions of which many have the same candidates.

    Args:
        scores: `[DOORS, K]`, log-probabilities of the listed actions.
        door, chosen, old, advantages: `[D]`, of the decisions.
    """
    entropy = -(scores.exp() * scores).sum(-1)
    terms = clipped_surrogate(scores[door, chosen] - old, advantages, low=0.2, high=0.2)
    return (terms - entropy_coef * entropy[door]).mean()


def _practise_listed(lock: Lock, listed: Listed, rng: np.random.Generator, rate: float, plan: PracticePlan) -> Practice:
    estimator = _make_preset("ppo", plan).estimator
    policy, critic = _Table(make_logits(lock.length), rate), _Table(torch.zeros(DOORS), plan.critic_lr)
    curve, explained, actions = [], [], 0
    for iteration in range(plan.iterations):
        share = _share(iteration, plan)
        with torch.no_grad():
            scores = score_listed(policy.weight, listed)
        curve.append(_measure_listed(scores, listed))
        episode, door, chosen, batch = _play_listed(scores, listed, episodes=plan.episodes, rng=rng)
        doors, choices = torch.from_numpy(door), torch.from_numpy(chosen)
        values = critic.weight.detach()[doors]
        credit = estimator(batch, values=values.numpy())
        explained.append(explained_variance(values.numpy(), credit.returns))
        advantages, returns = (
            torch.from_numpy(column.astype(np.float32)) for column in (credit.advantage, credit.returns)
        )
        for _ in range(plan.ppo_epochs):
            for episodes in np.array_split(rng.permutation(plan.episodes), plan.minibatches):
                rows = torch.from_numpy(np.flatnonzero(np.isin(episode, episodes)))
                loss = choice_loss(
                    score_listed(policy.weight, listed),
                    doors[rows],
                    choices[rows],
                    old=scores[doors[rows], choices[rows]],
                    advantages=advantages[rows],
                    entropy_coef=plan.entropy_coef,
                )
                policy.update(loss, share)
                critic.update(0.5 * (critic.weight[doors[rows]] - returns[rows]).square().mean(), share)
        actions += len(door)
    with torch.no_grad():
        curve.append(_measure_listed(score_listed(policy.weight, listed), listed))
    return Practice(tuple(curve), tuple(explained), actions)


def _measure_listed(scores: Tensor, listed: Listed) -> float:
    """Computes the expected return of a choice among listed actions, exactly."""
    chances = scores.double().exp().numpy()
    pay, goes_on = (chances * listed.pay).sum(1), (chances * listed.opens).sum(1)
    return float(pay[0] + goes_on[0] * pay[1])


def _play_listed(
    scores: Tensor, listed: Listed, *, episodes: int, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints, RolloutBatch]:
    """Plays episodes; returns episode, door and choice of each decision, and the decisions as actions of one token."""
    cumulative = np.cumsum(scores.double().exp().numpy(), axis=1)
    draws = rng.random((DOORS, episodes))
    count = listed.tokens.shape[1]
    chosen = np.stack(
        [np.searchsorted(cumulative[door], draws[door], side="right").clip(max=count - 1) for door in range(DOORS)]
    )
    goes_on = listed.opens[0, chosen[0]]
    table = np.array(
        [(episode, door) for episode in range(episodes) for door in range(DOORS) if door == 0 or goes_on[episode]]
    )
    episode, door = table[:, 0], table[:, 1]
    choice = chosen[door, episode]
    numbers = np.arange(len(table))
    ended = np.where(np.append(np.diff(episode) > 0, True), TERMINATED, GOES_ON)
    batch = RolloutBatch(
        logp=scores.numpy()[door, choice].astype(np.float32),
        version=np.zeros(len(table), np.int32),
        span=numbers,
        action=numbers,
        episode=episode,
        group=np.zeros(episodes, np.int64),
        reward=listed.pay[door, choice],
        ended=ended.astype(np.int8),
        bootstrap=np.full(len(table), np.nan),
        sequence=episode,
        position=numbers,
    )
    return episode, door, choice, batch
