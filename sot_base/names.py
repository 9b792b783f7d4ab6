"""Names of classes as people write them: lists of names, which spellings are the same name, and what the eye misses."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence

from sot_base.errors import UsageError

__all__ = ["join_names", "name_key", "show", "split_names", "visible"]

UNSEEN = {"Cc", "Cf", "Zl", "Zp"}  # Unicode categories without a glyph: controls, zero-width characters, separators


def split_names(text: str, where: str) -> list[str]:
    """Split ``a,b,c`` into names; a name with a comma is put in double quotes, as in a CSV file.

    Args:
        text: The names. Blanks around them are dropped.
        where: What error messages call the place.

    Raises:
        UsageError: If a quotation mark is not closed.

    Example:
        >>> split_names('no, "yes, really"', "--labels")
        ['no', 'yes, really']
    """
    if '"' not in text:
        return [name.strip() for name in text.split(",")]
    rows = list(csv.reader([text, "end"], skipinitialspace=True))
    if len(rows) != 2:  # the quotation mark goes on into the next line
        raise UsageError(f"a quotation mark is not closed in {text}: {where}; a quoted name needs one at both ends")
    return [name.strip() for name in rows[0]]


def join_names(names: Sequence[str]) -> str:
    """The inverse of :func:`split_names`.

    Example:
        >>> join_names(["no", "yes, really"])
        'no,"yes, really"'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue() if list(names) != [""] else ""


def name_key(name: str) -> str:
    """The key that spellings of a name share: Unicode normalisation (NFC) and case do not matter."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def visible(name: str) -> str:
    """The name as it looks: composed (NFC), without characters that have no glyph, every space a plain one."""
    composed = unicodedata.normalize("NFC", name)
    seen = (" " if unicodedata.category(letter) == "Zs" else letter for letter in composed)
    return "".join(letter for letter in seen if unicodedata.category(letter) not in UNSEEN)


def show(name: str) -> str:
    r"""A name for an error message, with the code points that tell look-alikes apart.

    Example:
        >>> show("yes")
        "'yes'"
        >>> print(show("y\u200bes"))
        'y\u200bes' (U+200B ZERO WIDTH SPACE)
    """
    special = [letter for letter in dict.fromkeys(name) if not letter.isascii() or not letter.isprintable()]
    if not special:
        return repr(name)
    unseen = [letter for letter in special if visible(letter) != letter]
    points = ", ".join(
        f"U+{ord(letter):04X} {unicodedata.name(letter, '')}".strip() for letter in (unseen or special)[:5]
    )
    return f"{name!r} ({points})"
