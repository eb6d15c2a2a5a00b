"""Weather: questions about temperature, rain, snow, air and distances, over cities and days generated per task.

    what is the max temp in the higher of arvik and norvale 2 days ago
    get_latitude_longitude arvik  ->  results name arvik latitude 44 longitude 18  ...  get_elevation 44 18  ->  ...
    get_user_current_date  ->  2024-05-17  ...  get_historical_temp 44 18 2024-05-15 2024-05-15  ->  ...  finish 21

Kinds are (location, quantity, day, ...): for several days the question is about the largest value.

The weather of generated cities: their positions and elevations, and the weather around one day.

An `Atlas` belongs to one task. Days are read relative to the task's day: past ones are history, later ones
forecast. All values are small whole numbers on a coarse grid, so that a small closed vocabulary covers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache, partial
from itertools import combinations, permutations
from typing import Any

from evolvent.errors import ConfigError, InvalidAction
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES
from evolvent.worlds.tools.engine import FINISH, ToolSpec, build_tool
from evolvent.worlds.tools.expert import Quest, Solution, ToolExpert
from evolvent.worlds.tools.kinds import MAX_ATTEMPTS, Draw, Kind, digest_task
from evolvent.worlds.tools.scoring import NEAR_KM, distance_km
from evolvent.worlds.tools.world import ToolWorld

__all__ = ["LEVELS", "MAX_DAY_OFFSET", "TOOLS", "WORST_LEVEL", "Atlas", "City", "Weather", "draw_atlas"]


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
        return _format_day(self.today, offset)

    def city_at(self, latitude: float, longitude: float) -> City:
        """Returns the city nearer than 50 km to a point; raises InvalidAction if there is none."""
        if -90 <= latitude <= 90 and -180 <= longitude <= 180:
            for city in self.cities.values():  # two cities are never at one point
                if city.latitude == latitude and city.longitude == longitude:
                    return city
            nearest = min(self.cities.values(), key=lambda city: distance_km(city.point, (latitude, longitude)))
            if distance_km(nearest.point, (latitude, longitude)) < NEAR_KM:
                return nearest
        raise InvalidAction("there is no known place at that latitude and longitude", value=(latitude, longitude))

    def distance(self, first: City, second: City) -> int:
        """Returns the kilometers between two cities, to the nearest hundred."""
        return round(distance_km(first.point, second.point) / 100) * 100


@lru_cache(4096)
def _format_day(today: date, offset: int) -> str:
    return (today + timedelta(days=offset)).isoformat()


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
    next_number, days = draw.next_number, range(2 * MAX_DAY_OFFSET + 1)
    cities = {
        name: City(name, *point, height, tuple([_draw_weather(next_number) for _ in days]))
        for name, point, height in zip(names, points, heights, strict=True)
    }
    return Atlas(date(2024, draw.between(1, 12), draw.between(8, 21)), names[0], cities)


def _draw_weather(next_number: Callable[[], int]) -> tuple[int, int, int, int, int, int]:
    """Draws a day: `lowest` from 0 to 20, `highest` 2 to 20 above it, `mean` between them, and the other three."""
    lowest = next_number() % 21
    highest = lowest + 2 + next_number() % 19
    mean = lowest + next_number() % (highest - lowest + 1)
    return highest, lowest, mean, next_number() % 40, next_number() % 30, next_number() % 120


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


_NAMED_CITY_COUNTS = {
    "here": 0,
    "named": 1,
    "higher": 2,
    "lower": 2,
    "nearer": 3,
    "farther": 3,
}  # how many places are named
_DAYS: Mapping[str, tuple[int, str]] = {
    "ago3": (-3, "3 days ago"),
    "ago2": (-2, "2 days ago"),
    "yesterday": (-1, "yesterday"),
    "today": (0, "today"),
    "tomorrow": (1, "tomorrow"),
    "in2": (2, "in 2 days"),
    "in3": (3, "in 3 days"),
}
_QUANTITIES: Mapping[str, tuple[str, str, str]] = {  # the tool's word, the field of its result, the question's words
    "highest": ("temp", "temperature_2m_max", "highest temperature"),
    "lowest": ("temp", "temperature_2m_min", "lowest temperature"),
    "average": ("temp", "temperature_2m_mean", "average temperature"),
    "rain": ("rain", "rain_sum", "rain"),
    "snow": ("snow", "snowfall_sum", "snow"),
    "air": ("air_quality_index", "european_aqi", "air quality index"),
    "level": ("air_quality_index", "european_aqi", "air quality level"),
}
_COLUMNS = {"highest": 0, "lowest": 1, "average": 2, "rain": 3, "snow": 4, "air": 5, "level": 5}  # in a place's days
_SHIFTS = (-1, 0, 1)  # days: of these readings wrong answers are made
_NUM_CITIES = 5


@dataclass(frozen=True, slots=True)
class _QuestionParts:
    """A question: its kind, and its names: the city or the two to choose from, and the city to which distances are
    measured.
    """

    kind: Kind
    names: tuple[str, ...]


class Weather(ToolWorld):
    """The weather world. The reward is 1 for the right answer; see `ToolWorld` for the options.

    AgentGym turns any reward above 0 into 1 here, because several subgoals of a question are spellings of one
    answer; `same_answer` treats these as equal, so that there is one subgoal, and success means solved.
    """

    name = "weather"
    horizon = 10
    specs = TOOLS
    trained_length = 4
    example = Call("get_latitude_longitude", {"name": CITIES[0]})

    def kinds(self) -> Iterator[Kind]:
        """Yields (location, quantity, day), with up to three days; (location, "elevation"); (location, "distance")."""
        for location in _NAMED_CITY_COUNTS:
            yield from ((location, "elevation"), (location, "distance"))
            for quantity in _QUANTITIES:
                has_forecast = _QUANTITIES[quantity][0] != "air_quality_index"  # of the air there is no forecast
                days = [day for day, (offset, _) in _DAYS.items() if has_forecast or offset <= 0]
                yield from ((location, quantity, day) for day in days)
                if quantity != "level":
                    yield from ((location, quantity, *pair) for pair in permutations(days, 2))
                    is_short = location not in ("nearer", "farther")
                    yield from ((location, quantity, *triple) for triple in permutations(days, 3) if is_short)

    def draw_quest(self, kind: Kind, seed: int) -> Quest:
        location = kind[0]
        for attempt in range(MAX_ATTEMPTS):
            draw = Draw("evolvent weather 1", *kind, seed, attempt)
            atlas = draw_atlas(draw, _NUM_CITIES)
            named_cities = tuple(list(atlas.cities)[1 : 1 + _NAMED_CITY_COUNTS[location]])
            if _is_unambiguous(atlas, kind, named_cities):
                break
        else:
            raise ConfigError("no places answer a question of this kind", value=kind)
        return Quest(
            _render_question(kind, named_cities, distance_target=list(atlas.cities)[4]),
            atlas,
            partial(_digest_quest, kind, atlas),
            _QuestionParts(kind, named_cities),
        )

    def solve(self, kind: Kind, quest: Quest, expert: ToolExpert) -> Solution:
        location, quantity, *days = kind
        point = _find_point(expert, location, quest.notes.names)
        if quantity == "elevation":
            return expert.build_solution(expert.query("get_elevation", **point)["elevation"])
        if quantity == "distance":
            return expert.build_solution(_query_distance(expert, point, _locate(expert, list(quest.start.cities)[4])))
        today = expert.query("get_user_current_date")
        values = [_query_quantity(expert, point, quantity, quest.start.day(_DAYS[day][0]), today=today) for day in days]
        if quantity == "level":
            return expert.build_solution(expert.query("get_air_quality_level", air_quality_index=values[0]))
        return expert.build_solution(max(values))

    def candidate_calls(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        atlas: Atlas = quest.start
        yield from (Call("get_user_current_date"), Call("get_user_current_location"))
        for city in atlas.cities.values():
            yield Call("get_latitude_longitude", {"name": city.name})
            yield from _sample_readings(atlas, city)
            yield from _relocate_calls(solution, city)
        first, second, *_ = atlas.cities.values()
        yield Call("get_distance", _distance_arguments(first, second))
        quantity = quest.notes.kind[1]
        indexes = _list_readings(atlas, quest.notes.kind) if quantity == "level" else (0, 40, 100)
        yield from (Call("get_air_quality_level", {"air_quality_index": index}) for index in indexes)
        yield from (Call(FINISH, {"answer": guess}) for guess in _list_guesses(atlas, quest.notes.kind))

    def vocabulary_texts(self) -> Iterator[str]:
        yield from CITIES
        yield from map(str, [*range(121), *range(200, 3100, 100), 2024])
        yield from (f"{number:02}" for number in range(1, 10))
        yield from (phrase for _, phrase in _DAYS.values())
        yield from (f"{tool} {field} {phrase}" for tool, field, phrase in _QUANTITIES.values())
        yield from (level for _, level in LEVELS)
        yield "what is the of in the city where i am and higher lower nearer to farther from largest over"
        yield "elevation distance daily time results name latitude longitude extremely"
        yield "there is no known place at that latitude and longitude of that name"
        yield "expected a date like 2024-05-17 expected the current date an index of 0 or more"
        yield f"dates before after today, at most {MAX_DAY_OFFSET} days"


def _is_unambiguous(atlas: Atlas, kind: Kind, named_cities: tuple[str, ...]) -> bool:
    """Returns whether the question has one answer: two compared distances must differ."""
    if kind[0] not in ("nearer", "farther"):
        return True
    first, second, target = (atlas.cities[name] for name in named_cities)
    return atlas.distance(first, target) != atlas.distance(second, target)


def _render_question(kind: Kind, named_cities: tuple[str, ...], *, distance_target: str) -> str:
    location, quantity, *days = kind
    if location == "here":
        city_phrase = "the city where i am"
    elif location == "named":
        city_phrase = named_cities[0]
    elif location in ("higher", "lower"):
        city_phrase = f"the {location} of {named_cities[0]} and {named_cities[1]}"
    else:
        city_phrase = (
            f"the one of {named_cities[0]} and {named_cities[1]} {location} "
            f"{'to' if location == 'nearer' else 'from'} {named_cities[2]}"
        )
    if quantity == "elevation":
        return f"what is the elevation of {city_phrase}"
    if quantity == "distance":
        return f"what is the distance of {city_phrase} to {distance_target}"
    quantity_phrase = _QUANTITIES[quantity][2]
    day_phrases = [_DAYS[day][1] for day in days]
    if len(day_phrases) == 1:
        return f"what is the {quantity_phrase} in {city_phrase} {day_phrases[0]}"
    return (
        f"what is the largest {quantity_phrase} in {city_phrase} over {', '.join(day_phrases[:-1])} and "
        f"{day_phrases[-1]}"
    )


def _digest_quest(kind: Kind, atlas: Atlas) -> str:
    """Returns the canonical form: the cities in the order of the question, without their names."""
    facts: dict[str, tuple[Json, tuple[str, ...]]] = {
        city.name: ([*city.point, city.elevation, [list(day) for day in city.days]], ())
        for city in atlas.cities.values()
    }
    return digest_task(kind, list(facts), facts, extra=atlas.day(0))


def _locate(expert: ToolExpert, name: str) -> dict[str, Any]:
    match = expert.query("get_latitude_longitude", name=name)["results"][0]
    return {"latitude": match["latitude"], "longitude": match["longitude"]}


def _query_distance(expert: ToolExpert, first: Mapping[str, Any], second: Mapping[str, Any]) -> int:
    ends = {f"{key}{end}": value for end, point in ((1, first), (2, second)) for key, value in point.items()}
    return int(expert.query("get_distance", **ends)["distance"])


def _distance_arguments(first: City, second: City) -> dict[str, int]:
    return {
        "latitude1": first.latitude,
        "longitude1": first.longitude,
        "latitude2": second.latitude,
        "longitude2": second.longitude,
    }


def _find_point(expert: ToolExpert, location: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Finds the coordinates of the city that the question refers to."""
    if location == "here":
        return _locate(expert, expert.query("get_user_current_location"))
    points = [_locate(expert, name) for name in names]
    if location == "named":
        return points[0]
    if location in ("higher", "lower"):
        sizes = [expert.query("get_elevation", **point)["elevation"] for point in points]
    else:
        sizes = [_query_distance(expert, point, points[2]) for point in points[:2]]
    take_larger = location in ("higher", "farther")
    return points[0] if (sizes[0] > sizes[1]) == take_larger else points[1]


def _query_quantity(expert: ToolExpert, point: Mapping[str, Any], quantity: str, day: str, *, today: str) -> int:
    """Returns one quantity of one city on one day, read by the tool for that day."""
    tool_word, field, _ = _QUANTITIES[quantity]
    if day == today:
        result = expert.query(f"get_current_{tool_word}", **point, current_date=day)
    else:
        name = f"get_historical_{tool_word}" if day < today else f"get_{tool_word}_forecast"
        result = expert.query(name, **point, start_date=day, end_date=day)
    return int(result["daily"][field][0])


def _relocate_calls(solution: Solution, city: City) -> Iterator[Call]:
    """Yields the solution's readings for this city, so that the list of actions does not reveal the right city."""
    for call in solution.plan:
        for end in ("", "1"):
            if f"latitude{end}" in call.arguments:
                point = {f"latitude{end}": city.latitude, f"longitude{end}": city.longitude}
                yield Call(call.name, {**call.arguments, **point})


def _list_readings(atlas: Atlas, kind: Kind) -> list[int]:
    """Returns the values in each city, on the days of the question or with all of them shifted by a day."""
    _, quantity, *days = kind
    spans = [[_DAYS[day][0] + shift + MAX_DAY_OFFSET for day in days] for shift in _SHIFTS]
    return [
        max(city.days[day_index][_COLUMNS[quantity]] for day_index in span)
        for city in atlas.cities.values()
        for span in spans
    ]


def _list_guesses(atlas: Atlas, kind: Kind) -> list[Json]:
    """Returns answers of the same type as the right answer, from the same atlas: only the question identifies the
    right one.
    """
    quantity = kind[1]
    if quantity == "elevation":
        return [city.elevation for city in atlas.cities.values()]
    if quantity == "distance":
        return [atlas.distance(*ends) for ends in combinations(atlas.cities.values(), 2)]
    if quantity == "level":
        return [*(level for _, level in LEVELS), WORST_LEVEL]
    return [*_list_readings(atlas, kind)]


def _sample_readings(atlas: Atlas, city: City) -> Iterator[Call]:
    """Yields a few readings of one city."""
    point = {"latitude": city.latitude, "longitude": city.longitude}
    yield Call("get_elevation", point)
    for name, offset in (
        ("get_historical_temp", -1),
        ("get_historical_rain", -2),
        ("get_temp_forecast", 1),
        ("get_snow_forecast", 2),
        ("get_historical_air_quality_index", -3),
    ):
        yield Call(name, {**point, "start_date": atlas.day(offset), "end_date": atlas.day(offset)})
    yield Call("get_current_temp", {**point, "current_date": atlas.day(0)})
