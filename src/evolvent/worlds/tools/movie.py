"""Movie: questions over films and people, one relation after another, over an archive invented per task.

    what is the place of birth of the director of the film written by anna
    get_search_person anna  ->  id 12 name anna  ->  get_person_crew 12  ->  crew id 7 title maple job Writer ; ...
    get_movie_crew 7  ->  ...  get_person_details 31  ->  ...  finish keldon

A kind is what the question begins with and the relations in the order in which they are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evolvent.errors import ConfigError
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES, COUNTRIES, PEOPLE
from evolvent.worlds.tools.engine import FINISH
from evolvent.worlds.tools.expert import Asker, Quest, Solution
from evolvent.worlds.tools.films import CHARACTERS, TITLES, TOOLS, VALUES, Archive, Film, Person, draw_archive
from evolvent.worlds.tools.kinds import ATTEMPTS, Draw, Kind, canonical
from evolvent.worlds.tools.world import ToolWorld

__all__ = ["Movie"]

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
_OF_FILM: Mapping[str, tuple[str, str]] = {  # the tool's last words, and the question's
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
_OF_PERSON: Mapping[str, tuple[str, str]] = {
    "birthday": ("details", "birthday"),
    "birthplace": ("details", "place of birth"),
    "imdb": ("external_ids", "imdb id"),
}
_BACK = {("director", "directed"), ("writer", "written"), ("producer", "produced")}
_BACK |= {(then, first) for first, then in _BACK}
_JOB = {
    "director": "Director",
    "writer": "Writer",
    "producer": "Producer",
    "directed": "Director",
    "written": "Writer",
    "produced": "Producer",
}
_SHOWN = {
    "released": "release_date",
    "budget": "budget",
    "revenue": "revenue",
    "rating": "vote_average",
    "birthday": "birthday",
    "birthplace": "place_of_birth",
    "imdb": "imdb_id",
}


@dataclass(frozen=True, slots=True)
class _Way:
    """What a question asks: whom it begins with, and per relation the character that it names, if any."""

    start: str
    characters: tuple[str | None, ...]


class Movie(ToolWorld):
    """The movie world. Expected results on the way count; see `ToolWorld` for the options."""

    name = "movie"
    horizon = 12
    specs = TOOLS
    trained = 4
    counted = True
    example = Call("get_movie_cast", {"movie_id": 7})

    def kinds(self) -> Iterator[Kind]:
        """What a question begins with and one to four relations; nothing is undone by the next relation."""
        for start in ("film", "person"):
            yield from _chains((start,), person=start == "person", left=4)

    def quest(self, kind: Kind, seed: int) -> Quest:
        for attempt in range(ATTEMPTS):
            draw = Draw("evolvent movie 1", *kind, seed, attempt)
            archive = draw_archive(draw)
            pool: Sequence[Film | Person] = archive.films if kind[0] == "film" else archive.people
            start = draw.choice(pool)
            characters = _walk(draw, archive, kind, start)
            if characters is not None:
                break
        else:
            raise ConfigError("no archive answers a question of this kind", value=kind)
        name = start.title if isinstance(start, Film) else start.name
        return Quest(
            _question(kind, name, characters), archive, _key(kind, archive, start, characters), _Way(name, characters)
        )

    def solve(self, kind: Kind, quest: Quest, asker: Asker) -> Solution:
        way: _Way = quest.notes
        start, *relations = kind
        if start == "film":
            row = asker.ask("get_search_movie", movie_name=way.start)[0]
        else:
            row = asker.ask("get_search_person", person_name=way.start)[0]
        for relation, character in zip(relations, way.characters, strict=True):
            if relation in _OF_FILM or relation in _OF_PERSON:
                return asker.solution(_value(asker, relation, row["id"]))
            row = _follow(asker, relation, character, row["id"])
        return asker.solution(row.get("title") or row["name"])

    def around(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        archive: Archive = quest.start
        for film in archive.films:
            yield from (
                Call(spec.name, {"movie_id": film.id}) for spec in TOOLS if spec.arguments[0].name == "movie_id"
            )
        for one in archive.people:
            yield from (
                Call(spec.name, {"person_id": one.id}) for spec in TOOLS if spec.arguments[0].name == "person_id"
            )
        yield Call("get_search_movie", {"movie_name": archive.films[0].title})
        yield Call("get_search_person", {"person_name": archive.people[0].name})
        yield from (Call(FINISH, {"answer": guess}) for guess in _guesses(archive, solution.answer))

    def texts(self) -> Iterator[str]:
        yield from (*TITLES, *PEOPLE, *CITIES, *COUNTRIES, *CHARACTERS)
        yield from (word for words in VALUES.values() for word in words)
        yield from map(str, [*range(100), *range(1960, 2020)])
        yield from (f"{number:02}" for number in range(1, 10))
        yield from (f"nm{number}" for number in range(10, 50))
        yield from (*_TO_PERSON.values(), *_TO_FILM.values())
        yield from (f"{key} {words}" for keys in (_OF_FILM, _OF_PERSON) for key, (_, words) in keys.items())
        yield from (
            "who is which is what is of",
            *_SHOWN.values(),
            *_JOB.values(),
            "FR NL iso_3166_1 titles translations",
        )
        yield "id title name job character cast crew genres production_companies production_countries keywords"
        yield "there is no film person of that name id"


def _chains(head: Kind, *, person: bool, left: int) -> Iterator[Kind]:
    """The kinds that begin with `head`, of which the last leads to a person or a film."""
    for relation in _TO_FILM if person else _TO_PERSON:
        if (head[-1], relation) not in _BACK:
            kind = (*head, relation)
            yield kind
            if left > 1:
                yield from _chains(kind, person=not person, left=left - 1)
    yield from ((*head, value) for value in (_OF_PERSON if person else _OF_FILM))


def _walk(draw: Draw, archive: Archive, kind: Kind, start: Film | Person) -> tuple[str | None, ...] | None:
    """The character that each relation names, or None where the way must meet someone or something twice."""
    here: Film | Person = start
    met = {id(start)}
    characters: list[str | None] = []
    for relation in kind[1:]:
        if relation in _OF_FILM or relation in _OF_PERSON:
            characters.append(None)
            break
        rows = here.crew if relation in _JOB else here.cast
        if relation in _JOB:
            rows = tuple(row for row in rows if row[1] == _JOB[relation])
        elif relation == "first":
            rows = rows[:1]
        elif rows[0][1] == rows[1][1]:
            return None  # two films, one character: which is meant?
        pool: Sequence[Film | Person] = archive.people if isinstance(here, Film) else archive.films
        rows = tuple(row for row in rows if id(pool[row[0]]) not in met)
        if not rows:
            return None
        place, word = draw.choice(rows)
        here = pool[place]
        met.add(id(here))
        characters.append(word if relation in ("actor", "played") else None)
    return tuple(characters)


def _question(kind: Kind, start: str, characters: tuple[str | None, ...]) -> str:
    said = start
    for relation, character in zip(kind[1:], characters, strict=True):
        if relation in _OF_FILM or relation in _OF_PERSON:
            words = {**_OF_FILM, **_OF_PERSON}[relation][1]
            return f"what is the {words} of {said}"
        said = f"{(_TO_PERSON.get(relation) or _TO_FILM[relation]).format(character)} {said}"
    return f"{'who' if kind[-1] in _TO_PERSON else 'which'} is {said}"


def _key(kind: Kind, archive: Archive, start: Film | Person, characters: Sequence[str | None]) -> str:
    """The canonical form. Words for genres and the like are names too: they are numbered as they are met."""
    entities: dict[str, tuple[Json, list[str]]] = {}
    people, films = [f"person {one.name}" for one in archive.people], [f"film {film.title}" for film in archive.films]
    for name, film in zip(films, archive.films, strict=True):
        facts: list[Json] = [film.released, film.budget, film.revenue, film.rating, [job for _, job in film.crew]]
        links = [people[place] for place, _ in (*film.crew, *film.cast)]
        links += [f"{what} {word}" for what, word in (*film.described.items(), *film.titles.items())]
        entities[name] = facts, [*links, *(f"character {word}" for _, word in film.cast)]
    for name, one in zip(people, archive.people, strict=True):
        links = [films[place] for place, _ in (*one.crew, *one.cast)]
        facts = [one.birthday, [job for _, job in one.crew]]
        entities[name] = facts, [*links, f"city {one.birthplace}", *(f"character {word}" for _, word in one.cast)]
    root = f"film {start.title}" if isinstance(start, Film) else f"person {start.name}"
    return canonical(kind, [root, *(f"character {word}" for word in characters)], entities)


def _follow(asker: Asker, relation: str, character: str | None, identity: int) -> Any:
    """The row of the person or film that a relation leads to."""
    kind = "movie" if relation in _TO_PERSON else "person"
    what = "crew" if relation in _JOB else "cast"
    rows = asker.ask(f"get_{kind}_{what}", **{f"{kind}_id": identity})[what]
    if relation == "first":
        return rows[0]
    key, word = ("job", _JOB[relation]) if relation in _JOB else ("character", character)
    return next(row for row in rows if row[key] == word)


def _value(asker: Asker, relation: str, identity: int) -> Json:
    """What is asked for at the end."""
    kind = "movie" if relation in _OF_FILM else "person"
    tool = {**_OF_FILM, **_OF_PERSON}[relation][0]
    found = asker.ask(f"get_{kind}_{tool}", **{f"{kind}_id": identity})
    if relation in _SHOWN:
        return found[_SHOWN[relation]]  # type: ignore[no-any-return]
    row: Json = (found["genres"] if relation == "genre" else next(iter(found.values())))[0]
    return row["title"] if isinstance(row, dict) else row


def _guesses(archive: Archive, answer: Json) -> Sequence[Json]:
    """Answers of the same sort as the right one, from the same archive."""
    sorts: list[Sequence[Json]] = [
        [film.title for film in archive.films],
        [one.name for one in archive.people],
        [film.released for film in archive.films],
        [one.birthday for one in archive.people],
        [film.budget for film in archive.films] + [film.revenue for film in archive.films],
        [film.rating for film in archive.films],
        [one.birthplace for one in archive.people],
        [one.imdb for one in archive.people],
        [film.titles["FR"] for film in archive.films],
        [film.titles["NL"] for film in archive.films],
        *([film.described[what] for film in archive.films] for what in VALUES),
    ]
    return next(sort for sort in sorts if answer in sort)
