"""List the images of a data set that cannot be read: ``python -m vision.check_data DIR``; exit status 1 if any."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from sot_base.errors import UsageError, run_main
from vision.cli.config_file import Parser
from vision.cli.device import default_workers
from vision.cli.options import non_negative_int
from vision.data.files import FileTree, FolderTree, is_image_name, open_tree
from vision.data.images import ImageError, read_image


class _Readings(Dataset[str]):
    """What is wrong with each image file; an empty string if nothing."""

    def __init__(self, files: Sequence[tuple[FileTree, str]]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> str:
        tree, path = self.files[index]
        try:
            read_image(tree.read(path), path)
        except ImageError as error:
            return error.reason
        except OSError as error:
            return error.strerror or str(error)
        return ""


def check(data_dir: str, workers: int = 0) -> Iterator[tuple[str, str]]:
    """Read every image in a folder or a tar, including tars in the folder.

    Args:
        data_dir: The folder or tar.
        workers: Reading processes.

    Yields:
        Path and fault of each image that cannot be read.

    Raises:
        UsageError: if there are no images.
    """
    root = open_tree(data_dir)
    trees: list[FileTree] = [root]
    for path in root.files() if isinstance(root, FolderTree) else []:
        if path.endswith(".tar"):
            try:
                trees.append(open_tree(Path(data_dir) / path))
            except UsageError:
                yield f"{data_dir}/{path}", "it is no readable tar"
    files = [(tree, path) for tree in trees for path in tree.files() if is_image_name(path)]
    if not files:
        raise UsageError(f"no images: {Path(data_dir).resolve()}; give a folder or tar of images")
    loader = DataLoader(_Readings(files), batch_size=None, num_workers=workers)
    for (tree, path), fault in zip(files, tqdm(loader, leave=False, disable=None), strict=True):
        if fault:
            yield f"{tree.root}/{path}", fault


def main(argv: Sequence[str] | None = None) -> int:
    """Print the unreadable files of a data set, and their number."""
    parser = Parser(prog="check_data.py", description="List the images of a data set that cannot be read.")
    parser.add_argument("data_dir", metavar="DIR", help="folder or tar of images")
    parser.add_argument(
        "-j", "--workers", type=non_negative_int, help="reading processes; default: one a core, up to 8"
    )
    args = parser.parse_args(argv)
    bad = 0
    for path, fault in check(args.data_dir, default_workers(args.workers)):
        bad += 1
        print(f"{path}: {fault}")  # noqa: T201
    print(f"{bad} bad images" if bad else "all images can be read")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    run_main(main)
