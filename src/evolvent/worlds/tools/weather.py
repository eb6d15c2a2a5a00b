"""Weather: where, when, how warm, how wet; over places and days invented per task.

    what is the max temp in the higher of arvik and norvale 2 days ago
    get_latitude_longitude arvik  ->  results name arvik latitude 44 longitude 18  ...  get_elevation 44 18  ->  ...
    get_user_current_date  ->  2024-05-17  ...  get_historical_temp 44 18 2024-05-15 2024-05-15  ->  ...  finish 21

Kinds are (place, quantity, day, ...): of several days the largest value is asked for.
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
from evolvent.worlds.tools.expert import Asker, Quest, Solution
from evolvent.worlds.tools.kinds import ATTEMPTS, Draw, Kind, canonical
from evolvent.worlds.tools.places import LEVELS, REACH, TOOLS, WORST, Atlas, Place, draw_atlas
from evolvent.worlds.tools.world import ToolWorld

__all__ = ["Weather"]

_WHERE = {"here": 0, "named": 1, "higher": 2, "lower": 2, "nearer": 3, "farther": 3}  # how many places are named
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
_PLACES = 5


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question: its kind, and its names: the place or the two to choose from, and what distances are measured to."""

    kind: Kind
    names: tuple[str, ...]


class Weather(ToolWorld):
    """The weather world. The reward is 1 for the right answer; see `ToolWorld` for the options.

    AgentGym turns any reward above 0 into 1 here, because several subgoals of a question are spellings of one answer;
    `same_answer` reads these as equal, so that there is one subgoal, and success means solved.
    """

    name = "weather"
    horizon = 10
    specs = TOOLS
    trained = 4
    example = Call("get_latitude_longitude", {"name": CITIES[0]})

    def kinds(self) -> Iterator[Kind]:
        """(where, quantity, day), with up to three days; (where, "elevation"); (where, "distance")."""
        for where in _WHERE:
            yield from ((where, "elevation"), (where, "distance"))
            for what in _QUANTITIES:
                known = _QUANTITIES[what][0] != "air_quality_index"  # of the air there is no forecast
                days = [day for day, (offset, _) in _DAYS.items() if known or offset <= 0]
                yield from ((where, what, day) for day in days)
                if what != "level":
                    yield from ((where, what, *pair) for pair in permutations(days, 2))
                    short = where not in ("nearer", "farther")
                    yield from ((where, what, *triple) for triple in permutations(days, 3) if short)

    def quest(self, kind: Kind, seed: int) -> Quest:
        where = kind[0]
        for attempt in range(ATTEMPTS):
            draw = Draw("evolvent weather 1", *kind, seed, attempt)
            atlas = draw_atlas(draw, _PLACES)
            asked = tuple(list(atlas.places)[1 : 1 + _WHERE[where]])
            if _decided(atlas, kind, asked):
                break
        else:
            raise ConfigError("no places answer a question of this kind", value=kind)
        return Quest(_question(kind, asked, to=list(atlas.places)[4]), atlas, _key(kind, atlas), _Asked(kind, asked))

    def solve(self, kind: Kind, quest: Quest, asker: Asker) -> Solution:
        where, what, *days = kind
        place = _find(asker, where, quest.notes.names)
        if what == "elevation":
            return asker.solution(asker.ask("get_elevation", **place)["elevation"])
        if what == "distance":
            return asker.solution(_distance(asker, place, _locate(asker, list(quest.start.places)[4])))
        today = asker.ask("get_user_current_date")
        values = [_measure(asker, place, what, quest.start.day(_DAYS[day][0]), today=today) for day in days]
        if what == "level":
            return asker.solution(asker.ask("get_air_quality_level", air_quality_index=values[0]))
        return asker.solution(max(values))

    def around(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        atlas: Atlas = quest.start
        yield from (Call("get_user_current_date"), Call("get_user_current_location"))
        for place in atlas.places.values():
            yield Call("get_latitude_longitude", {"name": place.name})
            yield from _tries(atlas, place)
            yield from _moved(solution, place)
        first, second, *_ = atlas.places.values()
        yield Call("get_distance", _ends(first, second))
        what = quest.notes.kind[1]
        indexes = _readings(atlas, quest.notes.kind) if what == "level" else (0, 40, 100)
        yield from (Call("get_air_quality_level", {"air_quality_index": index}) for index in indexes)
        yield from (Call(FINISH, {"answer": guess}) for guess in _guesses(atlas, quest.notes.kind))

    def texts(self) -> Iterator[str]:
        yield from CITIES
        yield from map(str, [*range(121), *range(200, 3100, 100), 2024])
        yield from (f"{number:02}" for number in range(1, 10))
        yield from (words for _, words in _DAYS.values())
        yield from (f"{tool} {field} {words}" for tool, field, words in _QUANTITIES.values())
        yield from (level for _, level in LEVELS)
        yield "what is the of in the city where i am and higher lower nearer to farther from largest over"
        yield "elevation distance daily time results name latitude longitude extremely"
        yield "there is no known place at that latitude and longitude of that name"
        yield "expected a date like 2024-05-17 expected the current date an index of 0 or more"
        yield f"dates before after today, at most {REACH} days"


def _decided(atlas: Atlas, kind: Kind, asked: tuple[str, ...]) -> bool:
    """Whether the question has one answer: the two distances that are compared must differ."""
    if kind[0] not in ("nearer", "farther"):
        return True
    one, other, to = (atlas.places[name] for name in asked)
    return atlas.distance(one, to) != atlas.distance(other, to)


def _question(kind: Kind, asked: tuple[str, ...], *, to: str) -> str:
    where, what, *days = kind
    if where == "here":
        place = "the city where i am"
    elif where == "named":
        place = asked[0]
    elif where in ("higher", "lower"):
        place = f"the {where} of {asked[0]} and {asked[1]}"
    else:
        place = f"the one of {asked[0]} and {asked[1]} {where} {'to' if where == 'nearer' else 'from'} {asked[2]}"
    if what == "elevation":
        return f"what is the elevation of {place}"
    if what == "distance":
        return f"what is the distance of {place} to {to}"
    words = _QUANTITIES[what][2]
    said = [_DAYS[day][1] for day in days]
    if len(said) == 1:
        return f"what is the {words} in {place} {said[0]}"
    return f"what is the largest {words} in {place} over {', '.join(said[:-1])} and {said[-1]}"


def _key(kind: Kind, atlas: Atlas) -> str:
    """The canonical form: the places in the order in which the question takes them, without their names."""
    facts: dict[str, tuple[Json, tuple[str, ...]]] = {
        place.name: ([*place.point, place.elevation, [list(day) for day in place.days]], ())
        for place in atlas.places.values()
    }
    return canonical(kind, list(facts), facts, extra=atlas.day(0))


def _locate(asker: Asker, name: str) -> dict[str, Any]:
    found = asker.ask("get_latitude_longitude", name=name)["results"][0]
    return {"latitude": found["latitude"], "longitude": found["longitude"]}


def _distance(asker: Asker, one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    ends = {f"{key}{end}": value for end, point in ((1, one), (2, other)) for key, value in point.items()}
    return int(asker.ask("get_distance", **ends)["distance"])


def _ends(one: Place, other: Place) -> dict[str, int]:
    return {
        "latitude1": one.latitude,
        "longitude1": one.longitude,
        "latitude2": other.latitude,
        "longitude2": other.longitude,
    }


def _find(asker: Asker, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The coordinates of the place that is meant."""
    if where == "here":
        return _locate(asker, asker.ask("get_user_current_location"))
    points = [_locate(asker, name) for name in names]
    if where == "named":
        return points[0]
    if where in ("higher", "lower"):
        sizes = [asker.ask("get_elevation", **point)["elevation"] for point in points]
    else:
        sizes = [_distance(asker, point, points[2]) for point in points[:2]]
    largest = where in ("higher", "farther")
    return points[0] if (sizes[0] > sizes[1]) == largest else points[1]


def _measure(asker: Asker, place: Mapping[str, Any], what: str, day: str, *, today: str) -> int:
    """One quantity of one place on one day, by the tool for that day."""
    word, field, _ = _QUANTITIES[what]
    if day == today:
        found = asker.ask(f"get_current_{word}", **place, current_date=day)
    else:
        name = f"get_historical_{word}" if day < today else f"get_{word}_forecast"
        found = asker.ask(name, **place, start_date=day, end_date=day)
    return int(found["daily"][field][0])


def _moved(solution: Solution, place: Place) -> Iterator[Call]:
    """The solution's readings, of this place: so the list of actions does not say which place is meant."""
    for call in solution.plan:
        for end in ("", "1"):
            if f"latitude{end}" in call.arguments:
                point = {f"latitude{end}": place.latitude, f"longitude{end}": place.longitude}
                yield Call(call.name, {**call.arguments, **point})


def _readings(atlas: Atlas, kind: Kind) -> list[int]:
    """What would be read in any of the places, on the days of the question or all of them a day off."""
    _, what, *days = kind
    spans = [[_DAYS[day][0] + shift + REACH for day in days] for shift in _SHIFTS]
    return [max(place.days[at][_COLUMNS[what]] for at in span) for place in atlas.places.values() for span in spans]


def _guesses(atlas: Atlas, kind: Kind) -> list[Json]:
    """Answers of the same sort as the right one, from the same atlas: nothing but the question tells which is right."""
    what = kind[1]
    if what == "elevation":
        return [place.elevation for place in atlas.places.values()]
    if what == "distance":
        return [atlas.distance(*ends) for ends in combinations(atlas.places.values(), 2)]
    if what == "level":
        return [*(level for _, level in LEVELS), WORST]
    return [*_readings(atlas, kind)]


def _tries(atlas: Atlas, place: Place) -> Iterator[Call]:
    """A few readings of one place."""
    point = {"latitude": place.latitude, "longitude": place.longitude}
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
