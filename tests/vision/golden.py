"""Golden values of the published vision code, and models and images filled by the rules of those files."""

import importlib.util
import json
from functools import cache
from types import ModuleType

import torch

from tests.support import GOLDEN, golden_file, need_shared

GOLDEN_FILES = {  # model: file, where the name is not the published one
    "hvt_tiny_1": "hvt-ti-1",
    **{f"hvt_small_{stages}": f"hvt-s-{stages}" for stages in range(4)},
    "hvt_small_4": "scale-hvt-ti-4",
    "scale_hvt_tiny_4": "scale-hvt-ti-4",
    **{name: name for name in ("lvvit_t", "lvvit_s", "lvvit_s_384", "lvvit_m", "lvvit_l")},
}


@cache
def fill() -> ModuleType:
    """The module that draws the golden weights and images."""
    spec = importlib.util.spec_from_file_location("golden_fill", GOLDEN / "vision" / "fill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def golden_model(name: str) -> dict:
    """The golden values of one whole model."""
    local = GOLDEN / "vision" / f"{name}.json"
    return json.loads((local if local.exists() else need_shared("reference", "models", f"{name}.json")).read_text())


def published_state(golden: dict, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The golden weights under the published names."""
    return fill().state_from_shapes(golden["keys"], skip=golden["not_filled"], salt=golden["salt"], dtype=dtype)


def golden_embeddings() -> list[dict]:
    """Golden cases of the token embeddings that lie beside the tests, each with its tensors' names and shapes."""
    content = json.loads(golden_file("vision/token_embed.json").read_text())
    return [
        {**case, "keys": content["key_sets"][case["keys"]], "image_seed": content["image_seed"]}
        for case in content["cases"]
    ]


def assert_close_to_golden(logits: torch.Tensor, golden: dict, tolerance: float) -> None:
    """The first and last logits, their mean and deviation agree with the float64 golden values."""
    values, logits = golden["float64"], logits.double()
    for found, key in ((logits[:, :16], "first16"), (logits[:, -4:], "last4"), (logits.mean(1), "mean")):
        torch.testing.assert_close(found, torch.tensor(values[key], dtype=torch.float64), rtol=0, atol=tolerance)
    deviation = torch.tensor(values["std_population"], dtype=torch.float64)
    torch.testing.assert_close(logits.std(1, correction=0), deviation, rtol=0, atol=tolerance)
    assert logits.argmax(1).tolist() == values["argmax"]
