"""Deterministic weights and inputs for the golden values in this folder.

Depends on numpy and torch only.  Every array is drawn from
``numpy.random.RandomState`` (MT19937 + polar Gaussian; numpy promises that this
stream never changes), computed in float64, ROUNDED TO FLOAT32, and only then
cast to the wanted dtype.  A float64 run therefore uses exactly the same numbers
as the float32 run.

Seed of one tensor:  ``(zlib.crc32(key.encode()) + salt) % 2**32``; ``n`` below is
``RandomState(seed).standard_normal(shape)`` (C order).  ``key`` is the OFFICIAL
state-dict key (the one listed in the JSON files), so a re-implementation with
other names fills a dict with the official keys first and renames afterwards.

Rules, first match wins (``last`` = part of the key after the final dot):

 1. integer tensors (``num_batches_tracked``)            -> left alone (0)
 2. full key listed in ``skip``                          -> left alone
 3. last == running_mean                                 -> 0.1 * n
 4. last == running_var                                  -> 1 + 0.1 * |n|
 5. last in {cls_token, pos_embed}                       -> 0.5 * n
 6. zero-dimensional tensor (learnable scale factor)     -> 1 + 0.1 * n
 7. 1-D, last == weight, and "<prefix>.bias" is also a
    key of the dict (BatchNorm / LayerNorm gain)         -> 1 + 0.1 * n
 8. 1-D, last == weight, no such bias (the svPN start
    vector)                                              -> n
 9. last == bias, or any other 1-D tensor                -> 0.02 * n
10. 2-D (linear weights)                                 -> n / sqrt(fan_in)
11. 3-D and more (conv weights)                          -> n * sqrt(2 / fan_in)
    with fan_in = product of all dimensions but the first

NOT filled: the fixed sinusoid ``pos_embed`` of the SoT_* and So_vit_* models
(pass ``skip=("pos_embed",)``; the model keeps the table it built itself).  The
``pos_embed`` / ``blocks.N.pos_embed`` of HVT and LV-ViT are learnable and ARE
filled (rule 5).

Why fan-in scaling and not a flat 0.02: with 0.02 the conv stems shrink the image
to ~1e-3 of the positional table and attention is almost uniform, so wrong models
would still pass.  With these rules every stage stays O(1).
"""

import zlib

import numpy as np
import torch

__all__ = ["fill_", "values", "state_from_shapes", "image", "tokens"]


def _seed(key, salt=0):
    return (zlib.crc32(key.encode("utf-8")) + int(salt)) % (2**32)


def values(key, shape, keys=(), salt=0):
    """float32 numpy array for one key; ``keys`` = all keys of the state dict."""
    shape = tuple(int(s) for s in shape)
    prefix, _, last = key.rpartition(".")
    n = np.asarray(np.random.RandomState(_seed(key, salt)).standard_normal(shape), dtype=np.float64)
    if last == "running_mean":
        out = 0.1 * n
    elif last == "running_var":
        out = 1.0 + 0.1 * np.abs(n)
    elif last in ("cls_token", "pos_embed"):
        out = 0.5 * n
    elif len(shape) == 0:
        out = 1.0 + 0.1 * n
    elif len(shape) == 1 and last == "weight":
        bias = (prefix + ".bias") if prefix else "bias"
        out = 1.0 + 0.1 * n if bias in keys else n
    elif len(shape) == 1:
        out = 0.02 * n
    else:
        fan_in = int(np.prod(shape[1:]))
        gain = 1.0 if len(shape) == 2 else 2.0
        out = n * np.sqrt(gain / fan_in)
    return np.asarray(out, dtype=np.float32)


def fill_(state_dict, skip=(), salt=0):
    """Overwrite every floating tensor of ``state_dict`` in place; returns it."""
    keys = set(state_dict.keys())
    with torch.no_grad():
        for key, t in state_dict.items():
            if key in skip or not torch.is_floating_point(t):
                continue
            v = torch.from_numpy(values(key, t.shape, keys, salt)).reshape(t.shape)
            t.copy_(v.to(t.dtype))
    return state_dict


def state_from_shapes(shapes, skip=(), salt=0, dtype=torch.float32):
    """Build a filled dict from ``{official key: shape}`` (as stored in the JSONs).

    Keys in ``skip`` are omitted; ``num_batches_tracked`` becomes an int64 zero.
    """
    sd = {}
    for key, shape in shapes.items():
        if key in skip:
            continue
        if key.endswith("num_batches_tracked"):
            sd[key] = torch.zeros(tuple(shape), dtype=torch.int64)
        else:
            v = values(key, shape, shapes, salt)
            sd[key] = torch.from_numpy(v).reshape(tuple(shape)).to(dtype)
    return sd


def image(seed, size, batch=2):
    """float32 batch (batch, 3, size, size) = 1.5 * coarse + 0.5 * fine.

    Both are standard normal from one RandomState(seed), coarse first: coarse has
    ceil(size / 32) cells per side, each repeated over 32 x 32 pixels (cropped to
    size); fine is per pixel.  The coarse part gives every patch its own mean, so
    a token-order or spatial-axis mistake is visible in the logits.
    """
    rs = np.random.RandomState(seed)
    cells = -(-size // 32)
    coarse = rs.standard_normal((batch, 3, cells, cells))
    fine = rs.standard_normal((batch, 3, size, size))
    big = coarse.repeat(32, axis=2).repeat(32, axis=3)[:, :, :size, :size]
    return torch.from_numpy((1.5 * big + 0.5 * fine).astype(np.float32))


def tokens(seed, shape, dtype=torch.float64):
    """Standard-normal tensor of any shape, float32-rounded, then ``dtype``."""
    n = np.random.RandomState(seed).standard_normal(tuple(shape))
    return torch.from_numpy(np.asarray(n, dtype=np.float32)).to(dtype)
