"""The weather of generated cities: their positions and elevations, and the weather around one day.

An `Atlas` belongs to one task. Days are read relative to the task's day: past ones are history, later ones
forecast. All values are small whole numbers on a coarse grid, so that a small closed vocabulary covers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES
from evolvent.worlds.tools.engine import ToolSpec, build_tool
from evolvent.worlds.tools.kinds import Draw
from evolvent.worlds.tools.scoring import NEAR_KM, distance_km

__all__ = ["LEVELS", "MAX_DAY_OFFSET", "TOOLS", "WORST_LEVEL", "Atlas", "City", "draw_atlas"]

MAX_DAY_OFFSET = 7
"""How many days before and after its own day a task knows."""
LEVELS: tuple[tuple[int, str], ...] = (
    (20, "good"),
    (40, "fair"),
    (60, "moderate"),
    (80, "poor"),
    (100, "very poor"),
)
"""The European air quality index: below which value which level."""
WORST_LEVEL = "extremely poor"
"""The level from 100 on."""
_LATITUDES, _LONGITUDES = (20, 29), (5, 17)  # in steps of two degrees: two places are never the same by 50 km


@dataclass(frozen=True, slots=True, eq=False)
class City:
    """One city: position in degrees, elevation in meters, and the weather per day from the first known one.

    A day holds temperatures (highest, lowest, mean) in degrees Celsius, rain in mm, snow in cm, air quality index.
    """

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
    """The data of the tools of one task.

    Args:
        today: the user's date.
        home: the user's city.
        cities: by name.
    """

    today: date
    home: str
    cities: Mapping[str, City]

    def day(self, offset: int) -> str:
        """Returns the date at an offset in days from today, as text."""
        return (self.today + timedelta(days=offset)).isoformat()

    def city_at(self, latitude: float, longitude: float) -> City:
        """Returns the city nearer than 50 km to a point; raises InvalidAction if there is none."""
        if -90 <= latitude <= 90 and -180 <= longitude <= 180:
            nearest = min(self.cities.values(), key=lambda city: distance_km(city.point, (latitude, longitude)))
            if distance_km(nearest.point, (latitude, longitude)) < NEAR_KM:
                return nearest
        raise InvalidAction("there is no known place at that latitude and longitude", value=(latitude, longitude))

    def distance(self, first: City, second: City) -> int:
        """Returns the kilometers between two cities, to the nearest hundred."""
        return round(distance_km(first.point, second.point) / 100) * 100


def draw_atlas(draw: Draw, count: int) -> Atlas:
    """Draws `count` cities of different elevations, and a day in the middle of a month of 2024; the first city is
    home.
    """
    names = draw.sample(count, CITIES)
    heights = draw.sample(count, range(100, 3100, 100))
    points: list[tuple[int, int]] = []
    while len(points) < count:
        point = 2 * draw.between(*_LATITUDES), 2 * draw.between(*_LONGITUDES)
        points += [] if point in points else [point]
    cities = {
        name: City(name, *point, height, tuple(_draw_weather(draw) for _ in range(2 * MAX_DAY_OFFSET + 1)))
        for name, point, height in zip(names, points, heights, strict=True)
    }
    return Atlas(date(2024, draw.between(1, 12), draw.between(8, 21)), names[0], cities)


def _draw_weather(draw: Draw) -> tuple[int, int, int, int, int, int]:
    lowest = draw.between(0, 20)
    highest = lowest + draw.between(2, 20)
    mean = draw.between(lowest, highest)
    return highest, lowest, mean, draw.below(40), draw.below(30), draw.below(120)


def _parse_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidAction("expected a date like 2024-05-17", value=text) from error


def _parse_offsets(atlas: Atlas, arguments: Mapping[str, Any], span: tuple[int, int]) -> range:
    """Returns the requested days as offsets from today; raises InvalidAction outside a span."""
    first, last = ((_parse_date(arguments[key]) - atlas.today).days for key in ("start_date", "end_date"))
    if not span[0] <= first <= last <= span[1]:
        is_past = span[0] < 0
        raise InvalidAction(
            f"expected dates {'before' if is_past else 'after'} today, at most {MAX_DAY_OFFSET} days", value=arguments
        )
    return range(first, last + 1)


_FIELDS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "temp": (("temperature_2m_max", 0), ("temperature_2m_min", 1), ("temperature_2m_mean", 2)),
    "rain": (("rain_sum", 3),),
    "snow": (("snowfall_sum", 4),),
    "air_quality_index": (("european_aqi", 5),),
}


def _build_daily(atlas: Atlas, quantity: str, city: City, offsets: Sequence[int]) -> Json:
    """Builds the rows of some days; the values of a single day are not in a list of rows."""
    series: dict[str, Json] = {"time": [atlas.day(offset) for offset in offsets]}
    for name, field in _FIELDS[quantity]:
        series[name] = [city.days[offset + MAX_DAY_OFFSET][field] for offset in offsets]
    return {"daily": series}


def _make_reader(quantity: str, span: tuple[int, int], *, tool_name: str, description: str) -> ToolSpec:
    def run(atlas: Atlas, call_arguments: Mapping[str, Any]) -> tuple[Atlas, Json]:
        offsets = _parse_offsets(atlas, call_arguments, span)
        return atlas, _build_daily(
            atlas, quantity, atlas.city_at(call_arguments["latitude"], call_arguments["longitude"]), offsets
        )

    arguments = "latitude: number, longitude: number, start_date: string, end_date: string"
    return build_tool(run, f"{tool_name}({arguments})", description)


def _make_current_reader(quantity: str) -> ToolSpec:
    def run(atlas: Atlas, call_arguments: Mapping[str, Any]) -> tuple[Atlas, Json]:
        if _parse_date(call_arguments["current_date"]) != atlas.today:
            raise InvalidAction("expected the current date", value=call_arguments["current_date"])
        return atlas, _build_daily(
            atlas, quantity, atlas.city_at(call_arguments["latitude"], call_arguments["longitude"]), [0]
        )

    arguments = "latitude: number, longitude: number, current_date: string"
    return build_tool(run, f"get_current_{quantity}({arguments})", f"The {quantity} of a place today.")


def _find_city(atlas: Atlas, arguments: Mapping[str, Any]) -> tuple[Atlas, Json]:
    city = atlas.cities.get(arguments["name"].strip().lower())
    if city is None:
        raise InvalidAction("there is no known place of that name", value=arguments["name"])
    return atlas, {"results": [{"name": city.name, "latitude": city.latitude, "longitude": city.longitude}]}


def _read_elevation(atlas: Atlas, arguments: Mapping[str, Any]) -> tuple[Atlas, Json]:
    return atlas, {"elevation": atlas.city_at(arguments["latitude"], arguments["longitude"]).elevation}


def _read_distance(atlas: Atlas, arguments: Mapping[str, Any]) -> tuple[Atlas, Json]:
    ends = [atlas.city_at(arguments[f"latitude{end}"], arguments[f"longitude{end}"]) for end in (1, 2)]
    return atlas, {"distance": atlas.distance(*ends)}


def _read_level(atlas: Atlas, arguments: Mapping[str, Any]) -> tuple[Atlas, Json]:
    index = arguments["air_quality_index"]
    if index < 0:
        raise InvalidAction("expected an index of 0 or more", value=index)
    return atlas, next((level for limit, level in LEVELS if index < limit), WORST_LEVEL)


_PAST_OFFSETS, _FUTURE_OFFSETS = (-MAX_DAY_OFFSET, -1), (1, MAX_DAY_OFFSET)
TOOLS: tuple[ToolSpec, ...] = (
    build_tool(lambda atlas, arguments: (atlas, atlas.day(0)), "get_user_current_date()", "The user's date."),
    build_tool(lambda atlas, arguments: (atlas, atlas.home), "get_user_current_location()", "The user's city."),
    *(
        _make_reader(
            quantity,
            _PAST_OFFSETS,
            tool_name=f"get_historical_{quantity}",
            description=f"The {quantity} of a place on past days.",
        )
        for quantity in _FIELDS
    ),
    *(
        _make_reader(
            quantity,
            _FUTURE_OFFSETS,
            tool_name=f"get_{quantity}_forecast",
            description=f"The {quantity} of a place on coming days.",
        )
        for quantity in ("temp", "rain", "snow")
    ),
    *(_make_current_reader(quantity) for quantity in _FIELDS),
    build_tool(_find_city, "get_latitude_longitude(name: string)", "Where a place lies."),
    build_tool(_read_elevation, "get_elevation(latitude: number, longitude: number)", "Height of a place in metres."),
    build_tool(
        _read_distance,
        "get_distance(latitude1: number, longitude1: number, latitude2: number, longitude2: number)",
        "Kilometres between two places.",
    ),
    build_tool(_read_level, "get_air_quality_level(air_quality_index: number)", "The level that an index means."),
)
"""The tools of the weather world under their original names."""
