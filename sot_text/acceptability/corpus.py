"""The rows of the corpus: one sentence of each minimal pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sot_base.errors import UsageError
from sot_text.acceptability import agreement, selection, structure
from sot_text.acceptability.grammar import Draw, Pair

__all__ = ["VIOLATIONS", "Corpus", "Row", "make_corpus"]

_SHARES: tuple[tuple[Callable[[Draw], Pair], int], ...] = (  # of every 26 rows
    (structure.scrambled_words, 5),
    (structure.constituent_order, 5),
    (structure.word_order, 2),
    (structure.polarity, 2),
    (structure.filler_gap, 1),
    (structure.island, 1),
    (selection.animate_subject, 3),
    (selection.argument_structure, 2),
    (selection.verb_form, 1),
    (agreement.pronoun_case, 2),
    (agreement.reflexive, 1),
    (agreement.number_agreement, 1),
)
VIOLATIONS: dict[str, Callable[[Draw], Pair]] = {violation.__name__: violation for violation, _ in _SHARES}
_TURNS = [violation.__name__ for violation, share in _SHARES for _ in range(share)]
_TRIES = 1000  # to find a pair that has not been used


class Row(NamedTuple):
    """A sentence, whether it is acceptable, and the violation that it or the other half of its pair shows."""

    violation: str
    acceptable: bool
    sentence: str

    def to_tsv(self) -> str:
        """Write the row as CoLA does: source, label, the author's mark, sentence."""
        return f"{self.violation}\t{self.acceptable:d}\t{'' if self.acceptable else '*'}\t{self.sentence}\n"


class Corpus(NamedTuple):
    """The two files of the corpus."""

    train: list[Row]
    dev: list[Row]


def make_corpus(seed: int = 1, train_rows: int = 2000, dev_rows: int = 500) -> Corpus:
    """Make a corpus whose files share no minimal pair; the dev file does not depend on ``train_rows``.

    Args:
        seed: Seed of the sentences; which words are kept for the dev file does not depend on it.
        train_rows: Number of sentences to learn from (> 0).
        dev_rows: Number of sentences to test on (> 0).

    Raises:
        UsageError: A number of rows is not positive, or larger than the grammar has sentences for.
    """
    taken: set[str] = set()
    dev = _make_rows("dev", dev_rows, Draw(f"dev {seed}", held_out=True), taken)
    return Corpus(_make_rows("train", train_rows, Draw(f"train {seed}", held_out=False), taken), dev)


def _make_rows(split: str, number: int, draw: Draw, taken: set[str]) -> list[Row]:
    """Make the rows of one file, the violations in turn, every second row acceptable, from pairs not in ``taken``."""
    if number < 1:
        raise UsageError(f"not a number of rows: {number} for {split}; give at least 1")
    rows = []
    for i in range(number):
        cycle, turn = divmod(i, len(_TURNS))
        violation, acceptable = _TURNS[turn], (cycle + turn) % 2 == 0
        for _ in range(_TRIES):
            pair = draw.new_sentence(VIOLATIONS[violation])
            if taken.isdisjoint(pair):
                break
        else:
            raise UsageError(
                f"too many rows: {number} for {split}; the grammar has too few {violation} sentences, ask for fewer"
            )
        taken.update(pair)
        rows.append(Row(violation, acceptable, pair.good if acceptable else pair.bad))
    return draw.shuffled(rows)
