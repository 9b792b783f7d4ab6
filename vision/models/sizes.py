"""Published sizes of the models, and those of the published code itself where it exists."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PUBLISHED_SIZES", "PublishedSize"]


@dataclass(frozen=True)
class PublishedSize:
    """Parameters in millions and multiply-adds in billions at the model's image size and 1,000 classes.

    Attributes:
        params: As published; None: not given.
        gmacs: As published; None: not given.
        code_params: What the published code builds, all and trainable alone; None: no code is published.
        code_gmacs: Convolutions, linear layers and matrix products of the published code.
    """

    params: float | None = None
    gmacs: float | None = None
    code_params: tuple[float, float] | None = None
    code_gmacs: float | None = None


PUBLISHED_SIZES = {
    "sot_tiny": PublishedSize(7.7, 2.5, (8.031, 7.984), 2.753),
    "sot_small": PublishedSize(26.9, 5.8, (27.087, 27.011), 6.215),
    "sot_base": PublishedSize(76.8, 14.5, (76.879, 76.775), 15.524),
    "so_vit_7": PublishedSize(None, None, (5.580, 5.529), 1.417),
    "so_vit_10": PublishedSize(None, None, (7.159, 7.108), 1.787),
    "so_vit_14": PublishedSize(None, None, (24.719, 24.643), 5.053),
    "so_vit_19": PublishedSize(None, None, (43.888, 43.799), 8.751),
    "deit_tiny_sot": PublishedSize(7.0, 2.3),
    "deit_small_sot": PublishedSize(26.9, 5.8),
    "deit_base_sot": PublishedSize(94.9, 18.2),
    "swin_tiny_sot": PublishedSize(31.6, 6.0),
    "swin_base_sot": PublishedSize(95.9, 16.9),
    "hvt_tiny_1": PublishedSize(5.74, 0.64, (5.736, 5.736), 0.642),
    "hvt_small_0": PublishedSize(22.05, 4.57, (22.050, 22.050), 4.574),
    "hvt_small_1": PublishedSize(22.09, 2.40, (22.087, 22.087), 2.402),
    "hvt_small_2": PublishedSize(22.11, 1.94, (22.106, 22.106), 1.941),
    "hvt_small_3": PublishedSize(22.11, 1.62, (22.114, 22.114), 1.620),
    "hvt_small_4": PublishedSize(22.12, 1.39, (22.119, 22.119), 1.394),
    "scale_hvt_tiny_4": PublishedSize(22.12, 1.39, (22.119, 22.119), 1.394),
    "lvvit_t": PublishedSize(8.53, None, (8.535, 8.535), 2.868),
    "lvvit_s": PublishedSize(26.15, None, (26.152, 26.152), 6.551),
    "lvvit_s_384": PublishedSize(26.30, None, (26.298, 26.298), 21.896),
    "lvvit_m": PublishedSize(55.83, None, (55.831, 55.831), 12.678),
    "lvvit_m_384": PublishedSize(56.03, None, (56.025, 56.025)),
    "lvvit_m_448": PublishedSize(56.13, None, (56.132, 56.132)),
    "lvvit_l": PublishedSize(None, None, (150.022, 150.022), 34.637),
    "lvvit_l_448": PublishedSize(150.47, None, (150.474, 150.474)),
    "lvvit_l_512": PublishedSize(150.66, None, (150.658, 150.658)),
    "sot_micro": PublishedSize(),
}
