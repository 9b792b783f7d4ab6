"""Pages: everything is escaped and nothing is loaded; scales and colours are finite."""

from html.parser import HTMLParser

import numpy as np
import pytest

from sot_visual.page import Cell, embed_png, make_page
from sot_visual.scale import hex_color, mix_colors, to_strength

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def test_text_from_outside_stays_text():
    page = make_page(EVIL, "<p>note</p>", [EVIL, "b"], [[Cell.text(EVIL), Cell.text(EVIL, "wrong")]] * 2)
    parsed = Tags(page)
    assert parsed.tags.count("script") == 1
    assert "img" not in parsed.tags
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    assert ("data-sort", EVIL) in parsed.attributes


def test_nothing_is_loaded_from_elsewhere():
    page = make_page("title", embed_png(b"\x89PNG", EVIL), ["a"], [[Cell.text("x")]])
    parsed = Tags(page)
    assert "link" not in parsed.tags
    sources = [value for name, value in parsed.attributes if name in ("src", "href")]
    assert all(source.startswith("data:") for source in sources)
    assert "http" not in page


def test_a_page_without_rows_has_no_table():
    assert "table" not in Tags(make_page("title", "note", [], [])).tags


@pytest.mark.parametrize(
    "scores, expected",
    [
        ([], []),
        ([3.0], [1.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([-1.0, -1.0], [0.0, 0.0]),
        ([1.0, 3.0, 2.0], [0.0, 1.0, 0.5]),
    ],
)
def test_strengths(scores, expected):
    assert to_strength(scores).tolist() == expected


def test_strengths_are_finite_whatever_the_scores():
    for scores in ([np.nan, 1.0], [np.inf, -np.inf, 1.0], [1e300, -1e300], [1e-300, 0.0]):
        strength = to_strength(scores)
        assert np.isfinite(strength).all()
        assert strength.min() >= 0.0
        assert strength.max() <= 1.0


def test_colors_go_from_blue_to_green():
    weak, strong = mix_colors(0.0), mix_colors(1.0)
    assert weak[2] == max(weak)
    assert strong[1] == max(strong)
    assert hex_color(1.0) == "#{:02x}{:02x}{:02x}".format(*strong)
