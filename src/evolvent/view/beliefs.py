"""Searches for a source as files: what was believed at each step, written beside a run and read back for its maps.

A file is one JSON object of plain numbers, `beliefs/NAME.json` of a run. Reading trusts it as little as any other file
of a run: what is no belief gives None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evolvent.belief.traces import Floats, Look, Trace
from evolvent.view.values import as_list, as_mapping, as_number, as_text

__all__ = ["belief_document", "read_belief"]

_LOOKS, _PARTICLES, _CELLS = 2000, 400, 200  # most of each that are read


def belief_document(trace: Trace) -> dict[str, Any]:
    """A trace as JSON values, in four digits."""

    def short(values: Any) -> Any:
        return np.vectorize(lambda one: float(f"{one:.4g}"))(np.asarray(values, np.float64)).tolist()

    return {
        "name": trace.name,
        "area": [list(side) for side in trace.area],
        "source": short(trace.source),
        "ended_by": trace.ended_by,
        "right": trace.right,
        "field": short(trace.field),
        "looks": [
            {
                "place": short(look.place),
                "reading": float(look.reading),
                "mean": short(look.mean),
                "covariance": short(look.covariance),
                "spread": float(look.spread),
                "score": look.score,
                "particles": short(look.particles),
            }
            for look in trace.looks
        ],
    }


def read_belief(document: object) -> Trace | None:
    """The trace that a JSON value holds, its first 2,000 moments; None where it holds none."""
    row = as_mapping(document)
    area, source, field = (
        _array(row.get("area"), (2, 2)),
        _array(row.get("source"), (2,)),
        _array(row.get("field"), None),
    )
    looks = [look for one in as_list(row.get("looks"))[:_LOOKS] if (look := _look(as_mapping(one))) is not None]
    if area is None or source is None or field is None or field.ndim != 2 or not looks or not field.size:
        return None
    if not (area[:, 0] < area[:, 1]).all() or max(field.shape) > _CELLS:
        return None
    (west, east), (south, north) = area.tolist()
    x, y = source.tolist()
    return Trace(
        name=as_text(row.get("name")),
        area=((west, east), (south, north)),
        source=(x, y),
        looks=looks,
        ended_by=as_text(row.get("ended_by")),
        right=row.get("right") is True,
        field=field,
    )


def _look(row: Mapping[str, Any]) -> Look | None:
    place, mean, covariance = (
        _array(row.get(name), shape) for name, shape in (("place", (2,)), ("mean", (2,)), ("covariance", (2, 2)))
    )
    reading, spread = as_number(row.get("reading")), as_number(row.get("spread"))
    particles = _array(list(as_list(row.get("particles")))[:_PARTICLES], None)
    if place is None or mean is None or covariance is None or reading is None or spread is None:
        return None
    if particles is None or (particles.size and particles.shape[1:] != (2,)):
        return None
    x, y = place.tolist()
    return Look(
        place=(x, y),
        reading=reading,
        mean=mean,
        covariance=covariance,
        spread=spread,
        score=as_number(row.get("score")),
        particles=particles.reshape(-1, 2),
    )


def _array(value: object, shape: tuple[int, ...] | None) -> Floats | None:
    """Finite numbers of this shape (None: of any), or None."""
    if not isinstance(value, list):
        return None
    try:
        found = np.array(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    fits = (shape is None or found.shape == shape) and np.isfinite(found).all() and (np.abs(found) < 1e12).all()
    return found if fits else None
