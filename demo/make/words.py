"""Values that questions and tool arguments are made of."""

from __future__ import annotations

from random import Random

CITIES = (
    "Paris London Rome Berlin Madrid Tokyo Oslo Vienna Lisbon Dublin Prague Athens Cairo Delhi Lima Boston Chicago "
    "Seattle Toronto Sydney Munich Hamburg Milan Naples Geneva Zurich Warsaw Budapest Helsinki Stockholm Beijing "
    "Shanghai Seoul Bangkok Nairobi Lagos Denver Austin Miami Brussels"
).split() + ["New York", "San Francisco", "Buenos Aires", "Cape Town", "Hong Kong", "Los Angeles"]
PEOPLE = (
    "Anna Ben Clara David Emma Felix Grace Hugo Ida Jonas Karen Leo Maria Nina Oscar Paul Rosa Sam Tina Victor Alice "
    "Bob Carol Dan Eve Frank"
).split()
ROOMS = ["kitchen", "bedroom", "bathroom", "office", "garage", "hall", "living room", "dining room", "attic", "cellar"]
TOPICS = (
    "cats dogs trains planets bread coffee tea mountains rivers music chess football history painting robots whales "
    "volcanoes bicycles castles gardens"
).split()
ADJECTIVES = "old new small big famous cheap modern wild green fast".split()
PHRASES = (
    "I am late|see you soon|call me back|dinner is ready|happy birthday|good morning|the train is late|"
    "bring the keys|lunch at noon|thank you|where are you|meeting moved|on my way|all done|not today|"
    "please wait|I am home|good luck|see you at {n}|I need {n} minutes|buy {n} apples|room {n} is free"
).split("|")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
LANGUAGES = "French German Spanish Italian Polish Greek Dutch Danish Turkish Korean".split()
CURRENCIES = "euros yen pounds francs rupees pesos".split()
TITLES = "Lunch Dinner Review Standup Workshop Party Training Interview Concert Planning".split()
SKIES = "sunny cloudy rainy windy foggy snowy clear".split()

_ONSETS = "b d f g h k l m n p r s t v z br dr gr kr st tr".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "m", "k"]


def invented(random: Random) -> str:
    """A capitalised word of two or three syllables that no list holds: arguments must be copied, not recalled."""
    parts = [
        random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS) for _ in range(random.choice((2, 2, 3)))
    ]
    return "".join(parts).capitalize()


def city(random: Random) -> str:
    """A city, one in four invented."""
    return invented(random) if random.random() < 0.25 else random.choice(CITIES)


def person(random: Random) -> str:
    """A first name, one in four invented."""
    return invented(random) if random.random() < 0.25 else random.choice(PEOPLE)


def topic(random: Random) -> str:
    """One or two words to search for."""
    noun = random.choice(TOPICS)
    return f"{random.choice(ADJECTIVES)} {noun}" if random.random() < 0.5 else noun


def phrase(random: Random) -> str:
    """A short message."""
    return random.choice(PHRASES).format(n=random.randrange(2, 60))


def symbol(random: Random) -> str:
    """A ticker of three or four capitals."""
    return "".join(random.choice("ABCDEFGHIKLMNOPRSTUVWXYZ") for _ in range(random.choice((3, 4))))
