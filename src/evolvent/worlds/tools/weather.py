"""Weather: questions about temperature, rain, snow, air and distances, over cities and days generated per task.

    what is the max temp in the higher of arvik and norvale 2 days ago
    get_latitude_longitude arvik  ->  results name arvik latitude 44 longitude 18  ...  get_elevation 44 18  ->  ...
    get_user_current_date  ->  2024-05-17  ...  get_historical_temp 44 18 2024-05-15 2024-05-15  ->  ...  finish 21

Kinds are (location, quantity, day, ...): for several days the question is about the largest value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

from evolvent.errors import ConfigError
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES
from evolvent.worlds.tools.engine import FINISH
from evolvent.worlds.tools.expert import Quest, Solution, ToolExpert
from evolvent.worlds.tools.kinds import MAX_ATTEMPTS, Draw, Kind, digest_task
from evolvent.worlds.tools.places import LEVELS, MAX_DAY_OFFSET, TOOLS, WORST_LEVEL, Atlas, City, draw_atlas
from evolvent.worlds.tools.world import ToolWorld

__all__ = ["Weather"]

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
            _digest_quest(kind, atlas),
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
