"""The substances, devices, living things and recipes of the lab, with their physical constants.

Temperatures are in degrees Celsius. Melting and boiling points are rounded literature values at normal pressure; the
middle of a range stands for the melting point of a food or fat, and a high value for the boiling point of a substance
that decomposes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "AIR_TEMPERATURE",
    "ANIMAL_STAGES",
    "COLORS",
    "CONDUCTORS",
    "INSULATORS",
    "LIFESPANS",
    "PAINT_MIXES",
    "PLANTS",
    "PLANT_STAGES",
    "RECIPES",
    "SUBSTANCES",
    "WATER_TEMPERATURE",
    "Substance",
    "ThingType",
    "find_product",
    "substance_type",
]

AIR_TEMPERATURE = 20.0
WATER_TEMPERATURE = 15.0
COLORS = (
    "red",
    "orange",
    "yellow",
    "green",
    "blue",
    "purple",
    "white",
    "black",
    "pink",
    "brown",
    "gray",
    "golden",
)


@dataclass(frozen=True, slots=True)
class Substance:
    """A pure substance.

    Args:
        name: its name at room temperature.
        melting_point, boiling_point: in degrees Celsius.
        phase_names: names of the solid, the liquid and the gas.
    """

    name: str
    melting_point: float
    boiling_point: float
    phase_names: tuple[str, str, str]

    def phase_at(self, temperature: float) -> int:
        """Returns the phase at a temperature: 0 solid, 1 liquid, 2 gas.

        >>> [SUBSTANCES["water"].phase_at(temperature) for temperature in (-1, 20, 100)]
        [0, 1, 2]
        """
        return (temperature >= self.melting_point) + (temperature >= self.boiling_point)


def make_substance(name: str, melting_point: float, boiling_point: float) -> Substance:
    """Creates a substance whose plain name is that of its phase at room temperature."""
    phase_names = [f"solid {name}", f"liquid {name}", f"{name} vapor"]
    normal_phase = (melting_point <= AIR_TEMPERATURE) + (boiling_point <= AIR_TEMPERATURE)
    phase_names[normal_phase] = name
    return Substance(name, melting_point, boiling_point, (phase_names[0], phase_names[1], phase_names[2]))


@dataclass(frozen=True, slots=True)
class ThingType:
    """The unchanging properties of a thing.

    Args:
        name: the name in texts.
        nouns: other words for it in actions.
        article: "a" (or "an"), "some" or "the".
        holds: "in" or "on", where other things can be put; "" for nowhere.
        role: the part it plays in the rules of `lab`, such as "sink" or "wire"; "" for none.
        is_lidded: whether it can be opened and closed.
        is_portable: whether it can be picked up and moved.
        is_switchable: whether it can be activated and deactivated.
        source_temperature: the temperature that it brings its contents to; None for no heater or cooler.
        exchange_rate: the share of the temperature difference that its contents lose in a tick.
        has_terminals: whether wires can be connected to it.
        is_polarized: whether its terminals are an anode and a cathode.
        conducts: whether current flows through it.
        acceleration: of a block on this plane, in percent of its length per tick and tick.
        life: "animal" or "plant"; "" for things that do not live.
        text: what is written on it.
        has_temperature: whether its temperature can be measured; that of a substance always can.
        substance: what it consists of, where that can melt and boil.
    """

    name: str
    nouns: tuple[str, ...] = ()
    article: str = "a"
    holds: str = ""
    role: str = ""
    is_lidded: bool = False
    is_portable: bool = True
    is_switchable: bool = False
    is_edible: bool = False
    source_temperature: float | None = None
    exchange_rate: float = 0.0
    has_terminals: bool = False
    is_polarized: bool = False
    conducts: bool = False
    acceleration: float = 0.0
    life: str = ""
    text: str = ""
    has_temperature: bool = False
    substance: Substance | None = None


_POINTS = (
    # Liquids at room temperature.
    "methanol -98 65, ethanol -114 78, acetone -95 56, hexane -95 69, pentane -130 36, heptane -91 98, octane -57 126, "
    "nonane -53 151, decane -30 174, toluene -95 111, isopropanol -89 82, butanol -90 118, chloroform -64 61, "
    "diethyl ether -116 35, vinegar 17 118, glycerol 18 290, mercury -39 357, cyclohexane 6 81, dioxane 12 101, "
    "formic acid 8 101, xylene 13 138, aniline -6 184, nitrobenzene 6 211, bromine -7 59, chlorobenzene -45 132, "
    "olive oil -6 300, castor oil -10 313, orange juice -1 101, apple juice -1 101, lemon juice -2 101, milk -1 101, "
    "sea water -2 101, cyclopentanol -18 139, hydrogen peroxide 0 150, "
    # Solids at room temperature.
    "gallium 30 2400, caesium 28 671, rubidium 39 688, potassium 63 759, sodium 98 883, indium 157 2072, "
    "tin 232 2602, bismuth 271 1564, lead 327 1749, zinc 420 907, antimony 631 1587, aluminum 660 2470, "
    "silver 962 2162, copper 1085 2562, sulfur 115 445, naphthalene 80 218, lauric acid 44 299, stearic acid 69 361, "
    "benzoic acid 122 249, menthol 42 212, thymol 50 232, camphor 176 209, paraffin wax 60 370, beeswax 63 400, "
    "chocolate 34 400, butter 33 400, lard 40 400, coconut oil 25 400, cocoa butter 35 400, urea 133 400, "
    "xylitol 94 216, vanillin 81 285, salol 42 300, acetamide 81 221, palmitic acid 63 351, iodine 114 184"
)
SUBSTANCES: Mapping[str, Substance] = {
    "water": Substance("water", 0.0, 100.0, ("ice", "water", "steam")),
    **{
        words[0]: make_substance(words[0], float(words[1]), float(words[2]))
        for words in (entry.rsplit(" ", 2) for entry in _POINTS.split(", "))
    },
}
"""Pure substances and simple liquids by name."""


def substance_type(substance: Substance) -> ThingType:
    """Returns the type of a portion of a substance.

    >>> substance_type(SUBSTANCES["gallium"]).substance.phase_names
    ('gallium', 'liquid gallium', 'gallium vapor')
    """
    nouns = tuple(dict.fromkeys((substance.name, "substance")))
    return ThingType(substance.name, nouns, "some", substance=substance)


RECIPES: Mapping[str, tuple[str, ...]] = {
    "salt water": ("salt", "water"),
    "sugar water": ("sugar", "water"),
    "soapy water": ("soap", "water"),
    "sodium acetate": ("baking soda", "vinegar"),
    "calcium acetate": ("chalk", "vinegar"),
    "rust": ("iron filings", "water"),
    "slime": ("glue", "borax"),
    "dough": ("flour", "water"),
    "limewater": ("quicklime", "water"),
    "iron sulfide": ("iron filings", "sulfur"),
    "copper sulfate solution": ("copper sulfate", "water"),
    "starch iodide": ("starch", "iodine"),
    "chocolate milk": ("cocoa", "milk"),
    "lemon tea": ("tea", "lemon juice"),
    "plaster": ("gypsum", "water"),
    "clay": ("kaolin", "water"),
    "bronze powder": ("copper", "tin"),
    "jam": ("sugar", "strawberries"),
    "porridge": ("oats", "milk"),
    "soap": ("lye", "olive oil"),
    "lemonade": ("lemon juice", "sugar", "water"),
    "mortar": ("sand", "quicklime", "water"),
    "concrete": ("cement", "gravel", "water"),
    "bread dough": ("flour", "yeast", "water"),
    "pancake batter": ("flour", "milk", "egg yolk"),
    "glass mix": ("sand", "soda ash", "chalk"),
    "milk tea": ("tea", "sugar", "milk"),
    "salad dressing": ("olive oil", "vinegar", "salt"),
    "modeling clay": ("flour", "salt", "water"),
    "trail mix": ("oats", "raisins", "peanuts"),
}
"""Products and their ingredients: twenty of two ingredients, ten of three."""

PAINT_MIXES: Mapping[str, tuple[str, str]] = {
    "orange paint": ("red paint", "yellow paint"),
    "green paint": ("blue paint", "yellow paint"),
    "violet paint": ("blue paint", "red paint"),
    "red orange paint": ("orange paint", "red paint"),
    "yellow orange paint": ("orange paint", "yellow paint"),
    "yellow green paint": ("green paint", "yellow paint"),
    "blue green paint": ("blue paint", "green paint"),
    "blue violet paint": ("blue paint", "violet paint"),
    "red violet paint": ("red paint", "violet paint"),
}
"""Mixed paints and the two paints that each is made of: three secondary colors, six tertiary ones."""

_PRODUCTS = {frozenset(parts): product for table in (RECIPES, PAINT_MIXES) for product, parts in table.items()}


def find_product(ingredients: frozenset[str]) -> str | None:
    """Returns what substances become when they are mixed; None where they do not react.

    >>> find_product(frozenset({"water", "salt"})), find_product(frozenset({"red paint", "blue paint"}))
    ('salt water', 'violet paint')
    """
    return _PRODUCTS.get(ingredients)


CONDUCTORS = [
    "metal fork",
    "iron nail",
    "copper coin",
    "aluminum foil",
    "steel key",
    "silver ring",
    "brass button",
    "graphite rod",
    "gold chain",
    "steel paper clip",
    "tin can",
    "bronze medal",
    "lead weight",
    "zinc plate",
    "steel spoon",
    "copper pipe",
]
INSULATORS = [
    "plastic comb",
    "glass marble",
    "wooden pencil",
    "rubber eraser",
    "cotton sock",
    "ceramic tile",
    "paper card",
    "leather strap",
    "wax candle",
    "cork stopper",
    "wool glove",
    "plastic spoon",
    "glass rod",
    "wooden ruler",
    "rubber ball",
    "silk ribbon",
]
"""Solid things that conduct electricity, and others that do not."""

LIFESPANS: Mapping[str, float] = {
    "giant tortoise": 150,
    "elephant": 65,
    "parrot": 55,
    "crocodile": 45,
    "chimpanzee": 40,
    "hippopotamus": 40,
    "bear": 30,
    "horse": 28,
    "dolphin": 27,
    "lion": 16,
    "cat": 15,
    "wolf": 13,
    "dog": 12,
    "toad": 10,
    "beaver": 10,
    "rabbit": 9,
    "hedgehog": 7,
    "brown mouse": 2,
    "chameleon": 3,
    "hamster": 2.5,
    "dragonfly": 0.3,
    "bumblebee": 0.2,
    "butterfly": 0.1,
    "mayfly": 0.02,
}
"""Typical life spans of animals in years."""

ANIMAL_STAGES: Mapping[str, tuple[str, ...]] = {
    "turtle": ("egg", "hatchling", "juvenile", "adult"),
    "frog": ("egg", "tadpole", "froglet", "adult"),
    "newt": ("egg", "larva", "eft", "adult"),
    "butterfly": ("egg", "caterpillar", "chrysalis", "adult"),
    "moth": ("egg", "caterpillar", "cocoon", "adult"),
    "beetle": ("egg", "grub", "pupa", "adult"),
    "bee": ("egg", "larva", "pupa", "adult"),
    "salmon": ("egg", "fry", "smolt", "adult"),
    "dove": ("egg", "nestling", "fledgling", "adult"),
    "penguin": ("egg", "chick", "juvenile", "adult"),
    "jellyfish": ("egg", "planula", "polyp", "adult"),
    "crab": ("egg", "zoea", "megalopa", "adult"),
}
"""Life stages of animals, from the first to the last."""

PLANTS = [
    "apple",
    "orange",
    "lemon",
    "cherry",
    "peach",
    "banana",
    "avocado",
    "tomato",
    "pea",
    "bean",
    "sunflower",
    "rose",
    "lavender",
    "basil",
    "pumpkin",
    "strawberry",
]
PLANT_STAGES = ("{} seed", "{} seedling", "{} plant", "flowering {} plant", "dead {} plant")
"""Names of the stages of a plant; the last one is reached without water."""
