"""Self-contained HTML pages: a sortable table with a search field, without external resources."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sot_visual.scale import RIGHT, WRONG

__all__ = ["Cell", "embed_png", "make_page"]

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Noto Sans", sans-serif; margin: 1.5rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } .note { color: #555; }
input[type=search] { font: inherit; padding: .3rem .5rem; width: 20rem; max-width: 100%; }
table { border-collapse: collapse; margin-top: .8rem; width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: .4rem .6rem; text-align: start; vertical-align: top; }
th { background: #fff; cursor: pointer; position: sticky; top: 0; white-space: nowrap; }
th[aria-sort=ascending]::after { content: " \\25b2"; } th[aria-sort=descending]::after { content: " \\25bc"; }
.right { color: RIGHT; } .wrong { color: WRONG; }
.row { display: flex; gap: .6rem; } .part { color: #555; flex: none; font-size: .8rem; width: 7.5rem; }
.text { flex: 1; overflow-wrap: anywhere; } .word { border-radius: .2rem; color: #000; padding: 0 .1rem; }
.legend { border: 1px solid #bbb; display: inline-block; height: .9rem; vertical-align: middle; width: 8rem; }
img { height: auto; max-width: 100%; }
""".replace("RIGHT", RIGHT).replace("WRONG", WRONG)
SCRIPT = """
const table = document.querySelector("table.sortable");
if (table) {
  const body = table.tBodies[0], count = document.querySelector("#count");
  table.tHead.querySelectorAll("th").forEach((head, index) => head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    table.tHead.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[index].dataset.sort;
    const number = [...body.rows].every((row) => key(row) !== "" && !isNaN(key(row)));
    const compare = (a, b) => number ? key(a) - key(b) : key(a).localeCompare(key(b));
    body.append(...[...body.rows].sort((a, b) => up ? compare(a, b) : compare(b, a)));
  }));
  const search = document.querySelector("input[type=search]");
  const filter = () => {
    const wanted = search.value.toLocaleLowerCase();
    let shown = 0;
    for (const row of body.rows) {
      row.hidden = !row.dataset.search.toLocaleLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${body.rows.length}`;
  };
  search.addEventListener("input", filter);
  filter();
}
"""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        html: Its content as HTML, already escaped.
        key: Plain text by which it is sorted and searched.
    """

    html: str
    key: str

    @classmethod
    def text(cls, text: str, style: str = "") -> Cell:
        """A cell of plain text."""
        inside = f'<bdi dir="auto">{escape(text)}</bdi>'
        return cls(f'<span class="{escape(style)}">{inside}</span>' if style else inside, text)


def make_page(title: str, note_html: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A page with one table, or the note alone if there are no rows.

    Args:
        title: Plain text.
        note_html: HTML under the title.
        headings: Plain text of the columns.
        rows: The cells of each row, one for each heading.
    """
    table = ""
    if rows:
        heads = "".join(f'<th scope="col" title="sort">{escape(heading)}</th>' for heading in headings)
        lines = "\n".join(_row(row) for row in rows)
        table = (
            '<p><label>Search: <input type="search"></label> <span id="count" class="note"></span></p>\n'
            f'<table class="sortable"><thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>\n'
        )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{note_html}\n{table}<script>{SCRIPT}</script>\n</body></html>\n"
    )


def _row(cells: Sequence[Cell]) -> str:
    search = escape(" ".join(cell.key for cell in cells))
    inside = "".join(f'<td data-sort="{escape(cell.key)}">{cell.html}</td>' for cell in cells)
    return f'<tr data-search="{search}">{inside}</tr>'


def embed_png(data: bytes, description: str) -> str:
    """An ``img`` element with the PNG data inline."""
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{b64encode(data).decode("ascii")}">'
