"""Pictures, read back as SVG, in which matplotlib notes each text."""

import re
import sys

import numpy as np
import pytest
import torch

from sot_base.errors import UsageError
from sot_visual.plots import draw_calibration, draw_confusion, draw_curves, draw_spectrum


def texts(path):
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_confusion_in_percent_of_each_class(tmp_path):
    """Three of four cats and both dogs are right; nothing is an owl, and no owl is predicted: a bat is."""
    counts = torch.tensor([[3, 1, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]).flatten()
    draw_confusion(counts, ["cat", "dog", "owl", "bat"], tmp_path / "confusion.svg")
    found = texts(tmp_path / "confusion.svg")
    assert [text for text in found if text in ("cat", "dog", "owl", "bat")] == ["cat", "dog", "bat"] * 2
    cells = [text for text in found if text in ("75", "25", "0", "100")][:9]  # then come the numbers of the bar
    assert cells == ["75", "25", "0", "0", "100", "0", "0", "100", "0"]
    assert "% of the class" in found


def test_many_classes_have_no_numbers_and_very_many_no_names(tmp_path):
    for classes, named in ((30, True), (120, False)):
        draw_confusion(torch.eye(classes, dtype=torch.int64), [f"c{i}" for i in range(classes)], tmp_path / "many.svg")
        found = texts(tmp_path / "many.svg")
        assert ("c7" in found) is named
        assert found.count("100") <= 1  # of the bar


def test_formats_and_missing_libraries(tmp_path, monkeypatch):
    counts = torch.eye(2, dtype=torch.int64)
    with pytest.raises(UsageError, match=r"unknown picture format: .*confusion\.xyz; use \.png, \.svg or \.pdf"):
        draw_confusion(counts, ["a", "b"], tmp_path / "confusion.xyz")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"matplotlib.* is not installed: the figure needs it; pip install"):
        draw_confusion(counts, ["a", "b"], tmp_path / "confusion.png")
    assert list(tmp_path.iterdir()) == []


def test_curves(tmp_path):
    rows = [{"epoch": "0", "train_loss": "2.0", "eval_loss": "1.5", "eval_top1": "50.0"}]
    rows.append({"epoch": "1", "train_loss": "1.0", "eval_loss": "1.2", "eval_top1": "75.0"})
    assert draw_curves({"first": rows}, tmp_path / "curves.svg")
    assert {"first", "first, train loss", "first, eval loss", "epoch", "top-1, %"} <= set(
        texts(tmp_path / "curves.svg")
    )


def test_calibration_error_is_the_distance_of_confidence_and_accuracy(tmp_path):
    confidence = np.repeat([0.55, 0.95], 100)
    correct = np.concatenate([np.arange(100) < 75, np.arange(100) < 95])
    error = draw_calibration(confidence, correct, tmp_path / "calibration.svg")
    assert error == pytest.approx((0.2 + 0.0) / 2)
    assert "expected calibration error 10.0 %" in texts(tmp_path / "calibration.svg")


def test_spectra_also_of_zero_matrices(tmp_path):
    before = np.array([[8.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    draw_spectrum(before, before**0.5, tmp_path / "spectrum.svg", "svpn")
    assert {"before", "after", "svpn", "median, 5 to 95 %"} <= set(texts(tmp_path / "spectrum.svg"))
    draw_spectrum(0 * before, 0 * before, tmp_path / "zero.png")
    assert (tmp_path / "zero.png").read_bytes().startswith(b"\x89PNG")
