"""The readers of files on the text sides, each with a good input."""

from __future__ import annotations

import functools
import gzip
import json
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from fairseq import checkpoint_utils
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import sot_fairseq
from sot_base.download.folder import check_folder
from sot_base.download.transfer import Part
from sot_base.download.unpack import unpack
from sot_base.safe_checkpoint import read_checkpoint
from sot_base.small_files import read_json, read_yaml
from sot_core import HeadConfig
from sot_fairseq import convert, sweep
from sot_fairseq.data.header import DataHeader
from sot_fairseq.pretrained.arch_args import fairseq_arch_args
from sot_fairseq.tokenizers.tokenization import TextEncoder
from sot_hf.checkpoints import check_whole
from sot_hf.convert import convert as convert_between_sides
from sot_hf.fairseq_tokenizer import save_roberta_files
from sot_hf.load_config import load_config
from sot_probe.store import open_or_create
from sot_text import results_table
from sot_text.formats.dictionary import read_dictionary
from sot_text.formats.fairseq_classifier import read_classifier
from sot_text.formats.tokenizer_json import read_word_pieces
from sot_text.formats.wordpiece import read_settings, read_vocab
from sot_text.glue import get_task
from sot_text.read_input import read_lines, read_task_file
from sot_text.run_folder import check_same_run
from sot_text.tsv import read_tsv
from sot_visual.compare import compare_page
from sot_visual.run_results import read_run
from tests.fuzz.engine import Reader
from tests.fuzz.mutate import damage_bytes, damage_checkpoint, damage_json, damage_lines
from tests.sot_fairseq.bert_files import random_bert, save_bert, save_pickle
from tests.sot_fairseq.conftest import preprocess_folder, run_train, write_rows
from tests.sot_fairseq.tokenizer_files import SENTENCES, tiny_gpt2, tiny_wordpiece
from tests.sot_hf.models import tiny_model, tokenizer
from tests.sot_probe.test_store import DESCRIPTION, Encoder

ROWS = [(f"{text} {number}", label) for number, text in enumerate(SENTENCES) for label in ("good", "bad")]


def _write(path: Path, content: str | bytes | dict[str, Any] | list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, (dict, list)):
        content = json.dumps(content, indent=1)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@functools.cache
def trained() -> Path:
    """The folder of a tiny classifier: its checkpoint and what lies beside it, and its data in ``data``."""
    folder = Path(tempfile.mkdtemp())
    source = folder / "source"
    for name in ("train", "dev"):
        write_rows(source / f"{name}.tsv", ("sentence", "label"), ROWS)
    preprocess_folder(source, folder / "data", "--text-columns", "sentence", "--label-column", "label")
    run_train(folder / "data", folder / "run")
    shutil.move(folder / "data", folder / "run" / "data")
    return folder / "run"


def _copy(*names: str) -> Any:
    """Make a copy of the trained folder; the named files in it are damaged."""

    def make(folder: Path) -> list[Path]:
        shutil.copytree(trained(), folder, dirs_exist_ok=True)
        return [folder / name for name in names]

    return make


def _args_checkpoint(folder: Path) -> list[Path]:
    from tests.sot_fairseq.hostile_options import as_args

    path = _copy("checkpoint_best.pt")(folder)[0]
    state = read_checkpoint(path, lazy=False)
    torch.save({**state, "args": as_args(state["cfg"]), "cfg": None}, path)
    return [path]


def _predict(folder: Path) -> None:
    sot_fairseq.from_pretrained(folder, "checkpoint_best.pt").predict(["a small cat"])


def _load(folder: Path) -> None:
    checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_best.pt"))


def _evaluate(folder: Path) -> None:
    sot_fairseq.from_pretrained(folder, "checkpoint_best.pt").evaluate(folder / "data")


def _to_hugging_face(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as output:
        convert_between_sides(folder / "checkpoint_best.pt", output)


def _bert(kind: str, *names: str) -> Any:
    def make(folder: Path) -> list[Path]:
        model = random_bert()
        if kind == "safetensors":
            save_bert(folder, model)
        else:
            save_pickle(folder, model.state_dict(), legacy=kind == "legacy")
        return [folder / name for name in names]

    return make


def _convert(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as output:
        convert.convert(folder, Path(output) / "encoder")


def _converted(folder: Path) -> list[Path]:
    convert.convert(_bert("safetensors")(folder) or save_bert(folder / "hf", random_bert()), folder / "encoder")
    return [folder / "encoder" / "architecture.json"]


def _tokenizer_json(folder: Path) -> list[Path]:
    tokenizer().save_pretrained(folder)
    return [folder / "tokenizer.json"]


def _roberta_json(folder: Path) -> list[Path]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}, []))
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], initial_alphabet=letters
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.train_from_iterator(SENTENCES * 2, trainer)
    core.add_special_tokens(["<mask>"])
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    return [folder / "tokenizer.json"]


def _read_roberta_json(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as output:
        save_roberta_files(folder, Path(output), Path(output) / "again.txt")


def _gpt2(*names: str) -> Any:
    return lambda folder: [tiny_gpt2(folder) / name for name in names]


def _encode(folder: Path) -> None:
    TextEncoder.from_folder(folder).encode_batch(SENTENCES)


def _wordpiece(folder: Path) -> list[Path]:
    vocab = tiny_wordpiece(folder)
    return [vocab, _write(folder / "tokenizer_config.json", {"do_lower_case": True, "strip_accents": None})]


def _read_wordpiece(folder: Path) -> None:
    read_settings(folder / "vocab.txt", read_vocab(folder / "vocab.txt"))
    _encode(folder)


def _sentencepiece(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    text = _write(folder / "text.txt", "\n".join(SENTENCES * 20))
    prefix = folder / "sentencepiece.bpe"
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(prefix), vocab_size=120, model_type="bpe", minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    pieces = [processor.id_to_piece(number) for number in range(3, processor.vocab_size())]
    dictionary = _write(folder / "dict.txt", "".join(f"{piece} 1\n" for piece in pieces))
    return [Path(f"{prefix}.model"), dictionary]


def _cache(folder: Path) -> list[Path]:
    _open_cache(folder)
    return [path for path in folder.rglob("*") if path.suffix in (".json", ".npy", ".npz")]


def _open_cache(folder: Path) -> None:
    store = open_or_create(folder, "SST-2/tiny", DESCRIPTION, "float32", Encoder())
    for states in store.splits.values():
        states.gather(torch.arange(len(states)))


def _summary(folder: Path) -> list[Path]:
    lines = ("epoch,train_loss,eval_loss,eval_top1,lr", "0,2.3,2.1,20.5,0.1", "1,2.0,1.9,,0.1", "2,1.9,nan,30,0.05")
    return [_write(folder / "summary.csv", "\n".join(lines) + "\n")]


def _compare_summary(folder: Path) -> None:
    results, curve = read_run(folder, "run")
    compare_page(results, [] if curve is None else [curve])


def _results(folder: Path) -> list[Path]:
    summary = {"dev": {"mcc": {"n": 2, "mean": 50.0, "std": 1.0, "median": 50.0}}}
    seeds = {seed: {"metrics": {"dev": {"mcc": 49.5}}, "command": "fairseq-train ..."} for seed in ("1", "2")}
    content = {"task": "CoLA", "encoder": "minilm", "metric": "mcc", "unit": "percent"}
    return [_write(folder / "results.json", content | {"heads": {"mgcrp": {"seeds": seeds, "summary": summary}}})]


def _run_file(folder: Path) -> list[Path]:
    _write(folder / "mgcrp" / "seed-1" / "checkpoint_best.pt", b"x")
    return [
        _write(folder / "run.json", {"task": "CoLA", "encoder": "minilm", "words": ["--lr", "1"], "data": {"a": "b"}})
    ]


def _read_run_file(folder: Path) -> None:
    old = {"task": "CoLA", "encoder": "minilm", "words": ["--lr", "1"], "data": {"a": "b"}}
    check_same_run(folder, old, "checkpoint_best.pt")
    results_table.read_run(folder)


def _sweep(folder: Path) -> list[Path]:
    _read_sweep(folder)
    return [folder / "sweep.json", _write(folder / "result.json", {"value": 0.5})]


def _read_sweep(folder: Path) -> None:
    sweep.Sweep(folder, ["--best-checkpoint-metric", "mcc"], [sweep.parse_parameter("lr=1,2")], [1, 2])
    if (folder / "result.json").exists():
        read_json(folder / "result.json", sweep._RunResult)


def _head(folder: Path) -> list[Path]:
    normalization = {"type": "svPN", "alpha": 0.5, "iterNum": 1, "svNum": 1, "regular": 0.5, "input_dim": 4}
    args = {"dim": 8, "num_heads": 2, "wr_dim": 4, "normalization": normalization}
    published = {"type": "MGCrP", "fusion_type": "sum_fc", "args": args}
    fields = HeadConfig(embed_dim=8, num_classes=2).to_dict()
    return [_write(folder / "published.json", published), _write(folder / "fields.json", fields)]


def _read_head(folder: Path) -> None:
    for path in folder.glob("*.json"):
        HeadConfig.from_dict({"num_classes": 2, **read_json(path, dict[str, Any])})


def _hf_config(folder: Path) -> list[Path]:
    tiny_model("bert").config.save_pretrained(folder)
    return [folder / "config.json"]


def _tsv(folder: Path) -> list[Path]:
    rows = [("sentence", "label"), *ROWS]
    return [_write(folder / "train.tsv", "".join("\t".join(row) + "\n" for row in rows))]


def _read_tsv(folder: Path) -> None:
    read_tsv(folder / "train.tsv", ["sentence", "label"])


def _cola(folder: Path) -> list[Path]:
    return [
        _write(folder / "dev.tsv", "".join(f"gj04\t{number % 2}\t\t{text}\n" for number, (text, _) in enumerate(ROWS)))
    ]


def _predict_lines(folder: Path) -> None:
    with (folder / "lines.txt").open("rb") as stream:
        list(read_lines(stream, None))


def _downloads(folder: Path) -> list[Path]:
    _write(folder / "model.bin", b"weights")
    sums = _write(folder / "SHA256SUMS", f"{'0' * 64}  other.bin\n{'1' * 64}  model.pt\n")
    notes = {"url": "https://example.org/a", "validator": '"x"', "size": 100, "sha256": None}
    return [sums, _write(folder / "a.part.json", notes)]


def _read_downloads(folder: Path) -> None:
    check_folder(folder)
    Part(folder / "a", "https://example.org/a")


def _tar(folder: Path) -> list[Path]:
    for suffix, mode in ((".tar.gz", "w:gz"), (".tar.xz", "w:xz"), (".tar", "w")):
        with tarfile.open(folder / f"a{suffix}", mode) as archive:
            for path in trained().glob("label/*"):
                archive.add(path, path.name)
    return [folder / f"a{suffix}" for suffix in (".tar.gz", ".tar.xz", ".tar")]


def _zip(folder: Path) -> list[Path]:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in trained().glob("label/*"):
            archive.write(path, path.name)
    return [folder / "a.zip"]


def _unpack(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as output:
        for path in folder.glob("a.*"):
            unpack(path, Path(output) / "files")


def _damage_tar(content: bytes, rng: Any) -> bytes:
    """Damage the archive, or the headers within it."""
    if rng.random() < 0.5 or not content.startswith(b"\x1f\x8b"):
        return damage_bytes(content, rng)
    return gzip.compress(damage_bytes(gzip.decompress(content), rng), 1)


def _yaml(folder: Path) -> list[Path]:
    text = "base: &base {lr: 0.1, steps: [1, 2]}\nrun:\n  <<: *base\n  name: sot_tiny\nflag: true\nwhen: 2020-01-01\n"
    return [_write(folder / "config.yaml", text)]


def _safetensors(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"a": torch.ones(3, 4), "b": torch.zeros(2, dtype=torch.int64)}, folder / "a.safetensors")
    return [folder / "a.safetensors"]


def _hf_checkpoint(folder: Path) -> list[Path]:
    tiny_model("bert").save_pretrained(folder)
    optimizer = {"state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]}
    torch.save(optimizer, folder / "optimizer.pt")
    torch.save({"last_epoch": 3, "_last_lr": [0.1], "base_lrs": [0.1]}, folder / "scheduler.pt")
    torch.save({"python": (3, (1, 2), None), "cpu": torch.zeros(10, dtype=torch.uint8)}, folder / "rng_state.pth")
    state = {"epoch": 1.0, "global_step": 3, "max_steps": 6, "num_train_epochs": 2, "log_history": [{"loss": 0.1}]}
    _write(folder / "trainer_state.json", state)
    names = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "model.safetensors")
    return [folder / name for name in names]


def _damage_any(content: bytes, rng: Any) -> bytes:
    """Damage by what a file is."""
    if content.startswith((b"PK", b"\x80")):
        return damage_checkpoint(content, rng)
    try:
        json.loads(content)
    except ValueError:
        return damage_lines(content, rng)
    return damage_json(content, rng)


CHECKPOINT = ("checkpoint_best.pt",)
TEXT_READERS = (
    Reader("fairseq checkpoint, predict", _copy(*CHECKPOINT), _predict, damage_checkpoint),
    Reader("fairseq checkpoint, training", _copy(*CHECKPOINT), _load, damage_checkpoint),
    Reader("fairseq checkpoint with args, training", _args_checkpoint, _load, damage_checkpoint),
    Reader(
        "fairseq checkpoint, encoder flags",
        _copy(*CHECKPOINT),
        lambda f: fairseq_arch_args(f / CHECKPOINT[0]),
        damage_checkpoint,
    ),
    Reader(
        "fairseq checkpoint, sot_hf.convert",
        _copy(*CHECKPOINT),
        lambda f: read_classifier(f / CHECKPOINT[0]),
        damage_checkpoint,
    ),
    Reader("fairseq checkpoint to Hugging Face", _copy(*CHECKPOINT), _to_hugging_face, damage_checkpoint),
    Reader(
        "binary data, evaluate",
        _copy("data/input0/valid.bin", "data/input0/valid.idx", "data/label/valid.idx"),
        _evaluate,
        damage_bytes,
    ),
    Reader("dictionaries beside a checkpoint", _copy("input0/dict.txt", "label/dict.txt"), _predict, damage_lines),
    Reader("preprocess.json", _copy("preprocess.json"), _predict, damage_json),
    Reader("preprocess.json, header", _copy("preprocess.json"), DataHeader.load, damage_json),
    Reader("pytorch_model.bin", _bert("zip", "pytorch_model.bin"), _convert, damage_checkpoint),
    Reader("pytorch_model.bin, legacy", _bert("legacy", "pytorch_model.bin"), _convert, damage_checkpoint),
    Reader("model.safetensors", _bert("safetensors", "model.safetensors"), _convert, damage_bytes),
    Reader("safetensors", _safetensors, lambda f: read_checkpoint(f / "a.safetensors"), damage_bytes),
    Reader("config.json of a BERT", _bert("safetensors", "config.json"), _convert, damage_json),
    Reader("architecture.json", _converted, lambda f: fairseq_arch_args(f / "encoder"), damage_json),
    Reader("vocab.txt and tokenizer_config.json", _wordpiece, _read_wordpiece, _damage_any),
    Reader(
        "tokenizer.json, word pieces", _tokenizer_json, lambda f: read_word_pieces(f / "tokenizer.json"), damage_json
    ),
    Reader("tokenizer.json, byte-level BPE", _roberta_json, _read_roberta_json, damage_json),
    Reader("encoder.json", _gpt2("encoder.json"), _encode, damage_json),
    Reader("vocab.bpe and dict.txt", _gpt2("vocab.bpe", "dict.txt"), _encode, damage_lines),
    Reader("dict.txt", _gpt2("dict.txt"), lambda f: read_dictionary(f / "dict.txt"), damage_lines),
    Reader("sentencepiece", _sentencepiece, _encode, damage_bytes),
    Reader("token-state cache", _cache, _open_cache, _damage_any),
    Reader("results.json, compared", _results, lambda f: compare_page(read_run(f, "run")[0], []), damage_json),
    Reader("summary.csv, compared", _summary, _compare_summary, damage_lines),
    Reader("results.json", _results, lambda f: results_table.table({"run": results_table.read_saved(f)}), damage_json),
    Reader("run.json", _run_file, _read_run_file, damage_json),
    Reader("sweep.json and result.json", _sweep, _read_sweep, damage_json),
    Reader("head's dictionary", _head, _read_head, damage_json, (ValueError,)),
    Reader("config.json of a model with a head", _hf_config, lambda f: load_config(str(f)), damage_json),
    Reader("TSV", _tsv, _read_tsv, damage_lines),
    Reader("TSV of a GLUE task", _cola, lambda f: read_task_file(f / "dev.tsv", get_task("CoLA")), damage_lines),
    Reader("lines to predict", lambda f: [_write(f / "lines.txt", "\n".join(SENTENCES))], _predict_lines, damage_lines),
    Reader("notes of downloads", _downloads, _read_downloads, _damage_any),
    Reader("tar", _tar, _unpack, _damage_tar),
    Reader("zip", _zip, _unpack, damage_bytes),
    Reader("YAML", _yaml, lambda f: read_yaml(f / "config.yaml", dict[str, Any]), damage_lines),
    Reader("run_glue checkpoint", _hf_checkpoint, check_whole, _damage_any),
)
