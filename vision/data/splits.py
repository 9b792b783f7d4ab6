"""Where the splits of a data set are: folders or tars, by their names and synonyms."""

from __future__ import annotations

from collections.abc import Sequence

from sot_base.errors import UsageError
from vision.data.files import FileTree, FolderTree, open_tree

__all__ = ["find_split"]

_SYNONYMS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "eval", "evaluation", "test"),
}
_SPLIT_NAMES = {name for names in _SYNONYMS.values() for name in names}


def find_split(data_dir: str, split: str) -> tuple[FileTree, str]:
    """The tree that a split is in, and its folder there.

    Args:
        data_dir: A folder with split folders (``train``, ``val`` and their synonyms) or split tars (``train.tar``), a
            tar with split folders, or, for evaluation, the folder of a split itself.
        split: ``train``, ``val``, the name of a folder, or ``.`` for ``data_dir`` itself.

    Raises:
        UsageError: if there is no such split, saying what was expected.
    """
    tree = open_tree(data_dir)
    if split == ".":
        return tree, ""
    wanted = _SYNONYMS.get(split, (split,))
    for name in wanted:
        path = tree.root / f"{name}.tar"
        if isinstance(tree, FolderTree) and path.is_file():
            return _find_in(open_tree(path), wanted, "")
    return _find_in(tree, wanted, split)


def _find_in(tree: FileTree, wanted: Sequence[str], split: str) -> tuple[FileTree, str]:
    """The split's folder, at the top of the tree or below its only folder; without any splits, the top itself."""
    folders = tree.folders()
    lead = ""
    if len(folders) == 1 and folders[0] not in wanted and set(tree.folders(folders[0])) & _SPLIT_NAMES:
        lead = f"{folders[0]}/"
        folders = tree.folders(folders[0])
    for name in wanted:
        if name in folders:
            return tree, lead + name
    has_splits = any(tree.folders(lead + name) for name in set(folders) & _SPLIT_NAMES)  # a class may be called "train"
    if has_splits or split == "train" or (split and split not in _SYNONYMS):
        found = ", ".join(folders[:5]) or "no folders"
        raise UsageError(
            f"no {split or wanted[0]} folder: {tree.root} has {found}; expected {wanted[0]}/<class>/<image> in it"
        )
    return tree, lead.rstrip("/")
