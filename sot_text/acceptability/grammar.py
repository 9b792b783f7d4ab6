"""Random grammatical phrases: what the minimal pairs are built from."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from sot_text.acceptability.lexicon import MODIFIERS, NOUNS, VERBS, Noun, Verb, is_held_out

__all__ = ["Draw", "Pair"]

T = TypeVar("T")
Word = TypeVar("Word", Noun, Verb, str)
_AN = re.compile(r"\b([Aa]) (?=[aeiou])")


class Pair(NamedTuple):
    """An acceptable sentence and the unacceptable one that a single violation makes of it."""

    good: str
    bad: str


class Draw:
    """A seeded source of words and phrases.

    Only ``random.Random.random`` is used, whose sequence Python guarantees for a seed; choices are made from it here.

    Args:
        seed: Seed of the sequence.
        held_out: Use the words that are kept for the dev file as well.
    """

    def __init__(self, seed: str, held_out: bool):
        self._random = random.Random(seed)
        self._held_out = held_out
        self._used: set[Noun | Verb | str] = set()

    def new_sentence(self, make: Callable[[Draw], T]) -> T:
        """Draw with ``make``, which can use every word again; no open-class word occurs twice in what it draws."""
        self._used.clear()
        return make(self)

    def chance(self, probability: float = 0.5) -> bool:
        """Toss a coin."""
        return self._random.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Choose one of the options, each as likely as the others."""
        return options[int(self._random.random() * len(options))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Give the items in random order."""
        return sorted(items, key=lambda _: self._random.random())

    def _word(self, table: dict[str, tuple[Word, ...]], name: str) -> Word:
        words = [word for i, word in enumerate(table[name]) if self._held_out or not is_held_out(i)]
        word = self.pick([word for word in words if word not in self._used])
        self._used.add(word)
        return word

    def noun(self, name: str) -> Noun:
        """Choose a noun of a class."""
        return self._word(NOUNS, name)

    def verb(self, name: str) -> Verb:
        """Choose a verb of a class."""
        return self._word(VERBS, name)

    def modifier(self, name: str) -> str:
        """Choose an adjective or an adverb of a class."""
        return self._word(MODIFIERS, name)

    def phrase(self, noun: str, plural: bool = False, adjective: str = "") -> str:
        """Describe one of a class of nouns, or several, sometimes with an adjective of a class."""
        modifier = f"{self.modifier(adjective)} " if adjective and self.chance(0.1) else ""
        return f"the {modifier}{self.noun(noun).number(plural)}"

    def person(self, plural: bool = False) -> str:
        """Describe a person, or several, by a noun."""
        return self.phrase(self.pick(("person", "person", "person", "male", "female")), plural, "trait")

    def someone(self) -> str:
        """Describe one person, by a noun or a name."""
        return self.noun(self.pick(("man", "woman"))).singular if self.chance(0.3) else self.person()

    def thing(self) -> str:
        """Describe a thing."""
        return self.pick(("the", "a")) + self.phrase("thing", adjective="quality").removeprefix("the")

    def place(self) -> str:
        """Say where something happens."""
        return f"in {self.phrase('place')}"

    def transitive(self) -> Verb:
        """Draw a verb phrase with an object that it cannot do without."""
        if self.chance():
            return self.verb("handling").then(self.thing())
        return self.verb(self.pick(("social", "reflexive"))).then(self.someone())

    def verb_phrase(self) -> Verb:
        """Draw a verb phrase: without an object, with one, or with two."""
        match self.pick(("intransitive", "intransitive", "transitive", "transitive", "animal", "giving")):
            case "intransitive":
                return self.verb("intransitive").then(self.place())
            case "transitive":
                return self.transitive()
            case "animal":
                return self.verb("animal").then(self.phrase("animal", plural=self.chance()))
            case _:
                receiver, thing = self.someone(), self.thing()
                objects = f"{receiver} {thing}" if self.chance() else f"{thing} to {receiver}"
                return self.verb("giving").then(objects)

    def clause(self) -> str:
        """Draw a clause in the past tense."""
        return f"{self.someone()} {self.verb_phrase().past}"

    def declare(self, clause: Callable[[T], str], right: T, wrong: T) -> Pair:
        """Make a statement with the right and with the wrong choice in it, sometimes inside a longer sentence."""
        before, after = "", ""
        if self.chance(0.1):
            verb = self.verb(self.pick(("thinking", "knowing")))
            before = self.pick((f"{self.someone()} {verb.past} that ", f"I {verb.base} that ", "it is clear that "))
        if self.chance(0.05):
            after = self.pick((" because ", " although ")) + self.clause()
        return self.pair(lambda choice: f"{before}{clause(choice)}{after}.", right, wrong)

    def ask(self, clause: Callable[[T], str], right: T, wrong: T) -> Pair:
        """Make a question with the right and with the wrong choice in it."""
        return self.pair(lambda choice: f"{clause(choice)}?", right, wrong)

    def pair(self, sentence: Callable[[T], str], right: T, wrong: T) -> Pair:
        """Write a sentence with the right and with the wrong choice in it; capitals and ``an`` are seen to here."""
        good, bad = (_AN.sub(r"\1n ", sentence(choice)) for choice in (right, wrong))
        return Pair(good[0].upper() + good[1:], bad[0].upper() + bad[1:])
