"""Time and memory of the MGCrP + svPN head against its formula written out naively and against a linear head.

One step is a head alone: forward, cross entropy, backward to the tokens and all parameters. float32 on the CPU; on a
GPU bf16 tokens under bf16 autocast.

- Contenders: the head, the same with torch's own linear layer in place of the projection that leaves class token and
  padding out, the formula written out naively, and a linear head. All but the last have the same weights.
- Floor: the products of the linear layers, on the valid tokens alone; no covariance, no normalisation.
- Padding: sentences of lengths drawn evenly, the first one full; ``--padding`` says which shares of it are measured.
- Time: median over the repetitions, more of them for short steps; the contenders take turns in each, and a ratio is
  the median of those of the turns. With one CPU thread it is the CPU time of that thread, which other work on the
  machine changes least, else the wall time.
- Extra memory: the peak during a step minus what was allocated before it (parameters and tokens, no gradients). On the
  CPU the allocator's record (``torch.profiler``) is summed up, on a GPU ``torch.cuda.max_memory_allocated`` says.
- Working memory: the same without the gradients that the step leaves behind, which every head needs alike.

Run ``python -m benchmarks.head``; ``--quick`` is a smoke test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.allocations import peak_of_cpu_allocations
from benchmarks.report import Report, benchmark_parser
from benchmarks.timing import seconds, take_turns
from sot_core import ClassificationHead, HeadConfig
from sot_core.math import token_projection


class Shape(NamedTuple):
    """Batch, word tokens, token width, heads, width of q and k, classes."""

    batch: int
    tokens: int
    dim: int
    heads: int
    width: int
    classes: int


SHAPES = (
    Shape(32, 128, 768, 4, 24, 2),  # RoBERTa-base
    Shape(32, 12, 768, 4, 24, 2),  # the same on CoLA's sentences
    Shape(32, 12, 384, 4, 24, 2),  # MiniLM on them
    Shape(16, 196, 528, 6, 38, 1000),  # SoT-Base
    Shape(64, 196, 528, 6, 38, 1000),
    Shape(8, 49, 768, 6, 24, 1000),  # Swin-Tiny
    Shape(16, 512, 1024, 4, 32, 2),  # a large model on documents
    Shape(4, 2048, 1024, 4, 32, 2),
)
QUICK_SHAPES = (Shape(4, 16, 32, 2, 6, 5),)
MIB = 2**20
COLUMNS = ("(B, N, C, heads, q = k, classes)", "ms", "extra MiB", "working MiB")


class NaiveHead(nn.Module):
    """The formula as it reads: every head centred on its own, U, S and V filled in, every term of the sum built."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.width = shape.heads, shape.width
        self.proj = nn.Linear(shape.dim, 2 * shape.heads * shape.width, bias=False)
        self.start_vector = nn.Parameter(torch.randn(shape.width))
        self.cls_fc = nn.Linear(shape.dim, shape.classes)
        self.word_fc = nn.Linear(shape.heads * shape.width**2, shape.classes)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        cls, words = tokens[:, 0], tokens[:, 1:]
        B, N, _ = words.shape
        x, y = self.proj(words).reshape(B, N, 2, self.heads, self.width).permute(2, 0, 3, 1, 4)  # (B, H, N, width)
        if padding_mask is None:
            x = x - x.mean(dim=-2, keepdim=True)
            y = y - y.mean(dim=-2, keepdim=True)
            matrix = x.transpose(-2, -1) @ y / N
        else:
            valid = (~padding_mask[:, 1:])[:, None, :, None].to(x.dtype)
            count = valid.sum(dim=-2, keepdim=True)
            x = (x - (x * valid).sum(dim=-2, keepdim=True) / count) * valid
            y = (y - (y * valid).sum(dim=-2, keepdim=True) / count) * valid
            matrix = x.transpose(-2, -1) @ y / count
        matrix = matrix.flatten(0, 1)
        return self.cls_fc(cls) + self.word_fc(self.svpn(matrix).reshape(B, -1))

    def svpn(self, matrix: Tensor, alpha: float = 0.5, num_values: int = 1, num_iters: int = 1) -> Tensor:
        """``U S^alpha V^T + (Q - U S V^T) / (s_r^(1 - alpha) + 1e-5)``."""
        count, rows, columns = matrix.shape
        all_u, all_v = matrix.new_zeros(count, rows, num_values), matrix.new_zeros(count, columns, num_values)
        all_s = matrix.new_zeros(count, num_values, num_values)
        residual = matrix
        for i in range(num_values):
            v = self.start_vector.to(matrix.dtype).expand(count, -1).unsqueeze(-1)
            for _ in range(num_iters):
                u = F.normalize(residual @ v, dim=1).to(matrix.dtype)
                v = F.normalize(residual.transpose(1, 2) @ u, dim=1).to(matrix.dtype)
            s = u.transpose(1, 2) @ residual @ v
            residual = residual - s * (u @ v.transpose(1, 2))
            all_u[:, :, i], all_v[:, :, i], all_s[:, i, i] = u[..., 0], v[..., 0], s[:, 0, 0].pow(alpha)
        return all_u @ all_s @ all_v.transpose(1, 2) + residual / (s.pow(1.0 - alpha) + 1e-5)


class PlainProjection(nn.Module):
    """A head that projects as it does where a compiler records its operations: with torch's linear layer."""

    def __init__(self, head: ClassificationHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        with mock.patch.object(token_projection, "is_recorded", return_value=True):
            logits: Tensor = self.head(tokens, padding_mask)
            return logits


class Contender:
    """A head with its tokens and labels, ready to take steps."""

    def __init__(
        self, head: nn.Module, shape: Shape, device: torch.device, compiled: bool, padding: float = 0.0
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.on_gpu = device.type == "cuda"
        tokens = torch.randn(shape.batch, 1 + shape.tokens, shape.dim, generator=generator)
        self.tokens = tokens.to(device, torch.bfloat16 if self.on_gpu else torch.float32).requires_grad_()
        self.labels = torch.randint(shape.classes, (shape.batch,), generator=generator).to(device)
        self.mask = draw_mask(shape, padding, generator).to(device) if padding > 0.0 else None
        self.leaves = [self.tokens, *head.parameters()]
        self.head = torch.compile(head) if compiled else head

    def step(self) -> Tensor:
        """Forward and backward; the logits."""
        self.clear()
        with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=self.on_gpu):
            logits: Tensor = self.head(self.tokens, self.mask)
        F.cross_entropy(logits.float(), self.labels).backward()
        return logits.detach()

    def clear(self) -> None:
        """Drop the gradients."""
        for leaf in self.leaves:
            leaf.grad = None

    def extra_bytes(self) -> int:
        """Peak memory of one step above what was allocated before it."""
        self.clear()
        if not self.on_gpu:
            return peak_of_cpu_allocations(self.step)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def gradient_bytes(self) -> int:
        """Memory of the gradients that a step leaves behind."""
        self.step()
        return sum(leaf.grad.nbytes for leaf in self.leaves if leaf.grad is not None)


class Floor(Contender):
    """The linear layers of the naive head, each on its own input: what every form of the head has to compute."""

    def __init__(self, shape: Shape, device: torch.device, padding: float) -> None:
        head = NaiveHead(shape).to(device)
        super().__init__(head, shape, device, False, padding)
        cls, words = torch.split(self.tokens.detach(), [1, shape.tokens], dim=1)
        valid = words.flatten(0, 1) if self.mask is None else words[~self.mask[:, 1:]]
        pooled = self.tokens.new_zeros(shape.batch, head.word_fc.in_features)
        self.inputs = {head.cls_fc: cls[:, 0].clone(), head.word_fc: pooled, head.proj: valid.clone()}
        self.leaves = [value.requires_grad_() for value in self.inputs.values()] + list(head.parameters())
        self.grad = torch.ones(len(valid), head.proj.out_features, device=device, dtype=self.tokens.dtype)

    def step(self) -> Tensor:
        self.clear()
        with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=self.on_gpu):
            cls, words, projected = (layer(value) for layer, value in self.inputs.items())
        loss = F.cross_entropy((cls + words).float(), self.labels)
        torch.autograd.backward([loss, projected], [None, self.grad])
        return projected.detach()


def draw_mask(shape: Shape, padding: float, generator: torch.Generator) -> Tensor:
    """A padding mask (B, 1 + N) with about a share of ``padding`` in it."""
    longest = 1.0 - 2.0 * padding * torch.rand(shape.batch, generator=generator)
    lengths = (longest * shape.tokens).round().clamp(1, shape.tokens)
    lengths[0] = shape.tokens
    return torch.arange(1 + shape.tokens) > lengths.unsqueeze(1)


def make_heads(shape: Shape) -> dict[str, nn.Module]:
    """The heads to compare; all but the linear one have the same weights."""
    naive = NaiveHead(shape)
    names = {"proj.weight": "pool.proj.weight", "start_vector": "pool.norm.start_vector"}
    weights = {names.get(key, key): value for key, value in naive.state_dict().items()}
    heads: dict[str, nn.Module] = {"naive": naive}
    config = HeadConfig(shape.dim, shape.classes, num_heads=shape.heads, q_dim=shape.width)
    head = ClassificationHead(config)
    head.load_state_dict(weights)
    heads |= {"sot_core": head, "sot_core, plain projection": PlainProjection(head)}
    return heads | {"linear on CLS": ClassificationHead(config.replace(fusion="cls"))}


def compare(
    shape: Shape, device: torch.device, compiled: bool, repetitions: int, padding: float = 0.0
) -> list[dict[str, str | float | None]]:
    """Rows of the table for one shape and share of padding; ratios are to the naive form."""
    heads = make_heads(shape)
    if compiled:
        del heads["sot_core, plain projection"]  # is what a compiler sees
    contenders = {name: Contender(head.to(device), shape, device, compiled, padding) for name, head in heads.items()}
    logits = {name: contender.step() for name, contender in contenders.items()}
    contenders["floor"] = Floor(shape, device, padding)
    repetitions = max(repetitions, min(20 * repetitions, int(1.0 / seconds(contenders["naive"].step, device))))
    steps = {name: contender.step for name, contender in contenders.items()}
    turns = take_turns(steps, repetitions, device)
    measured = {}
    for name, contender in contenders.items():
        extra = contender.extra_bytes() / MIB
        measured[name] = (turns.median(name) * 1e3, extra, extra - contender.gradient_bytes() / MIB)
    where = f"{tuple(shape)}, {padding:.0%} padding" if padding else f"{tuple(shape)}"
    rows: list[dict[str, str | float | None]] = []
    for name, numbers in measured.items():
        row: dict[str, str | float | None] = {COLUMNS[0]: where, "mode": "compiled" if compiled else "eager"}
        row["head"] = name
        for column, value, base in zip(COLUMNS[1:], numbers, measured["naive"], strict=True):
            ratio = turns.ratio(name, "naive") if column == "ms" else value / base
            row |= {column: value, f"{column.split()[0]} ratio": ratio}
        row["difference"] = None
        if name in logits and not name.startswith("linear"):
            difference = (logits[name] - logits["naive"]).abs().max() / logits["naive"].abs().max()
            row["difference"] = difference.item()
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__, repetitions=11, quick="a small shape, eager, 2 repetitions")
    parser.add_argument("--modes", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--padding", nargs="+", type=float, default=[0.0], help="shares in [0, 0.5]")
    args = parser.parse_args(argv)
    if args.quick:
        args.modes, args.repetitions = ["eager"], 2
    report = Report(args, f"median of {args.repetitions}, more for short steps; ratios to the naive form")
    torch.manual_seed(0)
    rows = [
        row
        for mode in args.modes
        for shape in (QUICK_SHAPES if args.quick else SHAPES)
        for padding in args.padding
        for row in compare(shape, report.device, mode == "compiled", args.repetitions, padding)
    ]
    report.table("A step of the head", rows)
    report.save()


if __name__ == "__main__":
    main()
