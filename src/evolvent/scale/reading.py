"""The prompt that an agent would have read next, had its episode not been cut: its value stands for the
remaining rewards.

Where a conversation continues, the prompt is the conversation and its final observation. Where these do not fit
the context, it is what the agent's history policy makes of them, computed here from the record alone without a
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from evolvent.agents.base import recorded_turn
from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.history import Turn
from evolvent.agents.language import LanguageAgent
from evolvent.models.dialects import Dialect
from evolvent.trajectory import Step, Trajectory
from evolvent.worlds.base import World
from evolvent.worlds.grammar import Parsed

__all__ = ["next_prompt"]


def next_prompt(
    trajectory: Trajectory, agent: LanguageAgent | CandidateAgent, *, world: World, parents: Mapping[str, Trajectory]
) -> Sequence[int] | None:
    """Returns the new prompt of the agent's history policy at the end of this episode; None where the policy gives
    up.

    An agent that chooses among listed actions reserves tokens for the longest of them, too: the next list of the
    world is not recorded, so that of the last step is used.

    Args:
        trajectory: Episode of the agent, cut at its horizon.
        agent: The agent.
        world: World of its task.
        parents: Trajectories that branches started from, by id; None is returned for a branch with a missing
            parent.
    """
    policy = agent.policy
    turns = _collect_turns(trajectory, policy.dialect, world=world, parents=parents)
    if turns is None:
        return None
    make_prompt = partial(agent.history, policy.dialect, world.instructions, turns, str(trajectory.final_observation))
    if isinstance(agent, LanguageAgent):
        return make_prompt(policy.context - agent.max_tokens)
    max_candidate_length = max(map(len, trajectory.steps[-1].info.get("candidates", ())), default=1)
    prompt = make_prompt(policy.context - 1)
    return (
        prompt
        if prompt is None or len(prompt) + max_candidate_length <= policy.context
        else make_prompt(policy.context - max_candidate_length)
    )


def _collect_turns(
    trajectory: Trajectory, dialect: Dialect, *, world: World, parents: Mapping[str, Trajectory]
) -> list[Turn] | None:
    """Returns all turns, from the first turn of the parent on where the episode is a branch."""

    def render(step: Step) -> str:
        return world.grammar.render(Parsed(str(step.action), step.thought))

    turns, branch = [recorded_turn(step, dialect, render=render) for step in trajectory.steps], trajectory.branch
    if branch is None:
        return turns
    parent = parents.get(branch.parent)
    if parent is None:
        return None
    parent_turns = [recorded_turn(step, dialect, render=render) for step in parent.steps[: branch.step]]
    if branch.token and turns:  # the first action began with tokens of the parent's
        parent_tokens = recorded_turn(parent.steps[branch.step], dialect, render=render).action[: branch.token]
        turns[0] = replace(turns[0], action=(*parent_tokens, *turns[0].action))
    return [*parent_turns, *turns]
