"""Names and shapes of mmsegmentation's UperNet on LV-ViT, written down from its published configuration."""

import torch


def _norm(width):
    return {**dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (width,)), "num_batches_tracked": ()}


def _lead(prefix, shapes):
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def _conv_norm(out, into, kernel):
    return {"conv.weight": (out, into, kernel, kernel), **_lead("bn", _norm(out))}


def _linear(out, into, name):
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _block(width):
    return {
        "attn.qkv.weight": (3 * width, width),
        **_linear(width, width, "attn.proj"),
        **_linear(3 * width, width, "mlp.fc1"),
        **_linear(width, 3 * width, "mlp.fc2"),
        **{f"norm{number}.{part}": (width,) for number in (1, 2) for part in ("weight", "bias")},
    }


def _stem(width, stem):
    shapes = {"proj.weight": (width, stem, 8, 8), "proj.bias": (width,)}
    for number, (into, kernel) in enumerate(((3, 7), (stem, 3), (stem, 3)), 1):
        shapes |= {f"conv{number}.weight": (stem, into, kernel, kernel), **_lead(f"bn{number}", _norm(stem))}
    return shapes


def _side(width, out, kernel):
    place, shapes = 0, {}
    if kernel:
        place, shapes = 3, {"0.weight": (width, width, kernel, kernel), **_lead("1", _norm(width))}
    return {**shapes, f"{place}.weight": (out, width, 1, 1), **_lead(f"{place + 1}", _norm(out))}


def mmseg_shapes(width=32, depth=4, channels=16, last=32, classes=4, grid=4, stem=8):
    """Shape of every tensor."""
    shapes = {"backbone.cls_token": (1, 1, width), "backbone.pos_embed": (1, 1 + grid**2, width)}
    shapes |= _lead("backbone.patch_embed", _stem(width, stem))
    for block in range(depth):
        shapes |= _lead(f"backbone.blocks.{block}", _block(width))
    for number, (kernel, out) in enumerate(((4, width), (2, width), (0, width), (0, last)), 1):
        shapes |= _lead(f"backbone.side_layer{number}", _side(width, out, kernel))
    for number in range(4):
        shapes |= _lead(f"decode_head.psp_modules.{number}.1", _conv_norm(channels, last, 1))
    shapes |= _lead("decode_head.bottleneck", _conv_norm(channels, last + 4 * channels, 3))
    for number in range(3):
        shapes |= _lead(f"decode_head.lateral_convs.{number}", _conv_norm(channels, width, 1))
        shapes |= _lead(f"decode_head.fpn_convs.{number}", _conv_norm(channels, channels, 3))
    shapes |= _lead("decode_head.fpn_bottleneck", _conv_norm(channels, 4 * channels, 3))
    shapes |= _lead("auxiliary_head.convs.0", _conv_norm(channels, width, 3))
    for head in ("decode_head", "auxiliary_head"):
        shapes |= {f"{head}.conv_seg.weight": (classes, channels, 1, 1), f"{head}.conv_seg.bias": (classes,)}
    return shapes


def mmseg_state(seed=3, **sizes):
    """Random tensors of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) for name, shape in mmseg_shapes(**sizes).items()}
