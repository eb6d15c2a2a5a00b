"""Invented films and the people who made them, drawn per task, and the tools that look them up.

Every film has one director, writer, producer, first and second actor, and every person has each of these jobs in one
film: whoever is asked for is one person, whichever film is one film.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES, COUNTRIES, PEOPLE
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import ToolSpec, tool
from evolvent.worlds.tools.kinds import Draw

__all__ = ["CHARACTERS", "JOBS", "TITLES", "TOOLS", "VALUES", "Archive", "Film", "Person", "draw_archive"]

TITLES = NAMES
CHARACTERS: tuple[str, ...] = (
    "baker",
    "captain",
    "clown",
    "detective",
    "doctor",
    "farmer",
    "ghost",
    "hunter",
    "judge",
    "king",
    "knight",
    "nurse",
    "pilot",
    "pirate",
    "queen",
    "robot",
    "sailor",
    "singer",
    "spy",
    "thief",
)
VALUES: Mapping[str, tuple[str, ...]] = {
    "genre": (
        "action",
        "comedy",
        "crime",
        "drama",
        "family",
        "fantasy",
        "history",
        "horror",
        "music",
        "mystery",
        "romance",
        "thriller",
        "war",
        "western",
    ),
    "company": ("alpha", "beta", "delta", "gamma", "kappa", "lambda", "omega", "sigma", "tau", "theta", "zeta"),
    "country": COUNTRIES,
    "keyword": (
        "airport",
        "betrayal",
        "bridge",
        "desert",
        "dream",
        "escape",
        "festival",
        "fire",
        "forest",
        "island",
        "letter",
        "mountain",
        "prison",
        "race",
        "river",
        "school",
        "storm",
        "train",
        "village",
        "winter",
    ),
}
"""What films are described by, and the words for it."""
JOBS = ("Director", "Writer", "Producer")
_COUNT = 7
_OTHER_TITLES = ("FR", "NL")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Film:
    """One film. Crew and cast are the places of people in the archive: jobs as in `JOBS`, rows in a drawn order."""

    id: int
    title: str
    released: str
    budget: int
    revenue: int
    rating: float
    described: Mapping[str, str]
    titles: Mapping[str, str]
    crew: tuple[tuple[int, str], ...]
    cast: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Person:
    """One person. Their crew and cast rows hold places of films in the archive."""

    id: int
    name: str
    birthday: str
    birthplace: str
    imdb: str
    crew: tuple[tuple[int, str], ...]
    cast: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Archive:
    """All films and people of one task, and both by their ids and names."""

    films: tuple[Film, ...]
    people: tuple[Person, ...]
    by_id: Mapping[tuple[str, int], Any]
    by_name: Mapping[tuple[str, str], Any]


def draw_archive(draw: Draw) -> Archive:
    """Seven films and seven people, everything about them drawn."""
    everyone = range(_COUNT)
    jobs = [draw.some(_COUNT, everyone) for _ in JOBS]  # jobs[job][film] = person
    first = draw.some(_COUNT, everyone)
    shift = draw.between(1, _COUNT - 1)
    second = [first[(film + shift) % _COUNT] for film in everyone]
    parts = [draw.some(2, CHARACTERS) for _ in everyone]
    titles, ids = draw.some(_COUNT, TITLES), draw.some(2 * _COUNT, range(1, 100))
    names, imdb = draw.some(_COUNT, PEOPLE), draw.some(_COUNT, range(10, 50))
    films = tuple(
        _film(
            draw,
            ids[film],
            titles[film],
            people=(
                draw.some(3, [(jobs[job][film], JOBS[job]) for job in range(3)]),
                [(first[film], parts[film][0]), (second[film], parts[film][1])],
            ),
        )
        for film in everyone
    )
    people = tuple(
        Person(
            ids[_COUNT + one],
            names[one],
            _date(draw, 1960),
            draw.choice(CITIES),
            f"nm{imdb[one]}",
            tuple(draw.some(3, [(jobs[job].index(one), JOBS[job]) for job in range(3)])),
            tuple(
                draw.some(
                    2, [(film, parts[film][at]) for at, of in ((0, first), (1, second)) for film in (of.index(one),)]
                )
            ),
        )
        for one in everyone
    )
    by_id = {**{("film", film.id): film for film in films}, **{("person", one.id): one for one in people}}
    by_name = {**{("film", film.title): film for film in films}, **{("person", one.name): one for one in people}}
    return Archive(films, people, by_id, by_name)


def _film(draw: Draw, identity: int, title: str, *, people: Sequence[Sequence[tuple[int, str]]]) -> Film:
    described = {what: draw.choice(words) for what, words in VALUES.items()}
    others = dict(zip(_OTHER_TITLES, draw.some(2, TITLES), strict=True))
    rating = draw.between(10, 99) / 10
    money = draw.between(1, 99), draw.between(1, 99)
    return Film(identity, title, _date(draw, 1990), *money, rating, described, others, *map(tuple, people))


def _date(draw: Draw, year: int) -> str:
    return f"{draw.between(year, year + 29)}-{draw.between(1, 12):02}-{draw.between(1, 28):02}"


def _search(kind: str, argument: str, shown: str) -> Callable[[Archive, Mapping[str, Any]], tuple[Archive, Json]]:
    def run(archive: Archive, given: Mapping[str, Any]) -> tuple[Archive, Json]:
        found = archive.by_name.get((kind, given[argument].strip().lower()))
        if found is None:
            raise InvalidAction(f"there is no {kind} of that name", value=given[argument])
        return archive, [{"id": found.id, shown: getattr(found, shown)}]

    return run


def _of(
    kind: str, read: Callable[[Archive, Any], Json]
) -> Callable[[Archive, Mapping[str, Any]], tuple[Archive, Json]]:
    argument = "movie_id" if kind == "film" else "person_id"

    def run(archive: Archive, given: Mapping[str, Any]) -> tuple[Archive, Json]:
        found = archive.by_id.get((kind, given[argument]))
        if found is None:
            raise InvalidAction(f"there is no {kind} of that id", value=given[argument])
        return archive, read(archive, found)

    return run


def _film_details(_: Archive, film: Film) -> Json:
    return {
        "title": film.title,
        "release_date": film.released,
        "budget": film.budget,
        "revenue": film.revenue,
        "vote_average": film.rating,
        "genres": [film.described["genre"]],
    }


def _people_rows(archive: Archive, rows: Sequence[tuple[int, str]], key: str) -> Json:
    return [{"id": archive.people[at].id, "name": archive.people[at].name, key: word} for at, word in rows]


def _film_rows(archive: Archive, rows: Sequence[tuple[int, str]], key: str) -> Json:
    return [{"id": archive.films[at].id, "title": archive.films[at].title, key: word} for at, word in rows]


def _titles(film: Film, country: str) -> Json:
    return [{"iso_3166_1": country, "title": film.titles[country]}]


_FILM_TOOLS: tuple[tuple[str, str, Callable[[Archive, Film], Json]], ...] = (
    ("details", "Title, release date, budget, revenue, vote average and genres.", _film_details),
    ("production_companies", "Who produced it.", lambda _, film: {"production_companies": [film.described["company"]]}),
    (
        "production_countries",
        "Where it was produced.",
        lambda _, film: {"production_countries": [film.described["country"]]},
    ),
    (
        "cast",
        "Its actors and their characters, the first actor first.",
        lambda archive, film: {"cast": _people_rows(archive, film.cast, "character")},
    ),
    (
        "crew",
        "Its director, writer and producer.",
        lambda archive, film: {"crew": _people_rows(archive, film.crew, "job")},
    ),
    ("keywords", "Its keywords.", lambda _, film: {"keywords": [film.described["keyword"]]}),
    ("alternative_titles", "Its French title.", lambda _, film: {"titles": _titles(film, "FR")}),
    ("translation", "Its Dutch title.", lambda _, film: {"translations": _titles(film, "NL")}),
)
_PERSON_TOOLS: tuple[tuple[str, str, Callable[[Archive, Person], Json]], ...] = (
    (
        "details",
        "Name, birthday and place of birth.",
        lambda _, one: {"name": one.name, "birthday": one.birthday, "place_of_birth": one.birthplace},
    ),
    (
        "cast",
        "The films they act in and their characters.",
        lambda archive, one: {"cast": _film_rows(archive, one.cast, "character")},
    ),
    (
        "crew",
        "The films they direct, write or produce.",
        lambda archive, one: {"crew": _film_rows(archive, one.crew, "job")},
    ),
    ("external_ids", "Their id at IMDb.", lambda _, one: {"imdb_id": one.imdb}),
)

TOOLS: tuple[ToolSpec, ...] = (
    tool(_search("film", "movie_name", "title"), "get_search_movie(movie_name: string)", "Find a film by its title."),
    *(tool(_of("film", read), f"get_movie_{name}(movie_id: integer)", words) for name, words, read in _FILM_TOOLS),
    tool(_search("person", "person_name", "name"), "get_search_person(person_name: string)", "Find a person by name."),
    *(
        tool(_of("person", read), f"get_person_{name}(person_id: integer)", words)
        for name, words, read in _PERSON_TOOLS
    ),
)
"""The tools of the movie world under their original names."""
