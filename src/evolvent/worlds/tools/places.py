"""The weather of invented places: where they lie, how high, and what the sky does there around one day.

An `Atlas` belongs to one task. Days are read relative to the task's day: past ones are history, later ones forecast.
Everything is a small whole number on a coarse grid, so that a small closed vocabulary can say it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES
from evolvent.worlds.tools.engine import ToolSpec, tool
from evolvent.worlds.tools.kinds import Draw
from evolvent.worlds.tools.scoring import NEAR_KM, kilometres

__all__ = ["LEVELS", "REACH", "TOOLS", "WORST", "Atlas", "Place", "draw_atlas"]

REACH = 7
"""How many days before and after its own day a task knows."""
LEVELS: tuple[tuple[int, str], ...] = (
    (20, "good"),
    (40, "fair"),
    (60, "moderate"),
    (80, "poor"),
    (100, "very poor"),
)
"""The European air quality index: below which value which level."""
WORST = "extremely poor"
"""The level from 100 on."""
_LATITUDES, _LONGITUDES = (20, 29), (5, 17)  # in steps of two degrees: two places are never the same by 50 km


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One place: position in degrees, height in metres, and per day from the first known one: temperatures (highest,
    lowest, mean) in degrees Celsius, rain in mm, snow in cm, air quality index."""

    name: str
    latitude: int
    longitude: int
    elevation: int
    days: tuple[tuple[int, int, int, int, int, int], ...]

    @property
    def point(self) -> tuple[float, float]:
        return self.latitude, self.longitude


@dataclass(frozen=True, slots=True, eq=False)
class Atlas:
    """All that the tools of one task know.

    Args:
        today: the user's date.
        home: the user's city.
        places: by name.
    """

    today: date
    home: str
    places: Mapping[str, Place]

    def day(self, offset: int) -> str:
        """The date so many days from today, as text."""
        return (self.today + timedelta(days=offset)).isoformat()

    def at(self, latitude: float, longitude: float) -> Place:
        """The place nearer than 50 km to a point; raises InvalidAction where there is none."""
        if -90 <= latitude <= 90 and -180 <= longitude <= 180:
            near = min(self.places.values(), key=lambda place: kilometres(place.point, (latitude, longitude)))
            if kilometres(near.point, (latitude, longitude)) < NEAR_KM:
                return near
        raise InvalidAction("there is no known place at that latitude and longitude", value=(latitude, longitude))

    def distance(self, one: Place, other: Place) -> int:
        """Kilometres between two places, to the nearest hundred."""
        return round(kilometres(one.point, other.point) / 100) * 100


def draw_atlas(draw: Draw, count: int) -> Atlas:
    """`count` places whose heights differ, and a day in the middle of a month of 2024; the first place is home."""
    names = draw.some(count, CITIES)
    heights = draw.some(count, range(100, 3100, 100))
    points: list[tuple[int, int]] = []
    while len(points) < count:
        point = 2 * draw.between(*_LATITUDES), 2 * draw.between(*_LONGITUDES)
        points += [] if point in points else [point]
    places = {
        name: Place(name, *point, height, tuple(_sky(draw) for _ in range(2 * REACH + 1)))
        for name, point, height in zip(names, points, heights, strict=True)
    }
    return Atlas(date(2024, draw.between(1, 12), draw.between(8, 21)), names[0], places)


def _sky(draw: Draw) -> tuple[int, int, int, int, int, int]:
    lowest = draw.between(0, 20)
    highest = lowest + draw.between(2, 20)
    mean = draw.between(lowest, highest)
    return highest, lowest, mean, draw.below(40), draw.below(30), draw.below(120)


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidAction("expected a date like 2024-05-17", value=text) from error


def _offsets(atlas: Atlas, given: Mapping[str, Any], span: tuple[int, int]) -> range:
    """The days asked for, from today; raises InvalidAction outside a span."""
    first, last = ((_date(given[key]) - atlas.today).days for key in ("start_date", "end_date"))
    if not span[0] <= first <= last <= span[1]:
        past = span[0] < 0
        raise InvalidAction(f"expected dates {'before' if past else 'after'} today, at most {REACH} days", value=given)
    return range(first, last + 1)


_FIELDS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "temp": (("temperature_2m_max", 0), ("temperature_2m_min", 1), ("temperature_2m_mean", 2)),
    "rain": (("rain_sum", 3),),
    "snow": (("snowfall_sum", 4),),
    "air_quality_index": (("european_aqi", 5),),
}


def _daily(atlas: Atlas, what: str, place: Place, offsets: Sequence[int]) -> Json:
    """The rows of some days; one day's values stand by themselves."""
    series: dict[str, Json] = {"time": [atlas.day(offset) for offset in offsets]}
    for name, field in _FIELDS[what]:
        series[name] = [place.days[offset + REACH][field] for offset in offsets]
    return {"daily": series}


def _reader(what: str, span: tuple[int, int], *, form: str, words: str) -> ToolSpec:
    def run(atlas: Atlas, given: Mapping[str, Any]) -> tuple[Atlas, Json]:
        offsets = _offsets(atlas, given, span)
        return atlas, _daily(atlas, what, atlas.at(given["latitude"], given["longitude"]), offsets)

    arguments = "latitude: number, longitude: number, start_date: string, end_date: string"
    return tool(run, f"{form}({arguments})", words)


def _current(what: str) -> ToolSpec:
    def run(atlas: Atlas, given: Mapping[str, Any]) -> tuple[Atlas, Json]:
        if _date(given["current_date"]) != atlas.today:
            raise InvalidAction("expected the current date", value=given["current_date"])
        return atlas, _daily(atlas, what, atlas.at(given["latitude"], given["longitude"]), [0])

    arguments = "latitude: number, longitude: number, current_date: string"
    return tool(run, f"get_current_{what}({arguments})", f"The {what} of a place today.")


def _find(atlas: Atlas, given: Mapping[str, Any]) -> tuple[Atlas, Json]:
    place = atlas.places.get(given["name"].strip().lower())
    if place is None:
        raise InvalidAction("there is no known place of that name", value=given["name"])
    return atlas, {"results": [{"name": place.name, "latitude": place.latitude, "longitude": place.longitude}]}


def _elevation(atlas: Atlas, given: Mapping[str, Any]) -> tuple[Atlas, Json]:
    return atlas, {"elevation": atlas.at(given["latitude"], given["longitude"]).elevation}


def _distance(atlas: Atlas, given: Mapping[str, Any]) -> tuple[Atlas, Json]:
    ends = [atlas.at(given[f"latitude{end}"], given[f"longitude{end}"]) for end in (1, 2)]
    return atlas, {"distance": atlas.distance(*ends)}


def _level(atlas: Atlas, given: Mapping[str, Any]) -> tuple[Atlas, Json]:
    index = given["air_quality_index"]
    if index < 0:
        raise InvalidAction("expected an index of 0 or more", value=index)
    return atlas, next((level for limit, level in LEVELS if index < limit), WORST)


_PAST, _COMING = (-REACH, -1), (1, REACH)
TOOLS: tuple[ToolSpec, ...] = (
    tool(lambda atlas, given: (atlas, atlas.day(0)), "get_user_current_date()", "The user's date."),
    tool(lambda atlas, given: (atlas, atlas.home), "get_user_current_location()", "The user's city."),
    *(
        _reader(what, _PAST, form=f"get_historical_{what}", words=f"The {what} of a place on past days.")
        for what in _FIELDS
    ),
    *(
        _reader(what, _COMING, form=f"get_{what}_forecast", words=f"The {what} of a place on coming days.")
        for what in ("temp", "rain", "snow")
    ),
    *(_current(what) for what in _FIELDS),
    tool(_find, "get_latitude_longitude(name: string)", "Where a place lies."),
    tool(_elevation, "get_elevation(latitude: number, longitude: number)", "Height of a place in metres."),
    tool(
        _distance,
        "get_distance(latitude1: number, longitude1: number, latitude2: number, longitude2: number)",
        "Kilometres between two places.",
    ),
    tool(_level, "get_air_quality_level(air_quality_index: number)", "The level that an index means."),
)
"""The tools of the weather world under their original names."""
