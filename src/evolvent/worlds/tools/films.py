"""Generated films and the people who made them, drawn per task, and the tools that look them up.

Every film has one director, writer, producer, first and second actor, and every person has each of these jobs
in one film, so every question about a person or a film has one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES, COUNTRIES, PEOPLE
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import ToolSpec, build_tool
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
_NUM_FILMS = 7
_OTHER_TITLES = ("FR", "NL")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Film:
    """One film. Crew and cast are indices of people in the archive: jobs as in `JOBS`, rows in random order."""

    id: int
    title: str
    release_date: str
    budget: int
    revenue: int
    rating: float
    descriptors: Mapping[str, str]
    titles: Mapping[str, str]
    crew: tuple[tuple[int, str], ...]
    cast: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Person:
    """One person. Their crew and cast rows contain indices of films in the archive."""

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
    by_id: Mapping[tuple[str, int], Film | Person]
    by_name: Mapping[tuple[str, str], Film | Person]


def draw_archive(draw: Draw) -> Archive:
    """Draws seven films and seven people with all their attributes."""
    indices = range(_NUM_FILMS)
    jobs = [draw.sample(_NUM_FILMS, indices) for _ in JOBS]  # jobs[job][film] = person
    first_actors = draw.sample(_NUM_FILMS, indices)
    shift = draw.between(1, _NUM_FILMS - 1)
    second_actors = [first_actors[(film + shift) % _NUM_FILMS] for film in indices]
    parts = [draw.sample(2, CHARACTERS) for _ in indices]
    titles, ids = draw.sample(_NUM_FILMS, TITLES), draw.sample(2 * _NUM_FILMS, range(1, 100))
    names, imdb = draw.sample(_NUM_FILMS, PEOPLE), draw.sample(_NUM_FILMS, range(10, 50))
    films = tuple(
        _draw_film(
            draw,
            ids[film],
            titles[film],
            people=(
                draw.sample(3, [(jobs[job][film], JOBS[job]) for job in range(3)]),
                [(first_actors[film], parts[film][0]), (second_actors[film], parts[film][1])],
            ),
        )
        for film in indices
    )
    people = tuple(
        Person(
            ids[_NUM_FILMS + person],
            names[person],
            _draw_date(draw, 1960),
            draw.choice(CITIES),
            f"nm{imdb[person]}",
            tuple(draw.sample(3, [(jobs[job].index(person), JOBS[job]) for job in range(3)])),
            tuple(
                draw.sample(
                    2,
                    [
                        (film, parts[film][part_index])
                        for part_index, actors in ((0, first_actors), (1, second_actors))
                        for film in (actors.index(person),)
                    ],
                )
            ),
        )
        for person in indices
    )
    by_id: dict[tuple[str, int], Film | Person] = {
        **{("film", film.id): film for film in films},
        **{("person", person.id): person for person in people},
    }
    by_name: dict[tuple[str, str], Film | Person] = {
        **{("film", film.title): film for film in films},
        **{("person", person.name): person for person in people},
    }
    return Archive(films, people, by_id, by_name)


def _draw_film(draw: Draw, identity: int, title: str, *, people: Sequence[Sequence[tuple[int, str]]]) -> Film:
    descriptors = {descriptor: draw.choice(values) for descriptor, values in VALUES.items()}
    other_titles = dict(zip(_OTHER_TITLES, draw.sample(2, TITLES), strict=True))
    rating = draw.between(10, 99) / 10
    amounts = draw.between(1, 99), draw.between(1, 99)
    return Film(
        identity, title, _draw_date(draw, 1990), *amounts, rating, descriptors, other_titles, *map(tuple, people)
    )


def _draw_date(draw: Draw, year: int) -> str:
    return f"{draw.between(year, year + 29)}-{draw.between(1, 12):02}-{draw.between(1, 28):02}"


def _make_search(
    kind: str, argument: str, field_name: str
) -> Callable[[Archive, Mapping[str, Any]], tuple[Archive, Json]]:
    def run(archive: Archive, arguments: Mapping[str, Any]) -> tuple[Archive, Json]:
        entry = archive.by_name.get((kind, arguments[argument].strip().lower()))
        if entry is None:
            raise InvalidAction(f"there is no {kind} of that name", value=arguments[argument])
        return archive, [{"id": entry.id, field_name: getattr(entry, field_name)}]

    return run


def _make_lookup(
    kind: str, read_fields: Callable[[Archive, Any], Json]
) -> Callable[[Archive, Mapping[str, Any]], tuple[Archive, Json]]:
    argument = "movie_id" if kind == "film" else "person_id"

    def run(archive: Archive, arguments: Mapping[str, Any]) -> tuple[Archive, Json]:
        entry = archive.by_id.get((kind, arguments[argument]))
        if entry is None:
            raise InvalidAction(f"there is no {kind} of that id", value=arguments[argument])
        return archive, read_fields(archive, entry)

    return run


def _build_film_details(_: Archive, film: Film) -> Json:
    return {
        "title": film.title,
        "release_date": film.release_date,
        "budget": film.budget,
        "revenue": film.revenue,
        "vote_average": film.rating,
        "genres": [film.descriptors["genre"]],
    }


def _build_people_rows(archive: Archive, rows: Sequence[tuple[int, str]], key: str) -> Json:
    return [
        {"id": archive.people[person_index].id, "name": archive.people[person_index].name, key: word}
        for person_index, word in rows
    ]


def _build_film_rows(archive: Archive, rows: Sequence[tuple[int, str]], key: str) -> Json:
    return [
        {"id": archive.films[film_index].id, "title": archive.films[film_index].title, key: word}
        for film_index, word in rows
    ]


def _build_titles(film: Film, country: str) -> Json:
    return [{"iso_3166_1": country, "title": film.titles[country]}]


_FILM_TOOLS: tuple[tuple[str, str, Callable[[Archive, Film], Json]], ...] = (
    ("details", "Title, release date, budget, revenue, vote average and genres.", _build_film_details),
    (
        "production_companies",
        "Who produced it.",
        lambda _, film: {"production_companies": [film.descriptors["company"]]},
    ),
    (
        "production_countries",
        "Where it was produced.",
        lambda _, film: {"production_countries": [film.descriptors["country"]]},
    ),
    (
        "cast",
        "Its actors and their characters, the first actor first.",
        lambda archive, film: {"cast": _build_people_rows(archive, film.cast, "character")},
    ),
    (
        "crew",
        "Its director, writer and producer.",
        lambda archive, film: {"crew": _build_people_rows(archive, film.crew, "job")},
    ),
    ("keywords", "Its keywords.", lambda _, film: {"keywords": [film.descriptors["keyword"]]}),
    ("alternative_titles", "Its French title.", lambda _, film: {"titles": _build_titles(film, "FR")}),
    ("translation", "Its Dutch title.", lambda _, film: {"translations": _build_titles(film, "NL")}),
)
_PERSON_TOOLS: tuple[tuple[str, str, Callable[[Archive, Person], Json]], ...] = (
    (
        "details",
        "Name, birthday and place of birth.",
        lambda _, person: {"name": person.name, "birthday": person.birthday, "place_of_birth": person.birthplace},
    ),
    (
        "cast",
        "The films they act in and their characters.",
        lambda archive, person: {"cast": _build_film_rows(archive, person.cast, "character")},
    ),
    (
        "crew",
        "The films they direct, write or produce.",
        lambda archive, person: {"crew": _build_film_rows(archive, person.crew, "job")},
    ),
    ("external_ids", "Their id at IMDb.", lambda _, person: {"imdb_id": person.imdb}),
)

TOOLS: tuple[ToolSpec, ...] = (
    build_tool(
        _make_search("film", "movie_name", "title"), "get_search_movie(movie_name: string)", "Find a film by its title."
    ),
    *(
        build_tool(_make_lookup("film", read_fields), f"get_movie_{name}(movie_id: integer)", description)
        for name, description, read_fields in _FILM_TOOLS
    ),
    build_tool(
        _make_search("person", "person_name", "name"),
        "get_search_person(person_name: string)",
        "Find a person by name.",
    ),
    *(
        build_tool(_make_lookup("person", read_fields), f"get_person_{name}(person_id: integer)", description)
        for name, description, read_fields in _PERSON_TOOLS
    ),
)
"""The tools of the movie world under their original names."""
