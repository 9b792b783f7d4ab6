"""Pages, pictures and terminal output of explanations."""

import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sot_text.visualization.explain import Explanation
from sot_text.visualization.picture import draw_items
from sot_text.visualization.render import as_page, as_terminal, colored_pieces, printable
from sot_text.visualization.words import Word
from sot_visual.figures import png_bytes, save_figure
from tests.sot_visual.test_page import Tags

EVIL = "<script>alert(1)</script> & \x1b[31mred\u202e"


def explanation(*texts, truth="good", prediction="good"):
    words = [
        Word(number, match.start(), match.end(), (place,))
        for number, text in enumerate(texts)
        for place, match in enumerate(re.finditer(r"\S+", text))
    ]
    scores = {part: [float(place) for place in range(len(words))] for part in ("cls", "word", "both")}
    return Explanation(tuple(texts), words, scores, "good", prediction, "bad", 0.75, truth)


def test_a_page_shows_markup_as_text_and_three_rows():
    page = as_page([explanation(EVIL), explanation("a b", "c d")], EVIL, "contributions")
    tags = Tags(page).tags
    assert tags.count("script") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("ClassT + WordT</span>") == 2
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_right_wrong_and_unknown():
    right, wrong, unknown = (explanation("a b", truth=truth) for truth in ("GOOD", "bad", None))
    assert (right.right, wrong.right, unknown.right) == (True, False, None)
    page = as_page([right, wrong, unknown], "t", "m")
    assert page.count('class="right"') == page.count('class="wrong"') == 1
    assert "(right)" in as_terminal(right)
    assert "(wrong, it is bad)" in as_terminal(wrong)


def test_the_strongest_word_is_the_greenest():
    pieces = list(colored_pieces(explanation("one two, three"), "both", 0))
    assert [(text, strength) for text, strength, _ in pieces if strength is not None] == [
        ("one", 0.0),
        ("two,", 0.5),
        ("three", 1.0),
    ]
    assert "".join(text for text, *_ in pieces) == "one two, three"


def test_the_terminal_gets_no_control_characters_of_a_text():
    output = as_terminal(explanation(EVIL))
    assert "\x1b[31m" not in output
    assert "\u202e" not in output
    assert "without the words: bad" in output
    assert printable("a\tb\x1b") == "a␉b␛"


@pytest.mark.parametrize("texts", [("",), ("one",), ("שלום עולם",), ("word " * 80,), ("first text", "second $text$")])
def test_pictures_of_any_text(texts, tmp_path):
    assert "(empty)" in as_terminal(explanation("")) + as_page([explanation("")], "t", "m")
    figure = draw_items([explanation(*texts)], "title")
    assert png_bytes(figure).startswith(b"\x89PNG")
    renderer = FigureCanvasAgg(figure).get_renderer()
    width, height = figure.canvas.get_width_height()
    for text in figure.texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0
        assert box.x1 <= width
        assert 0 <= box.y0 <= box.y1 <= height
    save_figure(figure, tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").read_bytes().startswith(b"<?xml")


def test_letters_without_a_font_are_named(caplog):
    draw_items([explanation("\U0001f9ff")], "title")
    assert "no installed font has \U0001f9ff" in caplog.text
