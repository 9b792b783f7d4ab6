"""Violations of structure: the same words in an order, or at a distance, that the grammar does not allow.

Every function draws one minimal pair. But for `filler_gap`, its two sentences are permutations of each other.
"""

from __future__ import annotations

from itertools import pairwise

from sot_text.acceptability.grammar import Draw, Pair

__all__ = ["constituent_order", "filler_gap", "island", "polarity", "scrambled_words", "word_order"]

_ORDERS = ("v s o p", "s o v p", "v o p s", "s p o v", "p v s o", "v p o s", "s o p v", "v o s p")


def scrambled_words(draw: Draw) -> Pair:
    """Violate every rule of order: "The nurse sold the lamp to the king."/"*Nurse lamp sold the to king the the."."""
    if draw.chance():
        classes, verb, preposition = ("person", "thing", "place"), draw.verb("handling").past, "in"
    else:
        classes, verb, preposition = ("person", "thing", "male"), draw.verb("giving").past, "to"
    nouns = [draw.noun(name).singular for name in classes]
    right = ["the", nouns[0], verb, "the", nouns[1], preposition, "the", nouns[2]]
    wrong = right
    while all(after in nouns for word, after in pairwise([*wrong, ""]) if word == "the"):  # an order that might be good
        wrong = draw.shuffled(right)
    return draw.declare(" ".join, right, wrong)


def constituent_order(draw: Draw) -> Pair:
    """Violate the order of subject, verb and object: "Anna repaired the lamp."/"*Repaired Anna the lamp."."""
    parts = {"s": draw.someone(), "v": draw.verb("handling").past, "o": draw.thing(), "p": draw.place()}
    if draw.chance(0.3):
        parts |= {"v": draw.verb("giving").past, "p": f"to {draw.someone()}"}
    return draw.declare(lambda order: " ".join(parts[part] for part in order.split()), "s v o p", draw.pick(_ORDERS))


def word_order(draw: Draw) -> Pair:
    """Violate the order within a phrase: "The old man/*man old smiled.", "Anna picked it up/*up it."."""
    if draw.chance(0.4):
        noun, adjective, phrase = draw.noun("person").singular, draw.modifier("trait"), draw.verb_phrase().past
        right = f"the {adjective} {noun}"
        wrong = draw.pick((f"the {noun} {adjective}", f"{adjective} the {noun}"))
        return draw.declare(lambda subject: f"{subject} {phrase}", right, wrong)
    subject, verb, thing = draw.someone(), draw.verb("handling"), draw.thing()
    match draw.pick(("adverb", "particle", "preposition", "negation")):
        case "adverb":
            adverb = draw.modifier("manner")
            right, wrong = f"{adverb} {verb.past} {thing}", f"{verb.past} {adverb} {thing}"
        case "particle":
            verb, pronoun = draw.verb("particle"), draw.pick(("it", "them"))
            right, wrong = f"{verb.past} {pronoun} {verb.particle}", f"{verb.past} {verb.particle} {pronoun}"
        case "preposition":
            sleeping, place = draw.verb("intransitive").past, draw.phrase("place")
            right, wrong = f"{sleeping} in {place}", f"{sleeping} {place} in"
        case _:
            have = draw.pick(("has", "had"))
            right, wrong = f"{have} not {verb.participle} {thing}", f"not {have} {verb.participle} {thing}"
    return draw.declare(lambda predicate: f"{subject} {predicate}", right, wrong)


def polarity(draw: Draw) -> Pair:
    """Violate licensing: "No man that the girl met has ever slept."/"*The man that no girl met has ever slept."."""
    noun, verb, other = draw.noun("person").singular, draw.verb("social"), draw.noun("person").singular
    match draw.pick(("no", "not", "if")):
        case "no":
            words = ("no", "the")
            phrase = f"has ever {draw.verb_phrase().participle}"
            template = f"{{}} {noun} that {{}} {other} {verb.past} {phrase}"
        case "not":
            words = ("has", "has not")
            phrase = draw.verb("handling").participle
            phrase += draw.pick((f" any {draw.noun('thing').plural}", f" {draw.thing()} yet"))
            template = f"the {noun} who {{}} {verb.participle} the {other} {{}} {phrase}"
        case _:
            words = ("ever ", "")
            phrase, result = draw.verb_phrase().third, draw.verb_phrase().base
            template = f"if the {noun} {{}}{phrase}, the {other} will {{}}{result}"
    return draw.pair(lambda order: template.format(*order) + ".", words, words[::-1])


def filler_gap(draw: Draw) -> Pair:
    """Violate the link of a moved object to its gap: "What did Anna say that Ben repaired/*repaired the lamp?"."""
    subject, verb, thing, moved = draw.someone(), draw.verb("handling").past, draw.thing(), draw.chance()
    if draw.chance():
        start = f"{'what ' if moved else ''}did {draw.someone()} {draw.verb('thinking').base} that {subject} {verb}"
        return draw.ask(lambda gap: start if gap else f"{start} {thing}", moved, not moved)
    thing = draw.pick((thing, "it"))
    if moved:
        start, end = f"the {draw.noun('thing').singular} that {subject} {verb}", f" was {draw.modifier('quality')}"
    else:
        start, end = f"{draw.someone()} {draw.verb('knowing').past} that {subject} {verb}", ""
    return draw.pair(lambda gap: f"{start}{'' if gap else f' {thing}'}{end}.", moved, not moved)


def island(draw: Draw) -> Pair:
    """Violate a barrier to movement: "What did Anna fix before selling it?"/"*What did Anna fix it before selling?"."""
    subject, thing = draw.someone(), draw.thing()
    verb, other = draw.verb("handling"), draw.verb("handling")
    adjunct = f"{draw.pick(('before', 'after', 'without'))} {other.gerund}"
    match draw.pick(("question", "relative", "clause", "branch")):
        case "question":
            right, template = (adjunct, thing), f"what did {subject} {verb.base} {{}} {{}}?"
        case "relative":
            moved, end = draw.noun("thing").singular, draw.modifier("quality")
            right, template = (adjunct, thing), f"the {moved} that {subject} {verb.past} {{}} {{}} was {end}."
        case "clause":
            right, template = (thing, other.base), f"what did {draw.person()} who {verb.past} {{}} {{}}?"
        case _:
            right = (f" {draw.noun('thing').singular}", "")
            template = f"{draw.pick(('which', 'whose'))}{{}} did {subject} {verb.base}{{}}?"
    return draw.pair(lambda order: template.format(*order), right, right[::-1])
