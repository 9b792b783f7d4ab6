"""Words of sub-words in several scripts."""

import pytest

from sot_text.visualization.picture import in_visual_order, is_right_to_left
from sot_text.visualization.words import group_words


def cut(text, *pieces):
    """Spans of pieces in a text, one after the other; a repeated piece stands for another token of the same letters."""
    spans, place = [], 0
    for piece in pieces:
        if spans and text[spans[-1][1] : spans[-1][2]] == piece and text.find(piece, place) < 0:
            spans.append(spans[-1])
            continue
        start = text.index(piece, place)
        place = start + len(piece)
        spans.append((0, start, place))
    return spans


@pytest.mark.parametrize(
    "text, pieces, words",
    [
        ("unbearable fun", ["un", "bear", "able", " fun"], ["unbearable", "fun"]),
        ("I don't.", ["I", " don", "'", "t", "."], ["I", "don't", "."]),
        ("well-known", ["well", "-", "known"], ["well", "-", "known"]),
        ("我们喜欢它。", ["我们", "喜欢", "它", "。"], ["我们", "喜欢", "它", "。"]),
        ("ไม่ดีเลย", ["ไม่", "ดี", "เลย"], ["ไม่", "ดี", "เลย"]),
        ("שלום עולם", ["של", "ום", "עולם"], ["שלום", "עולם"]),
        ("مرحبا بالعالم", ["مر", "حبا", "بال", "عالم"], ["مرحبا", "بالعالم"]),
        ("👩‍👩‍👧 ok", ["👩", "\u200d", "👩", "\u200d👧", " ok"], ["👩‍👩‍👧", "ok"]),
        ("🎬", ["🎬", "🎬", "🎬"], ["🎬"]),  # bytes of one letter
        ("cafe\u0301 x", ["cafe", "\u0301", "x"], ["cafe\u0301", "x"]),
        ("", [], []),
    ],
)
def test_sub_words_become_words(text, pieces, words):
    spans = cut(text, *pieces)
    found = group_words([text], [None, *spans, None])
    assert [text[word.start : word.end] for word in found] == words
    assert [place for word in found for place in word.tokens] == list(range(1, 1 + len(pieces)))


def test_words_of_a_pair_stay_apart_and_white_space_is_no_word():
    found = group_words(["ab", "cd"], [None, (0, 0, 2), None, (1, 0, 1), (1, 1, 2), None])
    assert [(word.text, word.tokens) for word in found] == [(0, (1,)), (1, (3, 4))]
    assert group_words(["a  b"], [(0, 0, 1), (0, 1, 3), (0, 3, 4)])[1].tokens == (2,)


@pytest.mark.parametrize("text, expected", [("abc", False), ("«שלום» abc", True), ("12 العربية", True), ("!?", False)])
def test_direction_of_a_text(text, expected):
    assert is_right_to_left(text) == expected


def order(words, right_to_left):
    return [text for text, *_ in in_visual_order([(word, 0.0, 0.0) for word in words], right_to_left)]


def test_words_of_the_other_direction_form_runs():
    assert order(["The", " ", "שלום", " ", "עולם", " ", "end"], False) == ["The", " ", "עולם", " ", "שלום", " ", "end"]
    assert order(["שלום", " ", "this", " ", "is", "."], True) == [".", "this", " ", "is", " ", "שלום"]
    assert order(["a", " ", "(", "b", ")"], False) == ["a", " ", "(", "b", ")"]
