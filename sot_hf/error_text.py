"""Parts of error messages: the location of a model, and the message of another library's error."""

from __future__ import annotations

import os

__all__ = ["first_sentence", "model_location"]


def model_location(path: object) -> str:
    """The absolute path of a folder or file; a name on the Hub as it is."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else str(path)
    return os.path.abspath(text) if os.path.exists(text) else text


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error's message, without its full stop."""
    lines = str(error).strip().splitlines()
    sentence = lines[0].partition(". ")[0].rstrip(".:") if lines else type(error).__name__
    return f"no {sentence}" if isinstance(error, KeyError) else sentence
