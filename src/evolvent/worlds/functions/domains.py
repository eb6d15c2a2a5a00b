"""The things that tools act on and their attributes: 16 domains of three things each.

A thing has a noun of its own, two to four attributes, and rows in the state of a task. `OPERATIONS` (in
`operations`) turns things into tools. Domains share attributes, as in the real world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evolvent.worlds.functions.slots import (
    Slot,
    array_slot,
    boolean_slot,
    choice_slot,
    integer_slot,
    number_slot,
    text_slot,
)

__all__ = ["DAYS", "DOMAINS", "PEOPLE", "Domain", "Thing"]

CITIES = "oslo rome lima cairo delhi paris tokyo quito berlin madrid lagos sydney"
DAYS = "monday tuesday wednesday thursday friday saturday sunday"
PEOPLE = "anna ben carl dora emil fred gina hugo ines jack kate liam"
COLOURS = "red green blue black white yellow brown grey"
ROOMS = "kitchen bedroom bathroom hall office attic cellar nursery"
TOPICS = "history physics art sport music politics travel money"

CITY = text_slot("city : the city", "in {} | at {}", CITIES)
ORIGIN = text_slot("origin : where it starts", "from {} | starting in {}", CITIES)
GOAL = text_slot("destination : where it ends", "to {} | ending in {}", CITIES)
DAY = text_slot("day : day of the week", "on {} | for {}", DAYS)
OWNER = text_slot("owner : who owns it", "of {} | owned by {}", PEOPLE)
GUEST = text_slot("recipient : who receives it", "to {} | meant for {}", PEOPLE)
MAKER = text_slot("author : who made it", "by {} | made by {}", PEOPLE)
COLOUR = text_slot("colour : the colour", "in {} | coloured {}", COLOURS)
ROOM = text_slot("room : the room", "in the {} | for the {}", ROOMS)
TOPIC = text_slot("topic : what it is about", "about {} | on the topic {}", TOPICS)
EDIBLE = "rice beans corn eggs fish cheese"
MARKS = "new old best work home fun"
GENRE = text_slot("genre : style of music", "in the style {} | from the genre {}", "jazz rock blues folk opera")
LANGUAGE = text_slot("language : the language", "in {} | written in {}", "english french german spanish arabic hindi")
MATERIAL = text_slot(
    "material : what it is made of", "of {} | made of {}", "wood steel glass leather cotton stone paper"
)
SIZE = choice_slot("size : the size", "in size {} | of {} size", "small medium large")
LEVEL = choice_slot("level : how hard it is", "at {} level | of {} level", "easy normal hard")
DANGER = choice_slot("danger : how dangerous it is", "with {} danger | of {} danger", "low raised high")
CURRENCY = choice_slot("currency : the currency", "in {} | paid in {}", "euro dollar yen pound")
FORMAT = choice_slot("format : the file format", "as {} | in {} format", "pdf html csv png")
VEHICLE = choice_slot("vehicle : how one travels", "by {} | using a {}", "car bike bus tram")
HOUR = integer_slot("hour : hour of the day", "at {} o'clock | at hour {}", range(24))
MINUTES = integer_slot("minutes : length in minutes", "of {} minutes | lasting {} minutes", range(5, 91))
BRIGHTNESS = integer_slot("brightness : brightness in percent", "at {} percent | with {} percent", range(10, 91))
HOURS = integer_slot("hours : length in hours", "of {} hours | lasting {} hours", range(2, 13))
NIGHTS = integer_slot("nights : number of nights", "for {} nights | staying {} nights", range(2, 15))
GUESTS = integer_slot("guests : number of people", "for {} people | with {} people", range(2, 21))
PAGES = integer_slot("pages : number of pages", "of {} pages | with {} pages", range(2, 91))
YEARS = integer_slot("years : length in years", "over {} years | lasting {} years", range(2, 31))
MEMBERS = integer_slot("members : number of members", "with {} members | of {} members", range(2, 61))
PRICE = number_slot("price : the price", "costing {} | at a price of {}", range(2, 40))
WEIGHT = number_slot("weight : weight in kilos", "weighing {} kilos | of {} kilos", range(1, 20))
HEIGHT = number_slot("height : height in metres", "{} metres high | with a height of {} metres", range(1, 30))
DISTANCE = number_slot("distance : length in kilometres", "of {} kilometres | {} kilometres long", range(2, 40))
WARMTH = number_slot("temperature : temperature in degrees", "at {} degrees | with {} degrees", range(5, 30))
BREAKFAST = boolean_slot("breakfast : whether breakfast is included", "with breakfast", "without breakfast")
PUBLIC = boolean_slot(
    "public : whether everybody can see it", "visible to all | open to everybody", "hidden from others"
)
URGENT = boolean_slot("urgent : whether it is urgent", "marked urgent", "marked not urgent")
INSURED = boolean_slot("insured : whether it is insured", "with insurance", "without insurance")
WEEKLY = boolean_slot("weekly : whether it repeats every week", "every week", "only once")
VEGETARIAN = boolean_slot("vegetarian : whether it is without meat", "without meat", "with meat")
INDOOR = boolean_slot("indoor : whether it is under a roof", "under a roof", "in the open air")
WRAPPED = boolean_slot("wrapped : whether it is wrapped", "nicely wrapped", "not wrapped")
QUIET = boolean_slot("quiet : whether it is silent", "in silence", "with noise")
PARTNERS = array_slot("people : who takes part", "together with {} | joined by {}", PEOPLE)
FOODS = array_slot("ingredients : what is in it", "made from {} | containing {}", EDIBLE)
LABELS = array_slot("labels : words to find it by", "labelled {} | with the labels {}", MARKS)


@dataclass(frozen=True, slots=True)
class Thing:
    """A type of thing that tools act on.

    Args:
        noun, plural: its names; no two things share a noun.
        slots: its attributes, optional attributes last.
    """

    noun: str
    plural: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain: its things and the operations on each of them.

    Args:
        starts: three operations that do not need the number of a thing.
        follows: three operations on a thing with a number.
    """

    thing_types: tuple[Thing, ...]
    starts: tuple[str, str, str]
    follows: tuple[str, str, str]


def _make_things(**slots_by_noun: tuple[Slot, ...]) -> tuple[Thing, ...]:
    """Makes things by noun, with regular plurals."""
    return tuple(
        Thing(noun, f"{noun}{'es' if noun.endswith('h') else 's'}", slots) for noun, slots in slots_by_noun.items()
    )


DOMAINS: Mapping[str, Domain] = {
    "travel": Domain(
        _make_things(
            flight=(
                ORIGIN,
                GOAL,
                DAY,
                choice_slot("cabin : the cabin", "in {} class | flying {}", "economy business first").with_default(
                    "economy"
                ),
            ),
            hotel=(CITY, NIGHTS, BREAKFAST.with_default(False)),
            tour=(CITY, DAY, GUESTS.with_default(2)),
        ),
        ("find", "book", "count"),
        ("cancel", "rate", "share"),
    ),
    "weather": Domain(
        _make_things(
            forecast=(
                CITY,
                DAY,
                choice_slot("scale : unit of degrees", "in {} | using {}", "celsius fahrenheit kelvin").with_default(
                    "celsius"
                ),
            ),
            warning=(CITY, DANGER, URGENT.with_default(False)),
            sensor=(ROOM, HEIGHT, WARMTH),
        ),
        ("find", "add", "rank"),
        ("show", "delete", "share"),
    ),
    "music": Domain(
        _make_things(
            song=(MAKER, GENRE, MINUTES.with_default(5)),
            playlist=(OWNER, LABELS, PUBLIC.with_default(False)),
            concert=(CITY, DAY, PRICE),
        ),
        ("find", "plan", "count"),
        ("rate", "share", "cancel"),
    ),
    "files": Domain(
        _make_things(
            document=(TOPIC, PAGES, FORMAT.with_default("pdf")),
            folder=(OWNER, COLOUR, PUBLIC.with_default(False)),
            backup=(
                DAY,
                HOUR,
                number_slot("space : size in gigabytes", "of {} gigabytes | taking {} gigabytes", range(1, 40)),
            ),
        ),
        ("find", "add", "rank"),
        ("delete", "update", "assign"),
    ),
    "calendar": Domain(
        _make_things(
            meeting=(DAY, HOUR, PARTNERS),
            reminder=(DAY, TOPIC, WEEKLY.with_default(False)),
            appointment=(DAY, HOUR, text_slot("doctor : the doctor", "with doctor {} | at doctor {}", PEOPLE)),
        ),
        ("find", "plan", "count"),
        ("move", "cancel", "share"),
    ),
    "banking": Domain(
        _make_things(
            payment=(GUEST, PRICE, CURRENCY.with_default("euro")),
            loan=(OWNER, YEARS, INSURED.with_default(False)),
            invoice=(GUEST, PRICE, DAY),
        ),
        ("find", "add", "rank"),
        ("show", "cancel", "update"),
    ),
    "cooking": Domain(
        _make_things(
            recipe=(FOODS, MINUTES, VEGETARIAN.with_default(False)),
            menu=(DAY, PRICE, GUESTS.with_default(4)),
            cake=(FOODS, WEIGHT, SIZE.with_default("medium")),
        ),
        ("find", "order", "count"),
        ("rate", "share", "compare"),
    ),
    "sport": Domain(
        _make_things(
            match=(
                text_slot("team : the team", "of the {} | played by the {}", "lions bears eagles wolves tigers sharks"),
                DAY,
                INDOOR.with_default(False),
            ),
            workout=(MINUTES, LEVEL, WEEKLY.with_default(False)),
            race=(CITY, DISTANCE, DAY),
        ),
        ("find", "plan", "rank"),
        ("move", "rate", "compare"),
    ),
    "home": Domain(
        _make_things(
            lamp=(ROOM, COLOUR, BRIGHTNESS),
            alarm=(HOUR, ROOM, WEEKLY.with_default(False)),
            heater=(ROOM, WARMTH, HOURS.with_default(8)),
        ),
        ("find", "add", "count"),
        ("update", "show", "delete"),
    ),
    "shopping": Domain(
        _make_things(
            parcel=(GUEST, WEIGHT, INSURED.with_default(False)),
            coat=(COLOUR, MATERIAL, SIZE),
            gift=(GUEST, PRICE, WRAPPED.with_default(False)),
        ),
        ("find", "order", "rank"),
        ("cancel", "compare", "assign"),
    ),
    "messaging": Domain(
        _make_things(
            message=(GUEST, TOPIC, URGENT.with_default(False)),
            poll=(
                TOPIC,
                HOURS,
                boolean_slot("secret : whether votes are secret", "with secret votes", "with open votes").with_default(
                    False
                ),
            ),
            channel=(TOPIC, MEMBERS, PUBLIC.with_default(False)),
        ),
        ("find", "add", "count"),
        ("share", "delete", "show"),
    ),
    "library": Domain(
        _make_things(
            book=(MAKER, LANGUAGE, PAGES.with_default(90)),
            magazine=(TOPIC, DAY, LANGUAGE.with_default("english")),
            desk=(HOUR, HOURS, QUIET.with_default(False)),
        ),
        ("find", "order", "rank"),
        ("rate", "move", "assign"),
    ),
    "mapping": Domain(
        _make_things(
            route=(ORIGIN, GOAL, VEHICLE.with_default("car")),
            garage=(CITY, HOURS, INDOOR.with_default(False)),
            bridge=(CITY, DISTANCE, MATERIAL),
        ),
        ("find", "add", "count"),
        ("show", "share", "compare"),
    ),
    "farming": Domain(
        _make_things(
            field=(
                text_slot("crop : what grows there", "with {} | growing {}", "wheat barley hops flax"),
                DISTANCE,
                boolean_slot("watered : whether it is watered", "with water", "without water").with_default(False),
            ),
            tractor=(OWNER, COLOUR, WEIGHT),
            harvest=(DAY, WEIGHT, PARTNERS),
        ),
        ("find", "plan", "count"),
        ("update", "cancel", "assign"),
    ),
    "museum": Domain(
        _make_things(
            painting=(
                MAKER,
                integer_slot("century : the century", "from century {} | of century {}", range(12, 21)),
                boolean_slot("framed : whether it has a frame", "with a frame", "without a frame").with_default(False),
            ),
            statue=(MATERIAL, HEIGHT, CITY),
            exhibition=(TOPIC, DAY, GUESTS.with_default(10)),
        ),
        ("find", "book", "rank"),
        ("show", "rate", "share"),
    ),
    "space": Domain(
        _make_things(
            rocket=(HEIGHT, WEIGHT, COLOUR),
            mission=(
                text_slot("planet : the planet", "to {} | towards {}", "mars venus saturn neptune"),
                YEARS,
                MEMBERS,
            ),
            satellite=(OWNER, HOURS, LEVEL.with_default("normal")),
        ),
        ("find", "plan", "count"),
        ("cancel", "compare", "update"),
    ),
}
