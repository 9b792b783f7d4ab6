"""Which names classes may have: they are words of a fairseq dictionary."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Sequence

from sot_base.errors import UsageError
from sot_base.names import name_key
from sot_text.formats.dictionary import MASK, SPECIALS

__all__ = ["check_labels"]

logger = logging.getLogger(__name__)


def check_labels(labels: Sequence[str], where: str) -> tuple[str, ...]:
    """Check class names and return them composed (NFC).

    Raises:
        UsageError: If there are fewer than two, one is empty or repeated, or fairseq's dictionary cannot hold it.
    """
    labels = [unicodedata.normalize("NFC", label) for label in labels]
    if len(labels) < 2:
        raise UsageError(f"fewer than two labels ({', '.join(labels)}): {where}; a classification needs two")
    for label in labels:
        if label != label.strip() or not label or "\r" in label or "\n" in label:
            raise UsageError(f"{label!r} is not a label: {where}; give each sample a label without surrounding spaces")
        if label in (*SPECIALS, MASK) or re.fullmatch(r"madeupword\d{4}", label):  # fairseq's fillers
            raise UsageError(f"fairseq reserves {label!r}: {where}; rename the label")
        if labels.count(label) > 1:
            raise UsageError(f"{label!r} is repeated: {where}; name each label once")
    if len({name_key(label) for label in labels}) < len(labels):
        logger.warning("labels that differ only in case are different classes: %s", where)
    return tuple(labels)
