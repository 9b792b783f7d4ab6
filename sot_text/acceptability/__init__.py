"""A small English acceptability corpus in CoLA's format, made from a seeded grammar.

``python -m sot_text.acceptability OUT_DIR`` writes it. Every row is one half of a minimal pair: an acceptable sentence,
or what one violation (of agreement, of selection, of structure) makes of it; the other half is not in the corpus. Half
of the rows are acceptable. Three of every eight open-class words occur in the dev file only. The violations are made so
that neither a word by itself nor the length tells the label: that takes a representation of how words go together.
"""

from sot_text.acceptability.corpus import VIOLATIONS, Corpus, Row, make_corpus

__all__ = ["make_corpus", "Corpus", "Row", "VIOLATIONS"]
