"""Figures and pages of image maps: input, ClassT, WordT and ClassT + WordT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import shorten
from typing import TYPE_CHECKING

from sot_visual.figures import new_figure, png_bytes
from sot_visual.model_view import PART_NAMES
from sot_visual.page import Cell, embed_png, make_page
from sot_visual.scale import RIGHT, WRONG
from vision.visualization.explain import ImageExplanation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CaptionedImage", "draw_images", "image_page"]


@dataclass(frozen=True)
class CaptionedImage:
    """An explanation with the names of its classes.

    Attributes:
        item: The explanation.
        name: The image's file.
        prediction: The predicted class.
        explained: The class whose logit the maps are of.
        without_words: What the class token's part predicts; None without one.
        truth: The label, None if not known.
    """

    item: ImageExplanation
    name: str
    prediction: str
    explained: str
    without_words: str | None
    truth: str | None

    @property
    def right(self) -> bool | None:
        """Whether the prediction is right; None if the label is not known."""
        return None if self.truth is None else self.truth == self.prediction


def draw_images(images: Sequence[CaptionedImage], title: str = "") -> Figure:
    """Draw the rows of at most :data:`MAX_COLUMNS` images, with a colour bar."""
    parts = list(images[0].item.maps)
    figure = new_figure(1.3 + 1.7 * len(images), 0.8 + 1.75 * (1 + len(parts)))
    if title:
        figure.suptitle(title)
    grid = figure.subplots(1 + len(parts), len(images), squeeze=False)
    drawn = None
    for column, image in enumerate(images):
        mark, color = {True: ("right", RIGHT), False: ("wrong", WRONG), None: ("", "black")}[image.right]
        caption = f"{shorten(image.prediction, 22, placeholder='…')}\n{image.item.probability:.2f} {mark}"
        grid[0][column].imshow(image.item.pixels)
        grid[0][column].set_title(caption, fontsize=8, color=color, parse_math=False)
        for row, part in enumerate(parts, start=1):
            grid[row][column].imshow(image.item.pixels)
            drawn = grid[row][column].imshow(image.item.maps[part], cmap="jet", alpha=0.5, vmin=0, vmax=1)
    names = ["input", *(PART_NAMES[part] if len(parts) > 1 else "map" for part in parts)]
    for axes, name in zip(grid[:, 0], names, strict=True):
        axes.set_ylabel(name, fontsize=9)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
    bar = figure.colorbar(drawn, ax=grid[1:, :], fraction=0.03, pad=0.02, ticks=[0, 1])
    bar.ax.set_yticklabels(["weak", "strong"], fontsize=8)
    return figure


def image_page(images: Sequence[CaptionedImage], title: str, method: str) -> str:
    """A page with a row for each image."""
    note = (
        f'<p class="note">Method {escape(method)}. Maps go from weak (blue) to strong (red), within each map. ClassT: '
        "the class token's part of the logit of the explained class, WordT: that of the word tokens.</p>"
    )
    headings = ["image", "prediction", "label", "explained class", "its probability", "without the words", "maps"]
    return make_page(title, note, headings, [_cells(image) for image in images])


def _cells(image: CaptionedImage) -> list[Cell]:
    style, mark = {True: ("right", " ✓"), False: ("wrong", " ✗"), None: ("", "")}[image.right]
    return [
        Cell.text(image.name),
        Cell.text(image.prediction + mark, style),
        Cell.text(image.truth or ""),
        Cell.text(image.explained),
        Cell.text(f"{image.item.probability:.3f}"),
        Cell.text(image.without_words or ""),
        Cell(embed_png(png_bytes(_draw_row(image)), f"{image.name}: input and maps"), ""),
    ]


def _draw_row(image: CaptionedImage) -> Figure:
    """The input and its maps side by side."""
    parts = list(image.item.maps)
    figure = new_figure(1.8 * (1 + len(parts)), 2.0)
    axes = figure.subplots(1, 1 + len(parts))
    for place, name in zip(axes, ["input", *parts], strict=True):
        place.imshow(image.item.pixels)
        place.set_title(PART_NAMES.get(name, name) if len(parts) > 1 or name == "input" else "map", fontsize=8)
        place.set(xticks=[], yticks=[])
        if name != "input":
            place.imshow(image.item.maps[name], cmap="jet", alpha=0.5, vmin=0, vmax=1)
    return figure
