"""The things that tools are about, and what they have: 16 domains of three things each.

A thing has a noun of its own, two to four attributes, and rows in the state of a task. `OPERATIONS` (in `operations`)
turns things into tools. Attributes are shared between domains, as they are in the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evolvent.worlds.functions.slots import Slot, amount, choice, flag, several, text, whole

__all__ = ["DAYS", "DOMAINS", "PEOPLE", "Domain", "Thing"]

CITIES = "oslo rome lima cairo delhi paris tokyo quito berlin madrid lagos sydney"
DAYS = "monday tuesday wednesday thursday friday saturday sunday"
PEOPLE = "anna ben carl dora emil fred gina hugo ines jack kate liam"
COLOURS = "red green blue black white yellow brown grey"
ROOMS = "kitchen bedroom bathroom hall office attic cellar nursery"
TOPICS = "history physics art sport music politics travel money"

CITY = text("city : the city", "in {} | at {}", CITIES)
ORIGIN = text("origin : where it starts", "from {} | starting in {}", CITIES)
GOAL = text("destination : where it ends", "to {} | ending in {}", CITIES)
DAY = text("day : day of the week", "on {} | for {}", DAYS)
OWNER = text("owner : who owns it", "of {} | owned by {}", PEOPLE)
GUEST = text("recipient : who receives it", "to {} | meant for {}", PEOPLE)
MAKER = text("author : who made it", "by {} | made by {}", PEOPLE)
COLOUR = text("colour : the colour", "in {} | coloured {}", COLOURS)
ROOM = text("room : the room", "in the {} | for the {}", ROOMS)
TOPIC = text("topic : what it is about", "about {} | on the topic {}", TOPICS)
EDIBLE = "rice beans corn eggs fish cheese"
MARKS = "new old best work home fun"
GENRE = text("genre : style of music", "in the style {} | from the genre {}", "jazz rock blues folk opera")
LANGUAGE = text("language : the language", "in {} | written in {}", "english french german spanish arabic hindi")
MATERIAL = text("material : what it is made of", "of {} | made of {}", "wood steel glass leather cotton stone paper")
SIZE = choice("size : the size", "in size {} | of {} size", "small medium large")
LEVEL = choice("level : how hard it is", "at {} level | of {} level", "easy normal hard")
DANGER = choice("danger : how dangerous it is", "with {} danger | of {} danger", "low raised high")
CURRENCY = choice("currency : the currency", "in {} | paid in {}", "euro dollar yen pound")
FORMAT = choice("format : the file format", "as {} | in {} format", "pdf html csv png")
VEHICLE = choice("vehicle : how one travels", "by {} | using a {}", "car bike bus tram")
HOUR = whole("hour : hour of the day", "at {} o'clock | at hour {}", range(24))
MINUTES = whole("minutes : length in minutes", "of {} minutes | lasting {} minutes", range(5, 91))
BRIGHTNESS = whole("brightness : brightness in percent", "at {} percent | with {} percent", range(10, 91))
HOURS = whole("hours : length in hours", "of {} hours | lasting {} hours", range(2, 13))
NIGHTS = whole("nights : number of nights", "for {} nights | staying {} nights", range(2, 15))
GUESTS = whole("guests : number of people", "for {} people | with {} people", range(2, 21))
PAGES = whole("pages : number of pages", "of {} pages | with {} pages", range(2, 91))
YEARS = whole("years : length in years", "over {} years | lasting {} years", range(2, 31))
MEMBERS = whole("members : number of members", "with {} members | of {} members", range(2, 61))
PRICE = amount("price : the price", "costing {} | at a price of {}", range(2, 40))
WEIGHT = amount("weight : weight in kilos", "weighing {} kilos | of {} kilos", range(1, 20))
HEIGHT = amount("height : height in metres", "{} metres high | with a height of {} metres", range(1, 30))
DISTANCE = amount("distance : length in kilometres", "of {} kilometres | {} kilometres long", range(2, 40))
WARMTH = amount("temperature : temperature in degrees", "at {} degrees | with {} degrees", range(5, 30))
BREAKFAST = flag("breakfast : whether breakfast is included", "with breakfast", "without breakfast")
PUBLIC = flag("public : whether everybody can see it", "visible to all | open to everybody", "hidden from others")
URGENT = flag("urgent : whether it is urgent", "marked urgent", "marked not urgent")
INSURED = flag("insured : whether it is insured", "with insurance", "without insurance")
WEEKLY = flag("weekly : whether it repeats every week", "every week", "only once")
VEGETARIAN = flag("vegetarian : whether it is without meat", "without meat", "with meat")
INDOOR = flag("indoor : whether it is under a roof", "under a roof", "in the open air")
WRAPPED = flag("wrapped : whether it is wrapped", "nicely wrapped", "not wrapped")
QUIET = flag("quiet : whether it is silent", "in silence", "with noise")
PARTNERS = several("people : who takes part", "together with {} | joined by {}", PEOPLE)
FOODS = several("ingredients : what is in it", "made from {} | containing {}", EDIBLE)
LABELS = several("labels : words to find it by", "labelled {} | with the labels {}", MARKS)


@dataclass(frozen=True, slots=True)
class Thing:
    """What tools are about.

    Args:
        noun, plural: how it is called; no two things share one.
        slots: its attributes, those that may be left out last.
    """

    noun: str
    plural: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain: its things, and the operations on each of them.

    Args:
        starts: three operations that need no number of a thing.
        follows: three that are about a thing with a number.
    """

    things: tuple[Thing, ...]
    starts: tuple[str, str, str]
    follows: tuple[str, str, str]


def _things(**things: tuple[Slot, ...]) -> tuple[Thing, ...]:
    """Things by noun; the plural is regular."""
    return tuple(Thing(noun, f"{noun}{'es' if noun.endswith('h') else 's'}", slots) for noun, slots in things.items())


DOMAINS: Mapping[str, Domain] = {
    "travel": Domain(
        _things(
            flight=(
                ORIGIN,
                GOAL,
                DAY,
                choice("cabin : the cabin", "in {} class | flying {}", "economy business first").with_default(
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
        _things(
            forecast=(
                CITY,
                DAY,
                choice("scale : unit of degrees", "in {} | using {}", "celsius fahrenheit kelvin").with_default(
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
        _things(
            song=(MAKER, GENRE, MINUTES.with_default(5)),
            playlist=(OWNER, LABELS, PUBLIC.with_default(False)),
            concert=(CITY, DAY, PRICE),
        ),
        ("find", "plan", "count"),
        ("rate", "share", "cancel"),
    ),
    "files": Domain(
        _things(
            document=(TOPIC, PAGES, FORMAT.with_default("pdf")),
            folder=(OWNER, COLOUR, PUBLIC.with_default(False)),
            backup=(
                DAY,
                HOUR,
                amount("space : size in gigabytes", "of {} gigabytes | taking {} gigabytes", range(1, 40)),
            ),
        ),
        ("find", "add", "rank"),
        ("delete", "update", "assign"),
    ),
    "calendar": Domain(
        _things(
            meeting=(DAY, HOUR, PARTNERS),
            reminder=(DAY, TOPIC, WEEKLY.with_default(False)),
            appointment=(DAY, HOUR, text("doctor : the doctor", "with doctor {} | at doctor {}", PEOPLE)),
        ),
        ("find", "plan", "count"),
        ("move", "cancel", "share"),
    ),
    "banking": Domain(
        _things(
            payment=(GUEST, PRICE, CURRENCY.with_default("euro")),
            loan=(OWNER, YEARS, INSURED.with_default(False)),
            invoice=(GUEST, PRICE, DAY),
        ),
        ("find", "add", "rank"),
        ("show", "cancel", "update"),
    ),
    "cooking": Domain(
        _things(
            recipe=(FOODS, MINUTES, VEGETARIAN.with_default(False)),
            menu=(DAY, PRICE, GUESTS.with_default(4)),
            cake=(FOODS, WEIGHT, SIZE.with_default("medium")),
        ),
        ("find", "order", "count"),
        ("rate", "share", "compare"),
    ),
    "sport": Domain(
        _things(
            match=(
                text("team : the team", "of the {} | played by the {}", "lions bears eagles wolves tigers sharks"),
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
        _things(
            lamp=(ROOM, COLOUR, BRIGHTNESS),
            alarm=(HOUR, ROOM, WEEKLY.with_default(False)),
            heater=(ROOM, WARMTH, HOURS.with_default(8)),
        ),
        ("find", "add", "count"),
        ("update", "show", "delete"),
    ),
    "shopping": Domain(
        _things(
            parcel=(GUEST, WEIGHT, INSURED.with_default(False)),
            coat=(COLOUR, MATERIAL, SIZE),
            gift=(GUEST, PRICE, WRAPPED.with_default(False)),
        ),
        ("find", "order", "rank"),
        ("cancel", "compare", "assign"),
    ),
    "messaging": Domain(
        _things(
            message=(GUEST, TOPIC, URGENT.with_default(False)),
            poll=(
                TOPIC,
                HOURS,
                flag("secret : whether votes are secret", "with secret votes", "with open votes").with_default(False),
            ),
            channel=(TOPIC, MEMBERS, PUBLIC.with_default(False)),
        ),
        ("find", "add", "count"),
        ("share", "delete", "show"),
    ),
    "library": Domain(
        _things(
            book=(MAKER, LANGUAGE, PAGES.with_default(90)),
            magazine=(TOPIC, DAY, LANGUAGE.with_default("english")),
            desk=(HOUR, HOURS, QUIET.with_default(False)),
        ),
        ("find", "order", "rank"),
        ("rate", "move", "assign"),
    ),
    "mapping": Domain(
        _things(
            route=(ORIGIN, GOAL, VEHICLE.with_default("car")),
            garage=(CITY, HOURS, INDOOR.with_default(False)),
            bridge=(CITY, DISTANCE, MATERIAL),
        ),
        ("find", "add", "count"),
        ("show", "share", "compare"),
    ),
    "farming": Domain(
        _things(
            field=(
                text("crop : what grows there", "with {} | growing {}", "wheat barley hops flax"),
                DISTANCE,
                flag("watered : whether it is watered", "with water", "without water").with_default(False),
            ),
            tractor=(OWNER, COLOUR, WEIGHT),
            harvest=(DAY, WEIGHT, PARTNERS),
        ),
        ("find", "plan", "count"),
        ("update", "cancel", "assign"),
    ),
    "museum": Domain(
        _things(
            painting=(
                MAKER,
                whole("century : the century", "from century {} | of century {}", range(12, 21)),
                flag("framed : whether it has a frame", "with a frame", "without a frame").with_default(False),
            ),
            statue=(MATERIAL, HEIGHT, CITY),
            exhibition=(TOPIC, DAY, GUESTS.with_default(10)),
        ),
        ("find", "book", "rank"),
        ("show", "rate", "share"),
    ),
    "space": Domain(
        _things(
            rocket=(HEIGHT, WEIGHT, COLOUR),
            mission=(text("planet : the planet", "to {} | towards {}", "mars venus saturn neptune"), YEARS, MEMBERS),
            satellite=(OWNER, HOURS, LEVEL.with_default("normal")),
        ),
        ("find", "plan", "count"),
        ("cancel", "compare", "update"),
    ),
}
