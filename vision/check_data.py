"""Count a data set's images by class, and list the unreadable ones: ``python -m vision.check_data DIR``.

Exit status 1 if any cannot be read.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.command_options import data_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(data_parser)

from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from sot_base.errors import UsageError, run_main
from vision.cli.device import command_processes, default_workers
from vision.data.file_names import count_endings, is_image_name
from vision.data.files import FileTree, FolderTree, open_tree
from vision.data.images import ImageError, read_image
from vision.data.names import MAX_PIXELS

Files = list[tuple[FileTree, str]]


class _Readings(Dataset[str]):
    """What is wrong with each image file; an empty string if nothing."""

    def __init__(self, files: Files, max_pixels: int) -> None:
        self.files, self.max_pixels = files, max_pixels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> str:
        tree, path = self.files[index]
        try:
            read_image(tree.read(path), path, self.max_pixels)
        except ImageError as error:
            return error.reason
        except OSError as error:
            return error.strerror or str(error)
        return ""


def find_files(data_dir: str) -> tuple[Files, list[str], list[str]]:
    """The images in a folder or a tar, including tars in the folder.

    Args:
        data_dir: The folder or tar.

    Returns:
        The images, the paths of files that are none by their endings, and what is wrong with tars that cannot be read.

    Raises:
        UsageError: if there are no images.
    """
    root = open_tree(data_dir)
    trees: list[FileTree] = [root]
    bad_tars, others = [], []
    for path in root.files() if isinstance(root, FolderTree) else []:
        if path.endswith(".tar"):
            try:
                trees.append(open_tree(Path(data_dir) / path))
            except UsageError as error:
                bad_tars.append(str(error))
        elif not is_image_name(path):
            others.append(path)
    files = [(tree, path) for tree in trees for path in tree.files() if is_image_name(path)]
    others += [path for tree in trees[1:] for path in tree.files() if not is_image_name(path)]
    if not files and not bad_tars:
        raise UsageError(f"no images: {Path(data_dir).resolve()}; give a folder or tar of images")
    return files, others, bad_tars


def count_folders(files: Files, data_dir: str) -> dict[str, int]:
    """Images of each folder, such as ``train/cat``, in order; a tar in the folder counts as one."""
    counts: Counter[str] = Counter()
    for tree, path in files:
        lead = tree.root.with_suffix("").relative_to(data_dir) if tree.root != Path(data_dir) else Path()
        counts[str((lead / path).parent)] += 1
    return dict(sorted(counts.items()))


def check(files: Files, workers: int = 0, max_pixels: int = MAX_PIXELS) -> Iterator[tuple[str, str]]:
    """Read images.

    Args:
        files: The images.
        workers: Reading processes.
        max_pixels: The largest image that is read; 0: any.

    Yields:
        Path and fault of each image that cannot be read.
    """
    loader = DataLoader(_Readings(files, max_pixels), batch_size=None, num_workers=workers)
    for (tree, path), fault in zip(files, tqdm(loader, leave=False, disable=None), strict=True):
        if fault:
            yield f"{tree.root}/{path}", fault


@command_processes()
def main(argv: Sequence[str] | None = None) -> int:
    """Print the images of each folder, the files left out, and those that cannot be read."""
    args = data_parser().parse_args(argv)
    files, others, bad_tars = find_files(args.data_dir)
    for folder, count in count_folders(files, args.data_dir).items():
        print(f"{folder}: {count}")  # noqa: T201
    if others:
        print(f"{len(others)} files are left out, by their endings: {count_endings(others)}")  # noqa: T201
    bad = len(bad_tars)
    for fault in bad_tars:
        print(fault)  # noqa: T201
    for path, fault in check(files, default_workers(args.workers), args.max_pixels):
        bad += 1
        print(f"{path}: {fault}")  # noqa: T201
    print(f"{bad} bad images" if bad else f"all {len(files)} images can be read")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    run_main(main)
