"""Time and memory of SoT image models in training and evaluation, compared with timm's DeiT of the same size.

A training step is forward, cross entropy and backward on random images; evaluation is a forward pass. float32 on the
CPU, bf16 autocast on a GPU. SoT is also measured with a plain token embedding: the same weights, default memory layout,
dense layers one by one on concatenated features, convolution before pooling.

- Time: the median; the models alternate. With one CPU thread, the CPU time of that thread, else wall time.
- Kept memory: what autograd saves for the backward pass, without parameters.

Run ``python -m benchmarks.vision_step``; ``--quick`` is a smoke test.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MethodType

import timm
import torch
import torch.nn.functional as F
from timm.models.densenet import DenseBlock
from torch import Tensor, nn

import vision  # noqa: F401  registers the models
from benchmarks.report import Report, benchmark_parser
from benchmarks.timing import take_turns
from vision.models.token_embed import TokenEmbed

MIB = 2**20
PEERS = {"sot_tiny": "deit_tiny_patch16_224", "sot_small": "deit_small_patch16_224"}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__, repetitions=7, quick="one image, one repetition")
    parser.add_argument("--models", nargs="+", choices=PEERS, default=["sot_tiny"])
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args(argv)
    if args.quick:
        args.batch_size, args.repetitions = 1, 1
    report = Report(args, f"batch {args.batch_size}, 224 pixels, median of {args.repetitions}")
    for name in args.models:
        rows = compare(name, args.batch_size, args.repetitions, report.device)
        report.table(f"{name}; ratios to the plain embedding", rows)
    report.save()


def compare(name: str, batch_size: int, repetitions: int, device: torch.device) -> list[dict[str, str | float]]:
    """Rows for a model, the model with a plain embedding, and its peer."""
    torch.manual_seed(0)
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    plain_name = f"{name}, plain embedding"
    models = {name: timm.create_model(name), plain_name: timm.create_model(name)}
    models[plain_name].load_state_dict(models[name].state_dict())
    embed = models[plain_name].patch_embed
    embed.forward = MethodType(plain_embedding, embed)
    models[PEERS[name]] = timm.create_model(PEERS[name])
    for model in models.values():
        model.to(device)
    training = {key: partial(train, model, images, labels) for key, model in models.items()}
    evaluation = {key: partial(evaluate, model, images) for key, model in models.items()}
    timed = {
        "training step": take_turns(training, repetitions, device),
        "evaluation": take_turns(evaluation, repetitions, device),
    }
    kept = {key: kept_bytes(model, images) / MIB for key, model in models.items()}
    rows: list[dict[str, str | float]] = []
    for key in models:
        row: dict[str, str | float] = {"model": key}
        for column, turns in timed.items():
            row |= {f"{column}, ms": 1e3 * turns.median(key), f"{column} ratio": turns.ratio(key, plain_name)}
        row |= {"kept memory, MiB": kept[key], "kept memory ratio": kept[key] / kept[plain_name]}
        rows.append(row)
    return rows


def plain_embedding(embed: TokenEmbed, images: Tensor) -> Tensor:
    """The DenseNet embedding computed module by module."""
    features = embed.proj.stem(images)
    for stage in embed.proj.stage:
        in_turn = DenseBlock.forward if isinstance(stage, DenseBlock) else nn.Sequential.forward
        features = in_turn(stage, features)
    return embed.norm(embed.proj.transition(features).flatten(2).transpose(1, 2))


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """One step without the optimizer."""
    model.train().zero_grad()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        logits = model(images)
    F.cross_entropy(logits.float(), labels).backward()


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor) -> Tensor:
    """Logits."""
    model.eval()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        return model(images)


def kept_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes of the tensors that a forward pass saves for the backward pass."""
    parameters = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        output = model.train()(images)  # kept alive until all tensors are counted, so that no address is reused
    del output
    return sum(kept.values())


if __name__ == "__main__":
    main()
