"""The catalogue of the shop: 5,760 generated products of 96 kinds in eight categories, and their search index.

    0391474211  Velmora Machine Washable Rain Jacket, Aspen  $43.99
    size: small, large, x-large   color: black, navy, teal   attributes: machine washable, quick drying, ...

The 60 products of a kind come in 10 lines of 6. A line shares its brand, its five attributes and its options; five of
its products each lack something that a buyer may ask for: one of the attributes (twice, another one each time), the
low price, or these options (twice: the second one, and both). So most products that a query finds are near misses. The
dear ones and those without both options praise more attributes in their titles, and a search finds them first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.trajectory import sample_rng
from evolvent.worlds.searchqa.bm25 import Index

__all__ = [
    "CATEGORIES",
    "KINDS",
    "MAX_RESULTS",
    "OPTION_VALUES",
    "Catalogue",
    "Category",
    "Kind",
    "Product",
    "Review",
    "collect_texts",
    "load_catalogue",
]

MAX_RESULTS = 50
"""Most products that a search returns, as in WebShop."""
NUM_LINES, LINE_SIZE, NUM_ATTRIBUTES = 10, 6, 5
_CENTS = (19, 29, 49, 79, 99)
_PRAISE = (1, 1, 1, 4, 1, 4)  # attributes in the titles of a line
_PRICE_FACTORS = (1.0, 0.9, 1.1, 2.2, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of products.

    Args:
        name: as titles and instructions name it. Two kinds share no word, so a title tells the kind.
        path: category, section and name.
        base_price: usual price in dollars.
        option_sets: what a buyer can choose: two names of `OPTION_VALUES`.
        attributes: the attributes that products of this kind may have.
    """

    name: str
    path: tuple[str, str, str]
    base_price: int
    option_sets: tuple[str, str]
    attributes: tuple[str, ...]

    @property
    def nouns(self) -> tuple[str, ...]:
        """Returns the nouns of the kind's titles."""
        return tuple(self.name.split())


@dataclass(frozen=True, slots=True)
class Category:
    """A category: the attributes of its products, and its sections with their kinds (name, price, sets of options)."""

    name: str
    attributes: tuple[str, ...]
    sections: Mapping[str, tuple[tuple[str, int, tuple[str, str]], ...]]


@dataclass(frozen=True, slots=True)
class Review:
    """A review: its title, 1 to 5 stars, and its text."""

    title: str
    stars: int
    text: str


@dataclass(frozen=True, slots=True)
class Product:
    """A product.

    Args:
        asin: its number, ten digits.
        kind: its kind.
        brand, title: its brand, and its title, in which words have capitals.
        attributes: its attributes.
        options: what can be chosen, key -> values.
        price: in cents.
        number: its position in the catalogue.
    """

    asin: str
    kind: Kind
    brand: str
    title: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: int
    number: int

    @property
    def query(self) -> str:
        """Returns the query that the product belongs to: its kind."""
        return self.kind.name

    @property
    def path(self) -> tuple[str, ...]:
        """Returns category, section and kind."""
        return self.kind.path

    @property
    def nouns(self) -> tuple[str, ...]:
        """Returns the nouns of the title."""
        return self.kind.nouns

    @property
    def price_tag(self) -> str:
        """Returns the price as pages show it."""
        return f"${self.price // 100}.{self.price % 100:02}"

    @property
    def features(self) -> tuple[str, ...]:
        """Returns one sentence for each attribute but the first (WebShop's bullet points)."""
        return tuple(
            _FEATURES[(self.number + position) % len(_FEATURES)].format(attribute)
            for position, attribute in enumerate(self.attributes[1:])
        )

    @property
    def description(self) -> str:
        """Returns the description."""
        return _DESCRIPTIONS[self.number % len(_DESCRIPTIONS)].format(
            brand=self.brand, kind=self.kind.name, first=self.attributes[0], second=self.attributes[1]
        )

    @property
    def reviews(self) -> tuple[Review, ...]:
        """Returns none to two reviews. They say nothing that a buyer needs."""
        first = self.number % len(_REVIEWS)
        return _REVIEWS[first : first + self.number % 3]

    @property
    def rating(self) -> str:
        """Returns the mean of the reviews' stars, or `N.A.`"""
        reviews = self.reviews
        return f"{sum(review.stars for review in reviews) / len(reviews):.1f}" if reviews else "N.A."


_FEATURES = (
    "{0} for everyday use",
    "{0} and easy to care for",
    "{0} as our buyers ask for",
    "{0} by design",
)
_DESCRIPTIONS = (
    "the {kind} by {brand} is {first} and {second}",
    "{brand} makes this {kind} {first} and {second}",
    "{second} and {first} , a {kind} that {brand} is known for",
)
_REVIEWS = (
    Review("as expected", 4, "it came in time and does what it should"),
    Review("my second one", 5, "bought it again after two years"),
    Review("not for me", 2, "i gave it to a friend , who likes it"),
    Review("good value", 4, "more than i hoped for at this price"),
    Review("fine", 3, "nothing to complain about"),
)


@lru_cache(maxsize=1024)
def _title_case(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


OPTION_VALUES: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "color": {
            "color": ("black", "white", "grey", "navy", "red", "green", "beige", "brown", "pink", "purple", "teal"),
        },
        "wood": {
            "finish": ("oak", "walnut", "cherry", "espresso", "maple", "ash", "ebony", "birch"),
        },
        "clothes": {"size": ("small", "medium", "large", "x-large", "xx-large", "3x-large")},
        "sizes": {"size": ("mini", "small", "medium", "large", "extra large", "family size")},
        "lengths": {"size": ("3 feet", "5 feet", "6 feet", "8 feet", "10 feet", "15 feet")},
        "beds": {"size": ("twin", "full", "queen", "king", "california king", "twin extra long")},
        "scent": {
            "scent": ("lavender", "citrus", "vanilla", "rose petal", "mint", "coconut", "sandalwood", "unscented"),
        },
        "flavor": {
            "flavor name": ("original", "honey", "sea salt", "garlic", "lemon", "berry", "smoky", "cinnamon"),
        },
        "meat": {
            "flavor name": ("chicken", "salmon", "beef", "turkey", "duck", "rabbit", "lamb", "tuna"),
        },
        "pack": {"pack": ("single", "twin pack", "family bundle", "bulk case", "sampler", "refill")},
        "style": {"style": ("classic", "modern", "rustic", "sporty", "vintage", "minimal", "deluxe", "compact")},
    }
)
"""The sets of options: name of a set -> key -> values. No value is taken for another one of its key by the reward."""


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


def _parse_kinds(text: str) -> tuple[tuple[str, int, tuple[str, str]], ...]:
    """Parses kinds of the form `rain jacket 48 clothes/color`: name, price, and two sets of options."""
    rows = [row.rsplit(" ", 2) for row in text.split(", ")]
    return tuple((name, int(price), (sets.partition("/")[0], sets.partition("/")[2])) for name, price, sets in rows)


CATEGORIES = (
    Category(
        "Clothing",
        _split_list(
            "machine washable, quick drying, moisture wicking, wrinkle resistant, water repellent, fleece lined, hand "
            "stitched, slim fitting, organic cotton, fade proof, sun protective, tag free, recycled polyester, double "
            "knitted"
        ),
        {
            "Tops": _parse_kinds(
                "rain jacket 48 clothes/color, hoodie 35 clothes/color, cardigan 39 clothes/color, polo shirt 24 "
                "clothes/color"
            ),
            "Bottoms": _parse_kinds(
                "leggings 22 clothes/color, cargo shorts 28 clothes/color, denim skirt 33 clothes/color, jogger pants "
                "30 clothes/color"
            ),
            "Accessories": _parse_kinds(
                "winter scarf 18 style/color, beanie 14 style/color, pajama set 36 clothes/color, swimsuit 32 "
                "clothes/color"
            ),
        },
    ),
    Category(
        "Beauty",
        _split_list(
            "cruelty free, paraben free, fragrance safe, vegan formula, long lasting, dermatologist tested, travel "
            "sized, fast absorbing, plant based, non greasy, reef safe, alcohol free, vitamin enriched, deeply "
            "nourishing"
        ),
        {
            "Hair": _parse_kinds(
                "shampoo 12 scent/pack, conditioner 13 scent/pack, beard wax 15 scent/pack, styling gel 11 scent/pack"
            ),
            "Skin": _parse_kinds(
                "face serum 26 scent/sizes, body lotion 16 scent/sizes, sunscreen 17 scent/sizes, hand cream 12 "
                "scent/sizes"
            ),
            "Makeup": _parse_kinds(
                "lip balm 9 scent/pack, nail polish 11 color/pack, eyeliner 13 color/pack, mascara 15 color/pack"
            ),
        },
    ),
    Category(
        "Grocery",
        _split_list(
            "gluten free, sugar free, dairy free, low sodium, high fiber, keto friendly, fair trade, stone ground, "
            "slow roasted, cold pressed, shelf stable, kosher certified, non gmo, small batch"
        ),
        {
            "Snacks": _parse_kinds(
                "granola bar 14 flavor/pack, trail mix 16 flavor/pack, popcorn 12 flavor/pack, crackers 11 flavor/pack"
            ),
            "Drinks": _parse_kinds(
                "coffee beans 19 flavor/pack, herbal tea 12 flavor/pack, hot cocoa 13 flavor/pack, malt syrup 15 "
                "flavor/pack"
            ),
            "Pantry": _parse_kinds(
                "pasta sauce 13 flavor/pack, olive oil 21 flavor/pack, peanut butter 12 flavor/pack, beef jerky 17 "
                "flavor/pack"
            ),
        },
    ),
    Category(
        "Electronics",
        _split_list(
            "noise cancelling, fast charging, water resistant, hands free, high resolution, energy efficient, dust "
            "proof, long range, ultra slim, voice controlled, shock absorbing, low latency, gold plated, plug ready"
        ),
        {
            "Audio": _parse_kinds(
                "wireless earbuds 49 color/style, bluetooth speaker 58 color/style, studio microphone 72 color/style, "
                "turntable 120 color/style"
            ),
            "Power": _parse_kinds(
                "phone charger 19 color/lengths, power bank 33 color/style, hdmi cable 14 color/lengths, extension "
                "cord 22 color/lengths"
            ),
            "Devices": _parse_kinds(
                "smart watch 110 color/style, webcam 44 color/style, keyboard 52 color/style, router 79 color/style"
            ),
        },
    ),
    Category(
        "Furniture",
        _split_list(
            "easy assembly, solid wood, space saving, heavy duty, scratch resistant, stain guarded, memory foam, "
            "height adjustable, powder coated, anti tip, hand carved, moisture proof, tool free, soft close"
        ),
        {
            "Bedroom": _parse_kinds(
                "bed frame 190 beds/wood, nightstand 85 style/wood, mattress topper 95 beds/color, wardrobe 240 "
                "style/wood"
            ),
            "Living": _parse_kinds(
                "bookcase 110 style/wood, futon 210 beds/color, ottoman 70 style/color, area rug 88 lengths/color"
            ),
            "Dining": _parse_kinds(
                "dining table 230 style/wood, counter stool 75 style/color, coat rack 46 style/wood, wall mirror 64 "
                "style/wood"
            ),
        },
    ),
    Category(
        "Kitchen",
        _split_list(
            "dishwasher safe, bpa free, non stick, stainless steel, heat resistant, leak proof, microwave ready, rust "
            "proof, oven safe, double walled, food grade, hand forged, easy grip, airtight sealed"
        ),
        {
            "Cooking": _parse_kinds(
                "frying pan 34 sizes/color, stock pot 55 sizes/color, baking sheet 21 sizes/style, chef knife 42 "
                "sizes/style"
            ),
            "Storage": _parse_kinds(
                "lunch container 18 sizes/color, spice jar 14 pack/style, water bottle 20 sizes/color, cutting board "
                "25 sizes/style"
            ),
            "Appliances": _parse_kinds(
                "toaster 45 style/color, kettle 38 style/color, blender 68 style/color, waffle maker 49 style/color"
            ),
        },
    ),
    Category(
        "Outdoors",
        _split_list(
            "rip resistant, wind blocking, uv protected, quick release, glow marked, rust free, ultra light, four "
            "season, extra wide, anti slip, sand repellent, easy carry, tear proof, fully padded"
        ),
        {
            "Camping": _parse_kinds(
                "camping tent 130 sizes/color, sleeping bag 66 sizes/color, hammock 40 sizes/color, headlamp 24 "
                "style/color"
            ),
            "Sports": _parse_kinds(
                "yoga mat 29 style/color, tennis racket 85 style/color, jump rope 13 lengths/color, bike helmet 57 "
                "sizes/color"
            ),
            "Water": _parse_kinds(
                "fishing rod 62 lengths/style, kayak paddle 90 lengths/color, picnic blanket 32 sizes/color, snorkel "
                "mask 27 sizes/color"
            ),
        },
    ),
    Category(
        "Pets",
        _split_list(
            "chew proof, odor blocking, grain free, washable cover, vet approved, low dust, escape proof, hair "
            "resistant, no pull, slow feeding, self cleaning, calming design, teeth brushing, extra sturdy"
        ),
        {
            "Dogs": _parse_kinds(
                "dog harness 26 sizes/color, leash 17 lengths/color, puppy toy 12 meat/color, kibble 38 meat/pack"
            ),
            "Cats": _parse_kinds(
                "cat tree 80 sizes/color, litter box 42 sizes/color, kitten treats 10 meat/pack, grooming glove 15 "
                "sizes/color"
            ),
            "Others": _parse_kinds(
                "bird feeder 28 style/color, aquarium filter 36 sizes/style, hamster wheel 19 sizes/color, turtle "
                "terrarium 92 sizes/style"
            ),
        },
    ),
)

_BRANDS = _split_list(
    "Velmora, Norvik, Quillan, Brindle, Tavros, Elmsworth, Kestra, Lumora, Orbeck, Pinnora, Hollins, Sorrel, Thalio, "
    "Umbriel, Wexley, Yarrow, Zephra, Alderis, Belcaro, Corvane, Dunmore, Everlan, Fenwick, Garrick, Harrowe, Isolde, "
    "Jorvik, Kindra, Larkin, Merrow, Novalis, Ostrava, Perrin, Quorra, Rowena, Selwyn, Tarquin, Ulmont, Verity, "
    "Wrenna"
)
_LINES = _split_list(
    "Aspen, Breeze, Canyon, Delta, Ember, Fjord, Glacier, Horizon, Island, Juniper, Karst, Lagoon, Meadow, Nimbus, "
    "Oasis, Prairie, Quarry, Ridge, Summit, Tundra, Upland, Valley, Willow, Zenith"
)


def _list_kinds() -> Iterator[Kind]:
    for category in CATEGORIES:
        for section, rows in category.sections.items():
            for name, base_price, option_sets in rows:
                path = (category.name, section, _title_case(name))
                yield Kind(name, path, base_price, option_sets, category.attributes)


KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _list_kinds()})
"""Name -> kind, category by category."""


def _option_values(option_set: str) -> tuple[str, tuple[str, ...]]:
    return next(iter(OPTION_VALUES[option_set].items()))


def list_options(kind: Kind) -> dict[str, tuple[str, ...]]:
    """Returns every option of a kind: key -> all values."""
    return dict(map(_option_values, kind.option_sets))


class Catalogue:
    """The products of one seed, and the search over them.

    The index is built by the first search. It reads title, description and features, as WebShop's does, but no option.

    Args:
        seed: seed of the products.
    """

    def __init__(self, seed: int = 0) -> None:
        self.products = tuple(_draw_products(seed))
        self.by_asin: Mapping[str, Product] = {product.asin: product for product in self.products}
        self._search = lru_cache(maxsize=4096)(self._rank)

    @cached_property
    def index(self) -> Index:
        """Returns the index over all products."""
        return Index(map(collect_indexed_text, self.products))

    @cached_property
    def by_kind(self) -> Mapping[str, tuple[Product, ...]]:
        """Returns the products of each kind."""
        size = NUM_LINES * LINE_SIZE
        return {name: self.products[size * position : size * (position + 1)] for position, name in enumerate(KINDS)}

    def search(self, query: str) -> tuple[Product, ...]:
        """Returns up to 50 products by BM25, best first; equally good ones in the order of the catalogue."""
        return self._search(query)

    def _rank(self, query: str) -> tuple[Product, ...]:
        return tuple(self.products[position] for position in self.index.search(query, MAX_RESULTS))


def collect_indexed_text(product: Product) -> str:
    """Returns what a search reads of a product."""
    return " ".join((product.title, product.description, *product.features))


@lru_cache(maxsize=4)
def load_catalogue(seed: int = 0) -> Catalogue:
    """Returns the catalogue of a seed, which all worlds of a process share."""
    return Catalogue(seed)


def _draw_products(seed: int) -> Iterator[Product]:
    """Yields the products of all kinds; those of a kind are in random order."""
    size = NUM_LINES * LINE_SIZE
    asins = _draw_asins(seed, len(KINDS) * size)
    number = 0
    for kind in KINDS.values():
        rng = sample_rng("shop", seed, kind.name)
        drafts = [draft for _ in range(NUM_LINES) for draft in _draw_line(kind, rng)]
        for position in rng.permutation(size).tolist():
            yield Product(asin=asins[number], kind=kind, number=number, **drafts[position])
            number += 1


def _draw_asins(seed: int, count: int) -> list[str]:
    numbers = sample_rng("shop numbers", seed).choice(10**6, count, replace=False)
    return [f"0{int(number):06}{number * 7 % 991:03}" for number in numbers]


def _draw_line(kind: Kind, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Yields the six products of a line: a full one, two with another attribute, a dear one, two of other options."""
    order = rng.permutation(len(kind.attributes)).tolist()
    attributes = tuple(kind.attributes[position] for position in order[:NUM_ATTRIBUTES])
    substitutes = [kind.attributes[position] for position in order[NUM_ATTRIBUTES : NUM_ATTRIBUTES + 2]]
    replaced = rng.permutation(NUM_ATTRIBUTES)[:2].tolist()
    brand = _BRANDS[int(rng.integers(len(_BRANDS)))]
    line = _LINES[int(rng.integers(len(_LINES)))]
    factors = (0.6 + 0.8 * rng.random()) * np.array(_PRICE_FACTORS) * (0.9 + 0.2 * rng.random(LINE_SIZE))
    parts = {key: _cut(rng.permutation(len(values)), values) for key, values in list_options(kind).items()}
    first_key, second_key = parts
    for position in range(LINE_SIZE):
        own_attributes = list(attributes)
        if position in (1, 2):
            own_attributes[replaced[position - 1]] = substitutes[position - 1]
        options = {first_key: parts[first_key][position == 5], second_key: parts[second_key][position >= 4]}
        cents = _CENTS[int(rng.integers(len(_CENTS)))]
        dollars = max(3, round(kind.base_price * float(factors[position])))
        praise = " ".join(map(_title_case, own_attributes[: _PRAISE[position]]))
        yield {
            "brand": brand,
            "title": f"{brand} {praise} {_title_case(kind.name)}, {line}",
            "attributes": tuple(own_attributes),
            "options": MappingProxyType(options),
            "price": 100 * dollars + cents,
        }


def _cut(order: NDArray[np.int64], values: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Cuts values in two parts by a random order, each in the order of the table."""
    half = (len(values) + 1) // 2
    first_half = set(order[:half].tolist())
    return (
        tuple(value for position, value in enumerate(values) if position in first_half),
        tuple(value for position, value in enumerate(values) if position not in first_half),
    )


def collect_texts() -> Iterator[str]:
    """Yields texts that hold every word of the pages of products, except for their numbers and prices."""
    yield from (*_BRANDS, *_LINES, *(review.title for review in _REVIEWS), *(review.text for review in _REVIEWS))
    yield from (template.format("") for template in _FEATURES)
    yield from (template.format(brand="", kind="", first="", second="") for template in _DESCRIPTIONS)
    for category in CATEGORIES:
        yield from (category.name, *category.sections)
        for attribute in category.attributes:
            yield from (attribute, _title_case(attribute))
    for kind in KINDS.values():
        yield from (kind.name, _title_case(kind.name))
    for options in OPTION_VALUES.values():
        for key, values in options.items():
            yield from (key, *values)
