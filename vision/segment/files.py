"""Images and annotations in the layout of ADE20K, and the names of its classes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from sot_base.errors import UsageError
from vision.data.file_names import is_image_name
from vision.data.files import open_tree, warn_of_left_out
from vision.data.names import MAX_PIXELS

__all__ = ["PairSource", "read_class_names"]

_OBJECT_INFO = "objectInfo150.txt"


class PairSource:
    """Images of ``images/<split>`` with the annotations of the same name in ``annotations/<split>``.

    Args:
        root: Folder, or tar of it.
        split: Name of the split.
        max_pixels: The largest image that is read; 0: any.

    Raises:
        UsageError: if there are no images, or an image has no annotation.
    """

    def __init__(self, root: str, split: str, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = max_pixels
        self.tree, self.where = open_tree(root), f"{root}/images/{split}"
        names = self.tree.files(f"images/{split}")
        found = [name for name in names if is_image_name(name)]
        if not found:
            raise UsageError(
                f"no images: {self.where}; DIR must hold images/{split}/*.jpg and annotations/{split}/*.png"
            )
        warn_of_left_out(self.where, names)
        present = set(self.tree.files(f"annotations/{split}"))
        pairs = [(name, str(PurePosixPath(name).with_suffix(".png"))) for name in found]
        for name, annotation in pairs:
            if annotation not in present:
                wanted = f"{root}/annotations/{split}/{annotation}"
                raise UsageError(f"an image without annotation: {self.where}/{name}; expected {wanted}")
        self.pairs = [(f"images/{split}/{name}", f"annotations/{split}/{annotation}") for name, annotation in pairs]
        if len({annotation for _, annotation in self.pairs}) < len(self.pairs):
            twice = next(a for i, (_, a) in enumerate(self.pairs) if a in {other for _, other in self.pairs[:i]})
            raise UsageError(f"two images for one annotation: {root}/{twice}; rename one of them")

    def __len__(self) -> int:
        return len(self.pairs)

    def names(self, index: int) -> tuple[str, str]:
        """Paths of an image and its annotation."""
        image, annotation = self.pairs[index]
        return f"{self.tree.root}/{image}", f"{self.tree.root}/{annotation}"

    def read_image(self, index: int) -> bytes:
        """Bytes of an image."""
        return self.tree.read(self.pairs[index][0])

    def read_annotation(self, index: int) -> bytes:
        """Bytes of an annotation."""
        return self.tree.read(self.pairs[index][1])


def read_class_names(root: str, path: str | None, num_classes: int) -> list[str] | None:
    """Names of the classes: from a file, else from ADE20K's folder, else None.

    Args:
        root: The data.
        path: A text file, one name per line.
        num_classes: Classes K.

    Raises:
        UsageError: if the file is missing or has the wrong number of names.
    """
    if path is None:
        info = Path(root) / _OBJECT_INFO
        if not info.is_file():
            return None
        lines = _read_lines(info)[1:]
        names = [line.split("\t")[-1].split(",")[0].strip() for line in lines if line.strip()]
        return names if len(names) == num_classes else None
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"no such file of class names: {file.resolve()}; give a text file, one name per line")
    names = [line.strip() for line in _read_lines(file) if line.strip()]
    if len(names) != num_classes:
        raise UsageError(f"{len(names)} names for {num_classes} classes: {path}; write one per line")
    return names


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"class names are not UTF-8: {file}; save the file as UTF-8") from error
