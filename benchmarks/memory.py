"""Peak memory of training steps and of predicting many lines, beside the peers'.

- A step, forward, backward and AdamW, of MiniLM on 128 tokens: what is allocated at most above the model's weights. On
  the CPU the allocator's record (``torch.profiler``) is summed up, on a GPU ``torch.cuda.max_memory_allocated`` says.
- Prediction: resident memory of whole commands on so many lines, with a BERT of one layer and width 64. The floor is a
  process that imports transformers' pipeline.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging as hf_logging

from benchmarks.allocations import peak_of_cpu_allocations
from benchmarks.fairseq_runs import quiet
from benchmarks.report import Report, Row, benchmark_parser
from benchmarks.timing import Usage, median_usage, run_process
from benchmarks.untrained import mixed_texts, save_models, save_small_encoder
from sot_hf.load_config import load_config
from sot_hf.load_model import load_model
from sot_text.glue import get_task
from sot_text.minilm import find_minilm

MIB = 2**20
PEER = "transformers"
FLOOR = "import of the pipeline"


@quiet()
def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = benchmark_parser(__doc__, repetitions=1, quick="a step on 2 rows of 8 tokens")
    parser.add_argument("--parts", nargs="+", choices=("step", "predict"), default=["step", "predict"])
    parser.add_argument("--model", default=str(find_minilm()), help="folder of an encoder; default: MiniLM")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--lines", type=int, nargs="+", default=[2000, 20000])
    args = parser.parse_args(argv)
    if args.quick:
        args.parts, args.batch_size, args.tokens = ["step"], 2, 8
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    report = Report(args, f"batch {args.batch_size}, {args.tokens} tokens; median of {args.repetitions}")
    if "step" in args.parts:
        rows = steps(args.model, args.batch_size, args.tokens, report.device)
        report.table("Memory of a training step; ratios to transformers", rows)
    if "predict" in args.parts:
        report.table("Peak memory of prediction", predictions(args.lines, args.repetitions, str(report.device)))
    report.save()


def steps(encoder: str, batch_size: int, tokens: int, device: torch.device) -> list[Row]:
    """Rows of the table of training steps."""
    torch.manual_seed(0)
    config, task = load_config(encoder), get_task("CoLA")
    models = {PEER: AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2)}
    for name, head in (("sot_hf, CLS head", {"fusion": "cls"}), ("sot_hf, MGCrP head", {})):
        models[name], _ = load_model(encoder, config, task, head, {}, train=True)
    batch = {
        "input_ids": torch.randint(1000, 2000, (batch_size, tokens), device=device),
        "attention_mask": torch.ones(batch_size, tokens, dtype=torch.int64, device=device),
        "labels": torch.randint(2, (batch_size,), device=device),
    }
    weights, peaks = {}, {}
    for name, model in models.items():
        optimizer = torch.optim.AdamW(model.to(device).train().parameters(), fused=True)
        weights[name] = sum(parameter.nbytes for parameter in model.parameters()) / MIB
        peaks[name] = _peak(lambda model=model, optimizer=optimizer: _step(model, optimizer, batch), device) / MIB
        models[name] = model.cpu()
    return [
        {"": name, "weights, MiB": weights[name], "extra, MiB": peaks[name], "ratio": peaks[name] / peaks[PEER]}
        for name in models
    ]


def _step(model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    model(**batch).loss.backward()
    optimizer.step()


def _peak(step: Callable[[], None], device: torch.device) -> int:
    if device.type != "cuda":
        return peak_of_cpu_allocations(step)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def predictions(counts: Sequence[int], repetitions: int, device: str) -> list[Row]:
    """Rows of the table of predicting commands."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = save_models(save_small_encoder(folder / "encoder"), folder)
        for count in counts:
            found = _predict(folder, models, count, repetitions, device)
            peer = found[PEER]
            rows += [
                {
                    "lines": count,
                    "": name,
                    "peak, MiB": usage.peak,
                    "ratio": usage.peak / peer.peak,
                    "CPU seconds": usage.cpu,
                    "CPU ratio": usage.cpu / peer.cpu,
                }
                for name, usage in found.items()
            ]
    return rows


def _predict(folder: Path, models: dict[str, Path], count: int, repetitions: int, device: str) -> dict[str, Usage]:
    lines, table, output = folder / "lines.txt", folder / "lines.tsv", folder / "found.tsv"
    text = "".join(line + "\n" for line in mixed_texts(count))
    lines.write_text(text, encoding="utf-8")
    table.write_text("text\n" + text, encoding="utf-8")
    end = ["--output", output, "--device", device]
    ours = [table, "--text-columns", "text", *end]
    commands: dict[str, list[str | Path]] = {
        PEER: ["-m", "benchmarks.pipeline_loop", "--model", models[PEER], *end, lines],
        "sot_hf": ["-m", "sot_hf.predict", models["sot_hf"], *ours],
        "sot_fairseq": ["-m", "sot_fairseq.predict", models["sot_fairseq"], *ours],
        FLOOR: ["-c", "from transformers import AutoModelForSequenceClassification, pipeline"],
    }
    runs = {name: lambda words=words: run_process(["python", *words]) for name, words in commands.items()}
    return median_usage(runs, repetitions)


if __name__ == "__main__":
    main()
