"""Import a package without a library that takes long and that only few of its functions need, such as scikit-learn."""

from __future__ import annotations

import contextlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["import_later"]


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

    def __init__(self, libraries: Sequence[str]) -> None:
        self.libraries = [name for name in libraries if PathFinder.find_spec(name) is not None]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.libraries:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the stand-in."""
        return _LaterModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed yet."""


@contextlib.contextmanager
def import_later(*libraries: str) -> Iterator[None]:
    """Let what is imported in the block bind stand-ins for functions of these libraries, which import them when called.

    A library that is imported already is used as it is.
    """
    finder = _Finder([library for library in libraries if library not in sys.modules])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):  # the next import finds the library
            if isinstance(module, _LaterModule):
                del sys.modules[name]
