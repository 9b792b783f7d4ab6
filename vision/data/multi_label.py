"""Images with any number of classes, which a table beside them lists: ``<split>/metadata.csv``.

The layout is that of Hugging Face's image folders: a column ``file_name``, and one of the classes of each image.
"""

from __future__ import annotations

import csv
import io
import logging
import posixpath
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from sot_base.errors import UsageError
from sot_base.names import split_names
from vision.data.classes import natural_order
from vision.data.dataset import ImageSet, collate
from vision.data.file_names import is_image_name
from vision.data.files import FileTree, warn_of_left_out
from vision.data.names import MAX_PIXELS
from vision.data.sources import TreeImages
from vision.data.splits import find_split

__all__ = ["MultiLabelSet", "MultiLabelSource", "open_multi_label"]

_logger = logging.getLogger(__name__)
TABLE, FILE_COLUMN = "metadata.csv", "file_name"
_HELP = f"write {FILE_COLUMN} and the images' classes, separated by commas, into its columns"


class MultiLabelSource(TreeImages):
    """Image files with the classes that a table lists for each: several, one or none.

    Args:
        tree: The files.
        prefix: The folder of the split in it, which has the table.
        column: The table's column of classes.
        max_pixels: The largest image that is read; 0: any.

    Attributes:
        where: The place, for messages.
        class_names: All classes that the table lists, in natural order.
        targets: (N, K) float32, 1 where an image has a class.

    Raises:
        UsageError: if there is no table, a row of it has another form, its image is missing or is listed twice.
    """

    def __init__(self, tree: FileTree, prefix: str, column: str, max_pixels: int = MAX_PIXELS) -> None:
        super().__init__(tree, prefix, max_pixels)
        files = [path for path in tree.files(prefix) if path != TABLE]
        if not tree.has_file(self._lead + TABLE):
            raise UsageError(f"no table of the images' classes: {self.where}/{TABLE}; {_HELP}")
        labels = self._read_table(column)
        self.paths = [path for path in files if path in labels]
        present = set(files)
        missing = next((path for path in labels if path not in present), None)
        if missing is not None:
            raise UsageError(f"no such image, {missing}: {self.where}/{TABLE}; correct its row")
        warn_of_left_out(self.where, files)
        self._warn_of_unlisted(files)
        self.class_names = natural_order(name for names in labels.values() for name in names)
        index = {name: position for position, name in enumerate(self.class_names)}
        self.targets = np.zeros((len(self.paths), len(index)), dtype=np.float32)
        for row, path in enumerate(self.paths):
            self.targets[row, [index[name] for name in labels[path]]] = 1

    def _read_table(self, column: str) -> dict[str, list[str]]:
        """The classes of each image, by its path in the split."""
        where = f"{self.where}/{TABLE}"
        try:
            text = self.tree.read(self._lead + TABLE).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"not UTF-8 (byte {error.start}): {where}; save it as UTF-8") from error
        rows = csv.reader(io.StringIO(text, newline=""))
        header = next(rows, [])
        for name in (FILE_COLUMN, column):
            if name not in header:
                raise UsageError(f"no column {name}: {where} has {', '.join(header) or 'nothing'}; see --label-column")
        places = header.index(FILE_COLUMN), header.index(column)
        labels: dict[str, list[str]] = {}
        for row in rows:
            line = f"{where}, line {rows.line_num}"
            if len(row) != len(header):
                raise UsageError(f"{len(row)} fields instead of {len(header)}: {line}; quote those with a comma")
            path = posixpath.normpath(row[places[0]])
            if path in labels:
                raise UsageError(f"{path} is listed twice: {line}; leave one row")
            names = split_names(row[places[1]], line) if row[places[1]].strip() else []
            if "" in names or len(set(names)) < len(names):
                raise UsageError(f"an empty class, or one twice, in {row[places[1]]!r}: {line}; correct it")
            labels[path] = names
        if not any(labels.values()):
            raise UsageError(f"no image has a class: {where}; {_HELP}")
        return labels

    def _warn_of_unlisted(self, files: list[str]) -> None:
        listed = set(self.paths)
        others = [path for path in files if is_image_name(path) and path not in listed]
        if others:
            _logger.warning(f"{len(others)} images without a row are left out: {self.where}/{TABLE} ({others[0]}, ...)")


def open_multi_label(data_dir: str | None, split: str, column: str, max_pixels: int = MAX_PIXELS) -> MultiLabelSource:
    """Open one split of a data set whose images have any number of classes.

    Args:
        data_dir: As `vision.data.splits.find_split`.
        split: As there.
        column: The table's column of classes.
        max_pixels: The largest image that is read; 0: any.

    Raises:
        UsageError: if there is no such data, saying what was expected.
    """
    if data_dir is None:
        raise UsageError(f"no data: DIR; give a folder with train/{TABLE} and val/{TABLE}")
    return MultiLabelSource(*find_split(data_dir, split), column, max_pixels)


class MultiLabelSet(ImageSet):
    """`ImageSet` whose targets say of each of the model's classes whether the image has it.

    Args:
        source: The images.
        class_index: (K,) the model's index of each of the source's classes; None: as in the source.
        num_classes: The model's classes; None: the source's.
    """

    collate = staticmethod(partial(collate, default_collate))

    def __init__(
        self, source: MultiLabelSource, class_index: np.ndarray | None = None, num_classes: int | None = None
    ) -> None:
        super().__init__(source)
        if num_classes is not None:
            self.targets = np.zeros((len(source.targets), num_classes), dtype=np.float32)
            self.targets[:, np.arange(len(source.class_names)) if class_index is None else class_index] = source.targets

    def target(self, index: int) -> Any:
        return torch.from_numpy(self.targets[index])
