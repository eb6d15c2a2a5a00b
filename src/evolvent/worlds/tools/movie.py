"""Movie: questions over films and people, one relation after another, over an archive generated per task.

    what is the place of birth of the director of the film written by anna
    get_search_person anna  ->  id 12 name anna  ->  get_person_crew 12  ->  crew id 7 title maple job Writer ; ...
    get_movie_crew 7  ->  ...  get_person_details 31  ->  ...  finish keldon

A kind is the start of the question and the relations in the order in which they are followed.

Generated films and the people who made them, drawn per task, and the tools that look them up.

Every film has one director, writer, producer, first and second actor, and every person has each of these jobs
in one film, so every question about a person or a film has one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from evolvent.errors import ConfigError, InvalidAction
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES, COUNTRIES, PEOPLE
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import FINISH, ToolSpec, build_tool
from evolvent.worlds.tools.expert import Quest, Solution, ToolExpert
from evolvent.worlds.tools.kinds import MAX_ATTEMPTS, Draw, Kind, digest_task
from evolvent.worlds.tools.world import ToolWorld

__all__ = ["CHARACTERS", "JOBS", "TITLES", "TOOLS", "VALUES", "Archive", "Film", "Movie", "Person", "draw_archive"]


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


_TO_PERSON: Mapping[str, str] = {
    "director": "the director of",
    "writer": "the writer of",
    "producer": "the producer of",
    "first": "the first actor of",
    "actor": "the actor of the {} in",
}
_TO_FILM: Mapping[str, str] = {
    "directed": "the film directed by",
    "written": "the film written by",
    "produced": "the film produced by",
    "played": "the film with the {} played by",
}
_FILM_FIELDS: Mapping[str, tuple[str, str]] = {  # the tool's last words, and the question's
    "released": ("details", "release date"),
    "budget": ("details", "budget"),
    "revenue": ("details", "revenue"),
    "rating": ("details", "vote average"),
    "genre": ("details", "genre"),
    "company": ("production_companies", "production company"),
    "country": ("production_countries", "production country"),
    "keyword": ("keywords", "keyword"),
    "french": ("alternative_titles", "french title"),
    "dutch": ("translation", "dutch title"),
}
_PERSON_FIELDS: Mapping[str, tuple[str, str]] = {
    "birthday": ("details", "birthday"),
    "birthplace": ("details", "place of birth"),
    "imdb": ("external_ids", "imdb id"),
}
_INVERSE_PAIRS = {("director", "directed"), ("writer", "written"), ("producer", "produced")}
_INVERSE_PAIRS |= {(second, first) for first, second in _INVERSE_PAIRS}
_JOB_OF_RELATION = {
    "director": "Director",
    "writer": "Writer",
    "producer": "Producer",
    "directed": "Director",
    "written": "Writer",
    "produced": "Producer",
}
_RESULT_FIELDS = {
    "released": "release_date",
    "budget": "budget",
    "revenue": "revenue",
    "rating": "vote_average",
    "birthday": "birthday",
    "birthplace": "place_of_birth",
    "imdb": "imdb_id",
}


@dataclass(frozen=True, slots=True)
class _QuestionParts:
    """The parts of a question: its start, and for each relation the character that it names, if any."""

    start: str
    characters: tuple[str | None, ...]


class Movie(ToolWorld):
    """The movie world. Expected intermediate results count; see `ToolWorld` for the options."""

    name = "movie"
    horizon = 12
    specs = TOOLS
    trained_length = 4
    counts_subgoals = True
    example = Call("get_movie_cast", {"movie_id": 7})

    def kinds(self) -> Iterator[Kind]:
        """Yields a start and one to four relations; no relation undoes the one before."""
        for start in ("film", "person"):
            yield from _iterate_kinds((start,), at_person=start == "person", remaining=4)

    def draw_quest(self, kind: Kind, seed: int) -> Quest:
        for attempt in range(MAX_ATTEMPTS):
            draw = Draw("evolvent movie 1", *kind, seed, attempt)
            archive = draw_archive(draw)
            pool: Sequence[Film | Person] = archive.films if kind[0] == "film" else archive.people
            start = draw.choice(pool)
            characters = _draw_path(draw, archive, kind, start)
            if characters is not None:
                break
        else:
            raise ConfigError("no archive answers a question of this kind", value=kind)
        name = start.title if isinstance(start, Film) else start.name
        return Quest(
            _render_question(kind, name, characters),
            archive,
            partial(_digest_quest, kind, archive, start, characters),
            _QuestionParts(name, characters),
        )

    def solve(self, kind: Kind, quest: Quest, expert: ToolExpert) -> Solution:
        parts: _QuestionParts = quest.notes
        start, *relations = kind
        if start == "film":
            row = expert.query("get_search_movie", movie_name=parts.start)[0]
        else:
            row = expert.query("get_search_person", person_name=parts.start)[0]
        for relation, character in zip(relations, parts.characters, strict=True):
            if relation in _FILM_FIELDS or relation in _PERSON_FIELDS:
                return expert.build_solution(_query_field(expert, relation, row["id"]))
            row = _follow(expert, relation, character, row["id"])
        return expert.build_solution(row.get("title") or row["name"])

    def candidate_calls(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        archive: Archive = quest.start
        for film in archive.films:
            yield from (
                Call(spec.name, {"movie_id": film.id}) for spec in TOOLS if spec.arguments[0].name == "movie_id"
            )
        for person in archive.people:
            yield from (
                Call(spec.name, {"person_id": person.id}) for spec in TOOLS if spec.arguments[0].name == "person_id"
            )
        yield Call("get_search_movie", {"movie_name": archive.films[0].title})
        yield Call("get_search_person", {"person_name": archive.people[0].name})
        yield from (Call(FINISH, {"answer": guess}) for guess in _list_guesses(archive, solution.answer))

    def vocabulary_texts(self) -> Iterator[str]:
        yield from (*TITLES, *PEOPLE, *CITIES, *COUNTRIES, *CHARACTERS)
        yield from (word for phrases in VALUES.values() for word in phrases)
        yield from map(str, [*range(100), *range(1960, 2020)])
        yield from (f"{number:02}" for number in range(1, 10))
        yield from (f"nm{number}" for number in range(10, 50))
        yield from (*_TO_PERSON.values(), *_TO_FILM.values())
        yield from (f"{key} {phrases}" for keys in (_FILM_FIELDS, _PERSON_FIELDS) for key, (_, phrases) in keys.items())
        yield from (
            "who is which is what is of",
            *_RESULT_FIELDS.values(),
            *_JOB_OF_RELATION.values(),
            "FR NL iso_3166_1 titles translations",
        )
        yield "id title name job character cast crew genres production_companies production_countries keywords"
        yield "there is no film person of that name id"


def _iterate_kinds(prefix: Kind, *, at_person: bool, remaining: int) -> Iterator[Kind]:
    """Yields the kinds that begin with `prefix` and end with a person, a film or a field."""
    for relation in _TO_FILM if at_person else _TO_PERSON:
        if (prefix[-1], relation) not in _INVERSE_PAIRS:
            kind = (*prefix, relation)
            yield kind
            if remaining > 1:
                yield from _iterate_kinds(kind, at_person=not at_person, remaining=remaining - 1)
    yield from ((*prefix, value) for value in (_PERSON_FIELDS if at_person else _FILM_FIELDS))


def _draw_path(draw: Draw, archive: Archive, kind: Kind, start: Film | Person) -> tuple[str | None, ...] | None:
    """Draws the character that each relation names; None if the path must visit a person or film twice."""
    current: Film | Person = start
    visited = {id(start)}
    characters: list[str | None] = []
    for relation in kind[1:]:
        if relation in _FILM_FIELDS or relation in _PERSON_FIELDS:
            characters.append(None)
            break
        rows = current.crew if relation in _JOB_OF_RELATION else current.cast
        if relation in _JOB_OF_RELATION:
            rows = tuple(row for row in rows if row[1] == _JOB_OF_RELATION[relation])
        elif relation == "first":
            rows = rows[:1]
        elif rows[0][1] == rows[1][1]:
            return None  # two films, one character: which is meant?
        pool: Sequence[Film | Person] = archive.people if isinstance(current, Film) else archive.films
        rows = tuple(row for row in rows if id(pool[row[0]]) not in visited)
        if not rows:
            return None
        index, word = draw.choice(rows)
        current = pool[index]
        visited.add(id(current))
        characters.append(word if relation in ("actor", "played") else None)
    return tuple(characters)


def _render_question(kind: Kind, start: str, characters: tuple[str | None, ...]) -> str:
    description = start
    for relation, character in zip(kind[1:], characters, strict=True):
        if relation in _FILM_FIELDS or relation in _PERSON_FIELDS:
            phrase = {**_FILM_FIELDS, **_PERSON_FIELDS}[relation][1]
            return f"what is the {phrase} of {description}"
        description = f"{(_TO_PERSON.get(relation) or _TO_FILM[relation]).format(character)} {description}"
    return f"{'who' if kind[-1] in _TO_PERSON else 'which'} is {description}"


def _digest_quest(kind: Kind, archive: Archive, start: Film | Person, characters: Sequence[str | None]) -> str:
    """Returns the canonical form. Words for genres and the like are names too: they are numbered in order of
    discovery.
    """
    entities: dict[str, tuple[Json, list[str]]] = {}
    people, films = (
        [f"person {person.name}" for person in archive.people],
        [f"film {film.title}" for film in archive.films],
    )
    for name, film in zip(films, archive.films, strict=True):
        facts: list[Json] = [film.release_date, film.budget, film.revenue, film.rating, [job for _, job in film.crew]]
        links = [people[index] for index, _ in (*film.crew, *film.cast)]
        links += [f"{category} {word}" for category, word in (*film.descriptors.items(), *film.titles.items())]
        entities[name] = facts, [*links, *(f"character {word}" for _, word in film.cast)]
    for name, person in zip(people, archive.people, strict=True):
        links = [films[index] for index, _ in (*person.crew, *person.cast)]
        facts = [person.birthday, [job for _, job in person.crew]]
        entities[name] = facts, [*links, f"city {person.birthplace}", *(f"character {word}" for _, word in person.cast)]
    root = f"film {start.title}" if isinstance(start, Film) else f"person {start.name}"
    return digest_task(kind, [root, *(f"character {word}" for word in characters)], entities)


def _follow(expert: ToolExpert, relation: str, character: str | None, identity: int) -> Any:
    """Returns the row of the person or film that a relation leads to."""
    kind = "movie" if relation in _TO_PERSON else "person"
    table = "crew" if relation in _JOB_OF_RELATION else "cast"
    rows = expert.query(f"get_{kind}_{table}", **{f"{kind}_id": identity})[table]
    if relation == "first":
        return rows[0]
    key, word = ("job", _JOB_OF_RELATION[relation]) if relation in _JOB_OF_RELATION else ("character", character)
    return next(row for row in rows if row[key] == word)


def _query_field(expert: ToolExpert, relation: str, identity: int) -> Json:
    """Returns the field that the question asks for."""
    kind = "movie" if relation in _FILM_FIELDS else "person"
    tool = {**_FILM_FIELDS, **_PERSON_FIELDS}[relation][0]
    details = expert.query(f"get_{kind}_{tool}", **{f"{kind}_id": identity})
    if relation in _RESULT_FIELDS:
        return details[_RESULT_FIELDS[relation]]  # type: ignore[no-any-return]
    row: Json = (details["genres"] if relation == "genre" else next(iter(details.values())))[0]
    return row["title"] if isinstance(row, dict) else row


def _list_guesses(archive: Archive, answer: Json) -> Sequence[Json]:
    """Returns answers of the same type as the right answer, from the same archive."""
    answer_groups: list[Sequence[Json]] = [
        [film.title for film in archive.films],
        [person.name for person in archive.people],
        [film.release_date for film in archive.films],
        [person.birthday for person in archive.people],
        [film.budget for film in archive.films] + [film.revenue for film in archive.films],
        [film.rating for film in archive.films],
        [person.birthplace for person in archive.people],
        [person.imdb for person in archive.people],
        [film.titles["FR"] for film in archive.films],
        [film.titles["NL"] for film in archive.films],
        *([film.descriptors[category] for film in archive.films] for category in VALUES),
    ]
    return next(group for group in answer_groups if answer in group)
