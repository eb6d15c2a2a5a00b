"""One episode drawn out: where the sensor was, what it read, and what was believed after every step.

For pictures, and for looking at one episode closely. An episode is the same here as among others in `comparison.play`.
"""

from __future__ import annotations

import numpy as np
import torch

from evolvent.belief.comparison import Chooser
from evolvent.belief.moves import systematic
from evolvent.belief.seeking import Lookout, SourceSearch
from evolvent.belief.stopping import Detector
from evolvent.belief.traces import Floats, Look, Trace
from evolvent.errors import ConfigError
from evolvent.trajectory import EndedBy, Start
from evolvent.worlds.plume.model import concentration
from evolvent.worlds.plume.world import PlumeWorld

__all__ = ["field_of", "trace"]


def field_of(world: PlumeWorld, start: Start, *, cells: int = 50) -> Floats:
    """[cells, cells] concentration at the middles of the area's cells, at the sensor's height.

    Raises:
        ConfigError: fewer than one cell.
    """
    if cells < 1:
        raise ConfigError("a field without cells", value=cells, expected="1 or more")
    preset = world.preset
    middles = (np.arange(cells) + 0.5) / cells
    x, y = (low + (high - low) * middles for low, high in preset.area)
    places = np.stack([*np.meshgrid(x, y), np.full((cells, cells), preset.start[2])], -1)
    found: Floats = concentration(places, world.source(start.task).vector())
    return found


def trace(
    choose: Chooser,
    world: PlumeWorld,
    start: Start,
    *,
    name: str,
    detector: Detector,
    particles: int | None = None,
    shown: int = 150,
) -> Trace:
    """Play one episode and keep what was believed on the way.

    Args:
        start: the task and its sample, as in `comparison.play`. particles: of the belief (None: the preset's).
        shown: particles that are kept of each moment.
    Raises:
        ConfigError: fewer than one particle.
    """
    if shown < 1:
        raise ConfigError("a belief that shows no particle", value=shown, expected="1 or more")
    search = SourceSearch(world.batch(1), particles=particles)
    search.begin([0], [start.task], [start.sample])
    lookout = Lookout(detector, world.horizon)
    looks = [_look(search, shown, None)]
    ended: EndedBy = "horizon"
    while True:
        moved = search.step(choose(search))
        decision = lookout.look(search.summary)
        looks.append(_look(search, shown, float(decision.score[0])))
        if moved.lost[0] or decision.stop[0]:
            ended = "error" if moved.lost[0] else "agent"
            break
        if moved.over[0]:
            break
    source = world.source(start.task)
    return Trace(
        name=name,
        area=world.preset.area,
        source=(source.x, source.y),
        looks=looks,
        ended_by=ended,
        right=bool(search.right()[0]),
        field=field_of(world, start),
    )


def _look(search: SourceSearch, shown: int, score: float | None) -> Look:
    cloud, seen = search.cloud, search.summary
    at = systematic(cloud.log_w, torch.full((1,), 0.5), shown)[0]
    drawn = torch.stack([cloud.theta[0, 0, at], cloud.theta[1, 0, at]], -1).double().numpy().copy()
    place = search.batch.position[0]
    told = (seen.mean, seen.covariance, seen.spread)
    mean, covariance, spread = (np.array(each[0], np.float64) for each in told if each is not None)
    return Look(
        place=(float(place[0]), float(place[1])),
        reading=float(search.batch.reading[0]),
        mean=mean[:2],
        covariance=covariance,
        spread=float(spread),
        score=score,
        particles=drawn,
    )
