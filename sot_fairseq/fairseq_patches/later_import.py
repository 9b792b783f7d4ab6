"""Import fairseq without scikit-learn and scipy, which take longer than fairseq itself.

Two of its modules take functions from them that only stock metrics call: the criterion ``sentence_prediction`` and the
task ``audio_classification``. While fairseq is imported, such a name is bound to a stand-in, which imports the library
when it is called.
"""

from __future__ import annotations

import contextlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["import_metrics_later"]

LIBRARIES = ("sklearn", "scipy")
MODULES = (*LIBRARIES, "sklearn.metrics", "scipy.stats")


class _Later:
    """Stands in for a function or module of a library that is not imported yet."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return pkgutil.resolve_name(self._path)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(pkgutil.resolve_name(self._path), name)


class _LaterModule(ModuleType):
    """A module whose names are stand-ins."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} is not imported yet: {name}")
        return _Later(f"{self.__name__}.{name}")


class _Finder(MetaPathFinder, Loader):
    """Finds stand-ins for the modules of libraries that are installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES or PathFinder.find_spec(fullname.partition(".")[0]) is None:
            return None
        return ModuleSpec(fullname, self, is_package=fullname in LIBRARIES)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the stand-in."""
        return _LaterModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed yet."""


@contextlib.contextmanager
def import_metrics_later() -> Iterator[None]:
    """Let what is imported in the block bind stand-ins; a library that is imported already is used as it is."""
    if any(library in sys.modules for library in LIBRARIES):
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in MODULES:  # the next import finds the library
            if isinstance(sys.modules.get(name), _LaterModule):
                del sys.modules[name]
