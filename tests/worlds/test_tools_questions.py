"""Weather, movie, academia: the questions as they are read, answered from the data alone, against the experts."""

from __future__ import annotations

import re
from datetime import date, timedelta

import pytest

from evolvent.messages import Call
from evolvent.worlds.panel import Sizes
from evolvent.worlds.tools.academia import Academia
from evolvent.worlds.tools.movie import Movie
from evolvent.worlds.tools.scoring import distance_km
from evolvent.worlds.tools.weather import MAX_DAY_OFFSET, Atlas, City, Weather

SMALL = Sizes(train=60, dev=20, test=40)
WEATHER, MOVIE, ACADEMIA = Weather(sizes=SMALL), Movie(sizes=SMALL), Academia(sizes=SMALL)
FIELDS = ["highest temperature", "lowest temperature", "average temperature", "rain", "snow", "air quality index"]


def every_task(world):
    return [task for tier in world.tiers for task in world.tasks("test", tier)]


def answers(world, task):
    """The question, the data behind the tools, and what the expert says at the end."""
    question, _ = world.make(task).reset()
    *_, finish = world.expert(task)
    return question, world.toolbox(task).start, world.grammar.parse_call(finish).arguments["answer"]


def weather_oracle(question: str, atlas: Atlas):
    """The answer, read off the atlas."""
    said = question.removeprefix("what is the ")
    days = r"(?:today|tomorrow|yesterday|\d days ago|in \d days)"
    found = re.fullmatch(rf"(.+?) (?:in|of) (.+?)(?: (?:over )?({days}(?:(?:, | and ){days})*)|( to (\w+)))?", said)
    what, where, when, _, to = found.groups()
    what = what.removeprefix("largest ")
    place = weather_place(where, atlas)
    if what == "elevation":
        return place.elevation
    if what == "distance":
        return round(distance_km(place.point, atlas.cities[to].point), -2)
    offsets = []
    for day in re.findall(days, when):
        number = int((re.findall(r"\d", day) or ["1"])[0])
        offsets.append({"today": 0, "tomorrow": 1, "yesterday": -1}.get(day, -number if "ago" in day else number))
    if what == "air quality level":
        index = place.days[offsets[0] + MAX_DAY_OFFSET][5]
        return ["good", "fair", "moderate", "poor", "very poor", "extremely poor"][index // 20]
    return max(place.days[offset + MAX_DAY_OFFSET][FIELDS.index(what)] for offset in offsets)


def weather_place(where: str, atlas: Atlas) -> City:
    places = atlas.cities
    if where == "the city where i am":
        return places[atlas.home]
    if found := re.fullmatch(r"the (higher|lower) of (\w+) and (\w+)", where):
        pick = max if found[1] == "higher" else min
        return pick(places[found[2]], places[found[3]], key=lambda place: place.elevation)
    if found := re.fullmatch(r"the one of (\w+) and (\w+) (nearer to|farther from) (\w+)", where):
        pick, to = min if found[3] == "nearer to" else max, places[found[4]].point
        return pick(places[found[1]], places[found[2]], key=lambda place: distance_km(place.point, to))
    return places[where]


def test_weather_answers():
    for task in every_task(WEATHER):
        question, atlas, answer = answers(WEATHER, task)
        assert weather_oracle(question, atlas) == answer, question


def film_oracle(said: str, archive):
    """The person or film that a nested description means."""
    for words, rows, word in (
        (r"the (director|writer|producer) of (.+)", "crew", None),
        (r"the film (directed|written|produced) by (.+)", "crew", None),
        (r"the (actor) of the (\w+) in (.+)", "cast", 2),
        (r"the (film) with the (\w+) played by (.+)", "cast", 2),
        (r"the (first) actor of (.+)", "cast", None),
    ):
        found = re.fullmatch(words, said)
        if found:
            of = film_oracle(found.groups()[-1], archive)
            jobs = {"directed": "Director", "written": "Writer", "produced": "Producer"}
            wanted = found[word] if word else jobs.get(found[1], found[1].capitalize())
            pool = archive.films if hasattr(of, "name") else archive.people
            every = {pool[place] for place, what in getattr(of, rows) if what == wanted}
            if found[1] == "first":
                every = {archive.people[of.cast[0][0]]}
            (only,) = every
            return only
    named = [
        one
        for one in (*archive.films, *archive.people)
        if said in (getattr(one, "title", ""), getattr(one, "name", ""))
    ]
    (only,) = named
    return only


def movie_oracle(question: str, archive):
    if not question.startswith("what"):
        one = film_oracle(re.sub("^(who|which) is ", "", question), archive)
        return one.title if hasattr(one, "title") else one.name
    fields = {
        "release date": lambda film: film.release_date,
        "budget": lambda film: film.budget,
        "revenue": lambda film: film.revenue,
        "vote average": lambda film: film.rating,
        "genre": lambda film: film.descriptors["genre"],
        "production company": lambda film: film.descriptors["company"],
        "production country": lambda film: film.descriptors["country"],
        "keyword": lambda film: film.descriptors["keyword"],
        "french title": lambda film: film.titles["FR"],
        "dutch title": lambda film: film.titles["NL"],
        "birthday": lambda one: one.birthday,
        "place of birth": lambda one: one.birthplace,
        "imdb id": lambda one: one.imdb,
    }
    words = next(words for words in fields if question.startswith(f"what is the {words} of "))
    return fields[words](film_oracle(question.removeprefix(f"what is the {words} of "), archive))


def test_movie_answers():
    for task in every_task(MOVIE):
        question, archive, answer = answers(MOVIE, task)
        assert movie_oracle(question, archive) == answer, question


def test_both_sides_of_an_archive_agree():
    """Whoever is in the crew or cast of a film has that film among their own, in the same role."""
    for task in every_task(MOVIE)[:20]:
        archive = MOVIE.toolbox(task).start
        for rows in ("crew", "cast"):
            films = {(at, who, what) for at, film in enumerate(archive.films) for who, what in getattr(film, rows)}
            people = {(at, who, what) for who, one in enumerate(archive.people) for at, what in getattr(one, rows)}
            assert films == people


def net_oracle(said: str, library):
    """The paper or author that a nested description means."""
    papers, authors = library.papers, library.authors
    if found := re.fullmatch(r"the (older|newer|more cited|less cited) paper cited by (.+)", said):
        cited = [papers[at] for at in net_oracle(found[2], library).cites]
        key = (lambda paper: paper.year) if found[1] in ("older", "newer") else (lambda paper: paper.citations)
        return (max if found[1] in ("newer", "more cited") else min)(cited, key=key)
    if found := re.fullmatch(r"the (first|last) author of (.+)", said):
        return authors[net_oracle(found[2], library).authors[0 if found[1] == "first" else -1]]
    if found := re.fullmatch(r"the (most|least) frequent collaborator of (.+)", said):
        one = net_oracle(found[2], library)
        counts = {
            other: sum({one, authors[other]} <= {authors[at] for at in paper.authors} for paper in papers)
            for other in range(len(authors))
            if authors[other] is not one
        }
        counts = {other: count for other, count in counts.items() if count}
        best = (max if found[1] == "most" else min)(counts.values())
        (only,) = [other for other, count in counts.items() if count == best]
        return authors[only]
    if found := re.fullmatch(r"the joint paper of (\w+) and (.+)", said):
        pair = {net_oracle(found[1], library), net_oracle(found[2], library)}
        (only,) = [paper for paper in papers if pair <= {authors[at] for at in paper.authors}]
        return only
    (only,) = [one for one in (*papers, *authors) if said in (getattr(one, "title", ""), getattr(one, "name", ""))]
    return only


def academia_oracle(question: str, library):
    fields = {
        "year": "year",
        "venue": "venue",
        "number of citations": "citations",
        "keyword": "keyword",
        "organisation": "org",
    }
    for words, field in fields.items():
        if question.startswith(f"what is the {words} of "):
            return getattr(net_oracle(question.removeprefix(f"what is the {words} of "), library), field)
    one = net_oracle(re.sub("^(who|which) is ", "", question), library)
    return one.title if hasattr(one, "title") else one.name


def test_academia_answers():
    for task in every_task(ACADEMIA):
        question, nets, answer = answers(ACADEMIA, task)
        assert academia_oracle(question, nets.library) == answer, question


def days(*values):
    """Days of a place whose highest temperatures are the values, around today."""
    return tuple((value, 0, 1, 2, 3, 45) for value in values)


ATLAS = Atlas(
    date(2024, 2, 28),
    "arvik",
    {"arvik": City("arvik", 50, 10, 300, days(*range(15))), "belmor": City("belmor", 50, 20, 900, days(*range(15)))},
)
BOX = WEATHER.toolbox(WEATHER.tasks("dev", "seen")[0])


def ask(tool, **arguments):
    state, result = BOX.call(ATLAS, Call(tool, arguments))
    assert state is ATLAS
    return result


def test_days_are_read_relative_to_today():
    here = {"latitude": 50, "longitude": 10}
    assert ask("get_user_current_date").value == "2024-02-28"
    past = ask("get_historical_temp", **here, start_date="2024-02-26", end_date="2024-02-27").value
    assert past == {
        "daily": {
            "time": ["2024-02-26", "2024-02-27"],
            "temperature_2m_max": [5, 6],
            "temperature_2m_min": [0, 0],
            "temperature_2m_mean": [1, 1],
        }
    }
    coming = ask("get_rain_forecast", **here, start_date="2024-02-29", end_date="2024-03-01").value
    assert coming == {"daily": {"time": ["2024-02-29", "2024-03-01"], "rain_sum": [2, 2]}}
    assert ask("get_current_snow", **here, current_date="2024-02-28").value["daily"]["snowfall_sum"] == [3]
    for tool, start, end in (
        ("get_historical_temp", "2024-02-28", "2024-02-28"),
        ("get_temp_forecast", "2024-02-28", "2024-02-28"),
        ("get_historical_temp", "2024-02-20", "2024-02-27"),
        ("get_temp_forecast", "2024-02-29", "2024-03-07"),
        ("get_historical_temp", "2024-02-27", "2024-02-26"),
        ("get_historical_temp", "27 Feb", "2024-02-27"),
        ("get_historical_temp", "2024-02-30", "2024-02-30"),
    ):
        assert ask(tool, **here, start_date=start, end_date=end).failed
    assert ask("get_current_temp", **here, current_date="2024-02-27").failed
    assert timedelta(days=MAX_DAY_OFFSET).days == 7


def test_places_are_found_within_50_km():
    assert ask("get_elevation", latitude=50.4, longitude=10).value == {"elevation": 300}
    assert ask("get_elevation", latitude=50.5, longitude=10).failed
    for latitude, longitude in ((1e17, 0), (-91, 10), (50, 1e9)):
        assert ask("get_elevation", latitude=latitude, longitude=longitude).failed
    ends = {"latitude1": 50, "longitude1": 10, "latitude2": 50, "longitude2": 20}
    assert ask("get_distance", **ends).value == {"distance": 700}  # 713 km
    assert ask("get_latitude_longitude", name=" Arvik").value == {
        "results": [{"name": "arvik", "latitude": 50, "longitude": 10}]
    }
    assert ask("get_latitude_longitude", name="paris").failed


@pytest.mark.parametrize(
    ("index", "level"),
    [(0, "good"), (19.9, "good"), (20, "fair"), (79, "poor"), (99, "very poor"), (500, "extremely poor")],
)
def test_levels_of_air_quality(index, level):
    assert ask("get_air_quality_level", air_quality_index=index).value == level
    assert ask("get_air_quality_level", air_quality_index=-1).failed


def test_a_net_is_read_once_it_is_loaded():
    task = ACADEMIA.tasks("dev", "seen")[0]
    box = ACADEMIA.toolbox(task)
    paper = box.start.library.papers[0]
    node = Call("paperNodeCheck", {"node": paper.title})
    assert box.call(box.start, node)[1].value == "please load the PaperNet first"
    loaded, result = box.call(box.start, Call("loadPaperNet"))
    assert result.value == "PaperNet is loaded"
    assert box.call(loaded, node)[1].value["year"] == paper.year
    cited = box.start.library.papers[paper.cites[0]].title
    assert box.call(loaded, Call("paperEdgeCheck", {"node1": paper.title, "node2": cited}))[1].value == {"weight": 1}
    assert box.call(loaded, Call("paperEdgeCheck", {"node1": paper.title, "node2": paper.title}))[1].failed
    assert box.call(loaded, Call("neighbourCheck", {"graph": "AuthorNet", "node": "anna"}))[1].failed
    assert box.call(loaded, Call("neighbourCheck", {"graph": "OtherNet", "node": "anna"}))[1].failed
    both, _ = box.call(loaded, Call("loadAuthorNet"))
    name = box.start.library.authors[paper.authors[0]].name
    assert box.call(both, Call("authorNodeCheck", {"node": name}))[1].value["name"] == name
