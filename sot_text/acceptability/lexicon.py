"""The open-class words of the corpus, and which of them are kept for the dev file."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MODIFIERS", "NOUNS", "VERBS", "Noun", "Verb", "is_held_out"]

_DOUBLED = ("beg", "chop", "grab", "grin", "hug", "nap", "pat", "permit", "sob", "trap")


class Noun(NamedTuple):
    """A noun. A name has no plural of its own."""

    singular: str
    plural: str

    @property
    def forms(self) -> tuple[str, ...]:
        """Every form in which the word can occur."""
        return tuple(self)

    def number(self, plural: bool) -> str:
        """Give the form for a number."""
        return self.plural if plural else self.singular


class Verb(NamedTuple):
    """A verb, with its particle if it has one, or a whole verb phrase."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str
    particle: str = ""

    @property
    def forms(self) -> tuple[str, ...]:
        """Every form in which the word can occur."""
        return self[:5]

    def present(self, plural: bool) -> str:
        """Give the present tense for a subject's number."""
        return self.base if plural else self.third

    def then(self, rest: str) -> Verb:
        """Give the verb phrase that has ``rest`` after the verb."""
        return Verb(*(f"{form} {rest}" for form in self.forms))


def is_held_out(position: int) -> bool:
    """Tell whether the word at this position of its class is kept for the dev file: three words of every eight."""
    return position % 8 in (1, 4, 6)


def _add_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")


def _noun(entry: str) -> Noun:
    """Read ``singular`` or ``singular/plural``."""
    singular, _, plural = entry.partition("/")
    return Noun(singular, plural or _add_s(singular))


def _verb(entry: str) -> Verb:
    """Read ``base``, ``base/past`` or ``base/past/participle``, each with ``+particle`` after it if it has one."""
    entry, _, particle = entry.partition("+")
    base, past, participle = [*entry.split("/"), "", ""][:3]
    stem = base + base[-1] if base in _DOUBLED else base
    if not past:
        past = base[:-1] + "ied" if _add_s(base).endswith("ies") else stem.removesuffix("e") + "ed"
    return Verb(base, _add_s(base), past, participle or past, stem.removesuffix("e") + "ing", particle)


_NOUNS = {
    "person": """teacher student doctor nurse farmer lawyer singer customer painter driver manager journalist scientist
        tourist chef artist author baker banker builder clerk dancer dentist director editor engineer gardener librarian
        mechanic musician pilot plumber poet reporter sailor secretary soldier tailor visitor writer senator detective
        athlete barber carpenter""",
    "male": "king boy father uncle brother prince nephew grandfather landlord monk actor waiter man/men wizard duke",
    "female": """queen girl mother aunt sister princess niece grandmother landlady nun actress waitress woman/women
        witch duchess""",
    "animal": """dog cat horse cow goat fox wolf/wolves rabbit monkey bear pig lion tiger donkey parrot squirrel turtle
        puppy kitten""",
    "thing": """lamp clock carpet guitar umbrella coat basket bag knife/knives mirror bicycle bottle blanket candle
        chair saddle curtain desk helmet jacket kettle ladder necklace pillow shirt spoon suitcase trumpet vase violin
        wallet portrait trunk bucket map fence sofa drawer bracelet cushion""",
    "place": """park garden library museum kitchen hotel office market village station restaurant hospital castle bakery
        forest lobby church attic cellar garage basement cathedral airport pharmacy courtyard""",
}
_NAMES = {
    "man": "Ben David Peter Thomas Martin Robert Paul Henry Oliver George Daniel Edward Simon Victor",
    "woman": "Anna Mary Laura Julia Emma Sarah Alice Helen Clara Susan Diana Nora Rachel Sophie",
}
_VERBS = {
    "intransitive": """sleep/slept sneeze yawn shiver doze snore hesitate blush kneel/knelt giggle frown sigh smile
        laugh cough stumble weep/wept sulk nap struggle grin sob gasp chuckle apologize meditate pray""",
    "reflexive": """admire praise blame defend congratulate encourage reward punish embarrass comfort criticize insult
        flatter describe protect injure introduce ridicule""",  # transitive, of persons, and can be done to oneself
    "social": "thank greet ignore contact invite rescue welcome accompany betray dismiss consult hug summon",
    "handling": """repair purchase abandon discover remove mend discard fix obtain acquire retrieve confiscate misplace
        grab fetch procure modify salvage select appraise misuse refurbish dismantle unearth inspect examine""",
    "animal": "feed/fed chase tame catch/caught watch follow photograph pat trap",
    "giving": "give/gave/given send/sent show/showed/shown hand offer lend/lent bring/brought mail sell/sold toss",
    "thinking": "think/thought say/said believe claim",  # a question word can be moved out of their clause
    "knowing": "know/knew/known assume suspect realize notice guess suppose conclude confirm",
    "urging": "urge force advise expect allow permit instruct beg",
    "particle": "pick+up throw/threw/thrown+away switch+off hang/hung+up tear/tore/torn+up fold+up take/took/taken+out "
    "lay/laid+down lock+away chop+up pull+out push+away write/wrote/written+down",
}
_MODIFIERS = {
    "trait": "famous friendly lazy wealthy elderly talented stubborn ambitious popular lonely",
    "quality": "expensive heavy small large beautiful wooden dusty cheap ugly ancient elegant tiny fragile new",
    "state": "tired hungry sick busy happy sad thirsty sleepy asleep safe",
    "manner": """carefully quietly nervously eagerly calmly patiently cautiously foolishly angrily quickly slowly
        suddenly promptly reluctantly happily proudly hastily secretly""",
}

NOUNS: dict[str, tuple[Noun, ...]] = {
    **{name: tuple(map(_noun, entries.split())) for name, entries in _NOUNS.items()},
    **{name: tuple(Noun(entry, entry) for entry in entries.split()) for name, entries in _NAMES.items()},
}
VERBS: dict[str, tuple[Verb, ...]] = {name: tuple(map(_verb, entries.split())) for name, entries in _VERBS.items()}
MODIFIERS: dict[str, tuple[str, ...]] = {name: tuple(entries.split()) for name, entries in _MODIFIERS.items()}
