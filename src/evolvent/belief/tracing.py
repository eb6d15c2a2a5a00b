"""Tracing of one episode: sensor positions, readings and the belief after every step.

For pictures and for close inspection. An episode is the same here as in a batch of `comparison.play_episodes`.
"""

from __future__ import annotations

import numpy as np
import torch

from evolvent.belief.comparison import Chooser
from evolvent.belief.moves import resample_systematic
from evolvent.belief.seeking import DetectorHistory, SourceSearch
from evolvent.belief.stopping import Detector
from evolvent.belief.traces import Floats, Look, Trace
from evolvent.errors import ConfigError
from evolvent.trajectory import EndedBy, Start
from evolvent.worlds.plume.model import concentration
from evolvent.worlds.plume.world import PlumeWorld

__all__ = ["concentration_field", "trace_episode"]


def concentration_field(world: PlumeWorld, start: Start, *, cells: int = 50) -> Floats:
    """Computes the concentration [cells, cells] at the centers of the area's cells, at the sensor's height.

    Raises:
        ConfigError: fewer than one cell.
    """
    if cells < 1:
        raise ConfigError("number of cells out of range", value=cells, expected="1 or more")
    preset = world.preset
    middles = (np.arange(cells) + 0.5) / cells
    x, y = (low + (high - low) * middles for low, high in preset.area)
    positions = np.stack([*np.meshgrid(x, y), np.full((cells, cells), preset.start[2])], -1)
    concentrations: Floats = concentration(positions, world.source(start.task).vector())
    return concentrations


def trace_episode(
    choose: Chooser,
    world: PlumeWorld,
    start: Start,
    *,
    name: str,
    detector: Detector,
    particles: int | None = None,
    num_particles: int = 150,
) -> Trace:
    """Plays one episode and records its beliefs.

    Args:
        choose: Chooses the moves.
        world: The plume world.
        start: The task and its sample, as in `comparison.play`.
        name: Name of the chooser.
        detector: Ends the episode.
        particles: Particles of the belief (None: the preset's).
        num_particles: Particles that are recorded of each moment.
    Raises:
        ConfigError: fewer than one particle.
    """
    if num_particles < 1:
        raise ConfigError("number of shown particles out of range", value=num_particles, expected="1 or more")
    search = SourceSearch(world.batch(1), particles=particles)
    search.begin([0], [start.task], [start.sample])
    detector_history = DetectorHistory(detector, world.horizon)
    looks = [_record_look(search, num_particles, None)]
    ended_by: EndedBy = "horizon"
    while True:
        moved = search.step(choose(search))
        decision = detector_history.decide(search.summary)
        looks.append(_record_look(search, num_particles, float(decision.score[0])))
        if moved.is_lost[0] or decision.stop[0]:
            ended_by = "error" if moved.is_lost[0] else "agent"
            break
        if moved.is_over[0]:
            break
    source = world.source(start.task)
    return Trace(
        name=name,
        area=world.preset.area,
        source=(source.x, source.y),
        looks=looks,
        ended_by=ended_by,
        right=bool(search.is_right()[0]),
        field=concentration_field(world, start),
    )


def _record_look(search: SourceSearch, num_particles: int, score: float | None) -> Look:
    cloud, belief_summary = search.cloud, search.summary
    particle_indices = resample_systematic(cloud.log_w, torch.full((1,), 0.5), num_particles)[0]
    particle_positions = (
        torch.stack([cloud.theta[0, 0, particle_indices], cloud.theta[1, 0, particle_indices]], -1)
        .double()
        .numpy()
        .copy()
    )
    position = search.batch.position[0]
    moments = (belief_summary.mean, belief_summary.covariance, belief_summary.spread)
    mean, covariance, spread = (np.array(moment[0], np.float64) for moment in moments if moment is not None)
    return Look(
        position=(float(position[0]), float(position[1])),
        reading=float(search.batch.reading[0]),
        mean=mean[:2],
        covariance=covariance,
        spread=float(spread),
        score=score,
        particles=particle_positions,
    )
