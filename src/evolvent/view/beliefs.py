"""Source searches as files: the belief at each step, written beside a run and read back for its maps.

A file is one JSON object of plain numbers, `beliefs/NAME.json` of a run. Reading trusts it as little as any other file
of a run: what is no belief gives None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evolvent.belief.traces import Floats, Look, Trace
from evolvent.view.values import as_list, as_mapping, as_number, as_text

__all__ = ["encode_belief", "parse_belief"]

_MAX_LOOKS, _MAX_PARTICLES, _MAX_CELLS = 2000, 400, 200  # most of each that are read


def encode_belief(trace: Trace) -> dict[str, object]:
    """Converts a trace to JSON values, in four digits."""

    def round_values(values: Any) -> Any:
        return np.vectorize(lambda number: float(f"{number:.4g}"))(np.asarray(values, np.float64)).tolist()

    return {
        "name": trace.name,
        "area": [list(side) for side in trace.area],
        "source": round_values(trace.source),
        "ended_by": trace.ended_by,
        "right": trace.right,
        "field": round_values(trace.field),
        "looks": [
            {
                "place": round_values(look.position),
                "reading": float(look.reading),
                "mean": round_values(look.mean),
                "covariance": round_values(look.covariance),
                "spread": float(look.spread),
                "score": look.score,
                "particles": round_values(look.particles),
            }
            for look in trace.looks
        ],
    }


def parse_belief(document: object) -> Trace | None:
    """Parses the trace of a JSON value, its first 2,000 looks; None where there is no trace."""
    row = as_mapping(document)
    area, source, field = (
        _parse_array(row.get("area"), (2, 2)),
        _parse_array(row.get("source"), (2,)),
        _parse_array(row.get("field"), None),
    )
    looks = [
        look for entry in as_list(row.get("looks"))[:_MAX_LOOKS] if (look := _parse_look(as_mapping(entry))) is not None
    ]
    if area is None or source is None or field is None or field.ndim != 2 or not looks or not field.size:
        return None
    if not (area[:, 0] < area[:, 1]).all() or max(field.shape) > _MAX_CELLS:
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


def _parse_look(row: Mapping[str, Any]) -> Look | None:
    position, mean, covariance = (
        _parse_array(row.get(name), shape) for name, shape in (("place", (2,)), ("mean", (2,)), ("covariance", (2, 2)))
    )
    reading, spread = as_number(row.get("reading")), as_number(row.get("spread"))
    particles = _parse_array(list(as_list(row.get("particles")))[:_MAX_PARTICLES], None)
    if position is None or mean is None or covariance is None or reading is None or spread is None:
        return None
    if particles is None or (particles.size and particles.shape[1:] != (2,)):
        return None
    x, y = position.tolist()
    return Look(
        position=(x, y),
        reading=reading,
        mean=mean,
        covariance=covariance,
        spread=spread,
        score=as_number(row.get("score")),
        particles=particles.reshape(-1, 2),
    )


def _parse_array(value: object, shape: tuple[int, ...] | None) -> Floats | None:
    """Parses finite numbers of this shape (None: of any), or returns None."""
    if not isinstance(value, list):
        return None
    try:
        array = np.array(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    is_valid = (shape is None or array.shape == shape) and np.isfinite(array).all() and (np.abs(array) < 1e12).all()
    return array if is_valid else None
