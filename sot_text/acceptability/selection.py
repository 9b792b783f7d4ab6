"""Violations of selection: what a verb demands of its subject and its object, an auxiliary of its verb.

Every function draws one minimal pair. The demands are crossed (what one word needs, another refuses) or the same words
change places, so that no word by itself tells an acceptable sentence from an unacceptable one.
"""

from __future__ import annotations

from sot_text.acceptability.grammar import Draw, Pair

__all__ = ["animate_subject", "argument_structure", "verb_form"]

_AUXILIARIES = {"base": ("will", "must", "should", "could"), "participle": ("has", "had"), "gerund": ("is", "was")}


def animate_subject(draw: Draw) -> Pair:
    """Violate the demand for a person: "The nurse repaired the lamp."/"*The lamp repaired the nurse."."""
    person, thing = draw.person(), draw.thing()
    verb, place = draw.verb("handling"), draw.place()
    right, template = draw.pick(
        (
            ((person, thing), f"{{}} {verb.past} {{}}"),
            ((person, thing), f"{{}} {verb.past} {{}}"),
            ((person, thing), f"{{}} {verb.past} {{}} {place}"),
            ((person, thing), f"{{}} {draw.verb('intransitive').past} near {{}}"),
            ((thing, person), f"{{}} was {verb.participle} by {{}}"),
            ((thing, person), f"{{}} that {{}} {verb.past} was {place}"),
        )
    )
    return draw.declare(lambda order: template.format(*order), right, right[::-1])


def argument_structure(draw: Draw) -> Pair:
    """Violate the number of arguments: "Anna repaired/*sneezed the lamp.", "Anna sneezed/*repaired."."""
    takes_things = draw.chance()
    transitive, intransitive = draw.verb("handling" if takes_things else "reflexive"), draw.verb("intransitive")
    subject = draw.someone()
    if draw.chance():
        place = draw.pick(("", f" {draw.place()}"))
        return draw.declare(lambda verb: f"{subject} {verb.past}{place}", intransitive, transitive)
    other = draw.thing() if takes_things else draw.someone()
    if draw.chance(0.3):
        return draw.declare(lambda verb: f"{other} was {verb.participle} by {subject}", transitive, intransitive)
    return draw.declare(lambda verb: f"{subject} {verb.past} {other}", transitive, intransitive)


def verb_form(draw: Draw) -> Pair:
    """Violate the form after an auxiliary: "Anna has repaired/*repair the lamp.", "Is Anna repairing/*repair it?"."""
    right, wrong, _ = draw.shuffled(tuple(_AUXILIARIES))
    auxiliary, subject = draw.pick(_AUXILIARIES[right]), draw.someone()
    phrase = draw.transitive() if draw.chance() else draw.verb("intransitive").then(draw.place())
    if draw.chance(0.3):
        return draw.ask(lambda form: f"{auxiliary} {subject} {getattr(phrase, form)}", right, wrong)
    adverb = draw.pick(("", "", " not", " certainly"))
    return draw.declare(lambda form: f"{subject} {auxiliary}{adverb} {getattr(phrase, form)}", right, wrong)
