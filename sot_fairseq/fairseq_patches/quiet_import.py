"""Import fairseq without its side effects: its modules configure the root logger and warn of their own old calls."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

__all__ = ["quiet_import"]


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Leave logging as it was, and hide messages and deprecation warnings, while fairseq is imported in the block."""
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
