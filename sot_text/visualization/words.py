"""Words of a text from the spans of its sub-words, in any language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex

__all__ = ["Span", "Word", "group_words"]

BOUNDARY = regex.compile(r"(?V1w)\b")
Span = tuple[int, int, int]
"""Index of the text, and start and end of a sub-word in it, in characters."""


@dataclass(frozen=True)
class Word:
    """A word; in scripts without spaces, a sub-word of the tokenizer.

    Attributes:
        text: Index of its text.
        start: Position of its first character.
        end: Position after its last character.
        tokens: Positions of its sub-words in the sequence.
    """

    text: int
    start: int
    end: int
    tokens: tuple[int, ...]


def group_words(texts: Sequence[str], spans: Sequence[Span | None]) -> list[Word]:
    """Merge sub-words into words at Unicode word boundaries (UAX 29).

    Sub-words of the same word or emoji are merged. Chinese, Japanese and Thai have no spaces; UAX 29 separates their
    characters, so the sub-words of the tokenizer are kept.

    Args:
        texts: The texts.
        spans: Span of each token of the sequence; None for a special token.

    Example:
        >>> [word.tokens for word in group_words(["unbearable fun"], [None, (0, 0, 2), (0, 2, 10), (0, 10, 14), None])]
        [(1, 2), (3,)]
    """
    words: list[Word] = []
    starts = [_word_starts(text) for text in texts]
    for place, span in enumerate(spans):
        if span is None:
            continue
        number, start, end = span[0], *_trim(texts[span[0]], span[1], span[2])
        if start == end:
            continue
        last = words[-1] if words and words[-1].text == number else None
        if last is not None and (start < last.end or start not in starts[number]):
            words[-1] = Word(number, last.start, max(last.end, end), (*last.tokens, place))
        else:
            words.append(Word(number, start, end, (place,)))
    return words


def _word_starts(text: str) -> set[int]:
    return {match.start() for match in BOUNDARY.finditer(text)} | {0}


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Strip white space from a span."""
    part = text[start:end]
    if not part.strip():
        return end, end
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
