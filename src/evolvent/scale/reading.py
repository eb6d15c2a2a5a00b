"""What an agent would have read next, had its episode not been cut: the text whose value stands for the rest of it.

Where a conversation goes on, that is the conversation and its final observation. Where these do not fit the context, it
is what the agent's history policy leaves of them, told here from the record alone: nobody is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from evolvent.agents.base import turn_of
from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.history import Turn
from evolvent.agents.language import LanguageAgent
from evolvent.models.dialects import Dialect
from evolvent.trajectory import Step, Trajectory
from evolvent.worlds.base import World
from evolvent.worlds.grammar import Parsed

__all__ = ["next_root"]


def next_root(
    one: Trajectory, agent: LanguageAgent | CandidateAgent, *, world: World, parents: Mapping[str, Trajectory]
) -> Sequence[int] | None:
    """The new root that the agent's history policy makes at the end of this episode; None where it gives up.

    An agent that chooses among listed actions makes room for the longest of them, too: what the world would have listed
    next is not on record, so it is that of the last step.

    Args:
        one: played by the agent to its horizon. world: of its task.
        parents: by id, what branches began in; of one whose parent is not there nothing can be told: None.
    """
    policy = agent.policy
    turns = _turns(one, policy.dialect, world=world, parents=parents)
    if turns is None:
        return None
    make = partial(agent.history, policy.dialect, world.instructions, turns, str(one.final_observation))
    if isinstance(agent, LanguageAgent):
        return make(policy.context - agent.max_tokens)
    longest = max(map(len, one.steps[-1].info.get("candidates", ())), default=1)
    root = make(policy.context - 1)
    return root if root is None or len(root) + longest <= policy.context else make(policy.context - longest)


def _turns(one: Trajectory, dialect: Dialect, *, world: World, parents: Mapping[str, Trajectory]) -> list[Turn] | None:
    """All that was said, from the first turn of the parent on where the episode is a branch."""

    def render(step: Step) -> str:
        return world.grammar.render(Parsed(str(step.action), step.thought))

    own, branch = [turn_of(step, dialect, render=render) for step in one.steps], one.branch
    if branch is None:
        return own
    parent = parents.get(branch.parent)
    if parent is None:
        return None
    before = [turn_of(step, dialect, render=render) for step in parent.steps[: branch.step]]
    if branch.token and own:  # the first action began with tokens of the parent's
        given = turn_of(parent.steps[branch.step], dialect, render=render).action[: branch.token]
        own[0] = replace(own[0], action=(*given, *own[0].action))
    return [*before, *own]
