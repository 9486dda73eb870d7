"""Word lists that the scenarios share, and how one is drawn."""

import numpy as np

NAMES = (
    "Amara", "Bilal", "Chiara", "Dmitri", "Elif", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kavya", "Liam",
    "Mei", "Nadia", "Omar", "Priya", "Quinn", "Rosa", "Stefan", "Tomas", "Uma", "Viktor", "Wanda", "Yusuf", "Zoe",
)  # fmt: skip
PLACES = (
    "Lisbon", "Nairobi", "Oslo", "Kyoto", "Lima", "Tallinn", "Cork", "Graz", "Hanoi", "Porto", "Quito", "Riga",
    "Bergen", "Accra", "Split", "Leeds", "Tampere", "Valencia", "Bath", "Salta",
)  # fmt: skip
THINGS = (
    "apples", "books", "candles", "tiles", "stamps", "seedlings", "bottles", "chairs", "marbles", "postcards",
    "lamps", "pencils", "buttons", "coins", "loaves", "ribbons", "tickets", "bricks", "shells", "notebooks",
)  # fmt: skip
TOPICS = (
    "bees", "volcanoes", "tides", "the moon", "glass", "bridges", "chess", "bread", "sleep", "rivers", "maps",
    "the bicycle", "coffee", "rainbows", "lighthouses", "music", "gravity", "whales", "paper", "deserts",
    "earthquakes", "the printing press", "wind power", "vaccines", "friendship", "clocks", "snow", "honesty",
    "trees", "batteries", "sharks", "the internet", "democracy", "soil", "libraries", "penguins", "steel",
    "dreams", "salt", "the heart", "comets", "fire", "money", "silk", "photosynthesis", "language", "rust",
)  # fmt: skip
NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "ten")


def pick(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    """One of the options, each as likely."""
    return options[int(rng.integers(len(options)))]
