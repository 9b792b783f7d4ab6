"""The data sets of the comparison and the encoders that read them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from benchmarks.heads.fashion_mnist import FashionMnist
from benchmarks.heads.newsgroups_and_reuters import STEMS, find_tables, write_task
from sot_base.download.file import cache_dir
from sot_base.errors import UsageError
from sot_hf import probe as text_probe
from sot_hf.probe import HuggingFaceProbe
from sot_probe.held_out import hold_out
from vision import probe as image_probe
from vision.probe import ImageProbe

__all__ = ["DATA_SETS", "HEADS", "draw_rows", "heads_of", "open_data_set"]

# With a class token, all of these; image models without one read words alone.
HEADS = {
    "first-order": ("cls", "gap", "gap-words", "mean_std-words", "gem-words", "max-words"),
    "attentive": ("attention-words", "efficient-words"),
    "second-order": ("moment-words", "dropcov-words", "mgcrp", "mgcrp-words"),
}


def _open_text(args: Namespace, *words: str) -> HuggingFaceProbe:
    given = {"--encoder": args.text_encoder, "--max-length": args.max_length, "--device": args.device}
    layers = ["--layers", *map(str, args.layers)]
    return HuggingFaceProbe(text_probe.probe_parser(text_probe.__doc__).parse_args([*words, *layers, *_words(given)]))


def _open_glue(task: str, args: Namespace) -> HuggingFaceProbe:
    if args.data_dir is None:
        raise UsageError(f"no folder with {task}: --data-dir; give GLUE's folder of TSV files")
    return _open_text(args, "--task", task, "--data-dir", args.data_dir)


def _open_documents(name: str, args: Namespace) -> HuggingFaceProbe:
    folder = write_task(find_tables(), name, cache_dir() / "benchmarks" / name)
    return _open_text(args, "--text-columns", "text", "--label-column", "label", "--data-dir", str(folder))


def _open_images(kind: type[ImageProbe], option: str, args: Namespace) -> ImageProbe:
    folder = vars(args)[option]
    if folder is None:
        raise UsageError(f"no images: --{option}; give a folder or a tar with train/<class>/ and val/<class>/")
    given = {"--model": args.image_encoder, "--checkpoint": args.image_checkpoint, "--img-size": args.img_size}
    return kind(image_probe.probe_parser().parse_args([folder, *_words(given | {"--device": args.device})]))


def _words(given: Mapping[str, object]) -> list[str]:
    """Options as command-line arguments; the output folder, which both commands demand, is not used."""
    pairs = [(flag, str(value)) for flag, value in given.items() if value is not None]
    return [word for pair in [*pairs, ("--output-dir", ".")] for word in pair]


DATA_SETS: dict[str, Callable[[Namespace], HuggingFaceProbe | ImageProbe]] = {
    **{task: partial(_open_glue, task) for task in ("SST-2", "CoLA")},
    **{name: partial(_open_documents, name) for name in STEMS},
    "CIFAR-10": partial(_open_images, ImageProbe, "cifar10"),
    "Fashion-MNIST": partial(_open_images, FashionMnist, "fashion_mnist"),
}
IMAGES = ("CIFAR-10", "Fashion-MNIST")


def open_data_set(name: str, args: Namespace) -> HuggingFaceProbe | ImageProbe:
    """Open a data set with its encoder; of a set that is larger, a stratified part of the rows is used.

    Raises:
        UsageError: if it is missing or damaged.
    """
    side = DATA_SETS[name](args)
    for split, count in zip(side.targets, (args.train_rows, args.test_rows), strict=True):
        if count is not None and count < len(side.targets[split]):
            side.keep(split, draw_rows(side.targets[split], count, seed=0))
    return side


def draw_rows(targets: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw rows at random without repetition, stratified by class if there are enough of each; sorted."""
    return hold_out(targets, count / len(targets), "classes", seed)[1]


def heads_of(name: str) -> Sequence[str]:
    """The heads to compare on a data set."""
    heads = [head for family in HEADS.values() for head in family]
    return [head for head in heads if head.endswith("-words")] if name in IMAGES else heads
