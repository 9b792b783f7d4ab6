"""Violations of agreement: two words that should share a feature, next to each other or far apart.

Every function draws one minimal pair. Both values of the feature are equally likely at both places, so that no word by
itself tells an acceptable sentence from an unacceptable one.
"""

from __future__ import annotations

from sot_text.acceptability.grammar import Draw, Pair

__all__ = ["number_agreement", "pronoun_case", "reflexive"]

_PRONOUNS = (("I", "me"), ("he", "him"), ("she", "her"), ("we", "us"), ("they", "them"))
_REFLEXIVES = {"male": "himself", "female": "herself", "plural": "themselves"}
_DETERMINERS = (("this", "each", "every", "another"), ("these", "both", "several", "two"))


def number_agreement(draw: Draw) -> Pair:
    """Violate number: "The nurse near the lamps is/*are tired.", "Anna repaired these lamps/*lamp."."""
    plural = draw.chance()
    if draw.chance(0.3):
        start = f"{draw.someone()} {draw.verb('handling').past} {draw.pick(_DETERMINERS[plural])}"
        noun = draw.noun("thing")
        return draw.declare(lambda number: f"{start} {noun.number(number)}", plural, not plural)
    subject = draw.person(plural)
    match draw.pick(("nothing", "nothing", "preposition", "clause")):
        case "preposition":
            subject += f" {draw.pick(('near', 'behind'))} {draw.phrase('thing', not plural)}"
        case "clause":
            subject += f" that {draw.person(not plural)} {draw.verb('social').past}"
    state, phrase = draw.modifier("state"), draw.verb_phrase()
    predicates = draw.pick(
        (
            (f"is {state}", f"are {state}"),
            (f"was {state}", f"were {state}"),
            (f"has {phrase.participle}", f"have {phrase.participle}"),
            (f"often {phrase.third}", f"often {phrase.base}"),
        )
    )
    return draw.declare(lambda number: f"{subject} {predicates[number]}", plural, not plural)


def reflexive(draw: Draw) -> Pair:
    """Violate gender or number: "The king near the girls admired himself/*themselves."."""
    right, wrong, _ = draw.shuffled(tuple(_REFLEXIVES))
    subject, other = (
        draw.person(True) if who == "plural" else draw.phrase(who, adjective="trait") for who in (right, wrong)
    )
    match draw.pick(("nothing", "preposition", "clause", "embedding")):
        case "preposition":
            subject += f" {draw.pick(('near', 'behind'))} {other}"
        case "clause":
            subject += f" who {draw.verb('social').past} {other}"
        case "embedding":
            subject = f"{other} {draw.verb('knowing').past} that {subject}"
    verb = draw.verb("reflexive").past
    return draw.declare(lambda who: f"{subject} {verb} {_REFLEXIVES[who]}", right, wrong)


def pronoun_case(draw: Draw) -> Pair:
    """Violate case: "He/*Him smiled.", "Anna urged him/*he to leave."."""
    nominative, accusative = draw.pick(_PRONOUNS)
    if draw.chance():
        phrase = draw.verb_phrase().past
        return draw.declare(lambda pronoun: f"{pronoun} {phrase}", nominative, accusative)
    start, rest = draw.someone(), ""
    match draw.pick(("object", "object", "receiver", "preposition", "infinitive")):
        case "object":
            start += f" {draw.verb('social').past}"
        case "receiver":
            start, rest = f"{start} {draw.verb('giving').past}", f" {draw.thing()}"
        case "preposition":
            start += f" {draw.verb('intransitive').past} {draw.pick(('near', 'behind', 'beside'))}"
        case _:
            start, rest = f"{start} {draw.verb('urging').past}", f" to {draw.verb_phrase().base}"
    return draw.declare(lambda pronoun: f"{start} {pronoun}{rest}", accusative, nominative)
