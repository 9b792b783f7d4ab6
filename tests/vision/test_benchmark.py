"""benchmarks/vision_step.py: what it compares computes the same."""

import timm
import torch

from benchmarks import vision_step


def test_the_plain_embedding_gives_the_models_tokens():
    embed = timm.create_model("sot_tiny", depth=1).double().eval().patch_embed
    images = torch.randn(1, 3, 224, 224, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(vision_step.plain_embedding(embed, images), embed(images), rtol=0, atol=1e-10)
