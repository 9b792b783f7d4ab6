r"""Turn TSV files into the binary data that fairseq's ``sentence_prediction`` task reads, in one command.

    python -m sot_fairseq.preprocess --task RTE --data-dir glue_data --output-dir data-bin/RTE \
        --bpe gpt2 --gpt2-bpe-dir gpt2_bpe
    python -m sot_fairseq.preprocess --text-columns title,body --label-column topic --data-dir my_data \
        --output-dir data-bin/topics --bpe wordpiece --vocab bert/vocab.txt
    python -m sot_fairseq.preprocess --task SST-2 --moses-detokenize --data-dir glue_data --output-dir data-bin/SST-2 \
        --bpe sentencepiece --sentencepiece-model xlmr.base

The folder it writes:

* ``input0``, ``input1`` (pairs only): ``dict.txt``, ``train.bin``, ``train.idx``, ``valid.bin``...; with GPT-2's BPE
  byte for byte what ``multiprocessing_bpe_encoder --keep-empty`` and ``fairseq-preprocess --only-source`` make of the
  same columns;
* ``label``: the same for the class names, without fillers and in canonical order: GLUE's own, or sorted, never by
  frequency; with ``--multi-label`` a row has as many as its cell lists. In regression ``train.label``..., one number a
  line as it is in the TSV file;
* ``tokenizer``: its files, enough to encode new text
  (:meth:`~sot_fairseq.tokenizers.tokenization.TextEncoder.from_folder`);
* ``preprocess.json``: labels, metrics, counts... (:class:`sot_fairseq.data.header.DataHeader`).

Splits: ``train.tsv`` is train, ``dev.tsv`` valid (MNLI: ``dev_matched`` valid, ``dev_mismatched`` valid1), ``test.tsv``
test, which may be absent and may have no labels. A line of the file (up to a line feed) is always one sample: fairseq's
own tools break it in two at a lone carriage return inside it; here that is white space like any other.

Nothing is truncated by default, for the training task shortens to the model's positions, in training, evaluation and
prediction alike; ``--max-length`` shortens here, the longer text of a pair first, and keeps the separators.

``--moses-detokenize`` is for tokenized English text as in SST-2: ``does n't work ,`` is encoded as ``doesn't work,``.
The folder remembers it, so that new text is treated alike in prediction.

Either the whole folder is written, or nothing is; an older one is replaced only in the first case.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

from sot_base.errors import UsageError, run_main
from sot_base.names import join_names, split_names
from sot_fairseq.data.binarize import write_data
from sot_fairseq.tokenizers.subwords import SUBWORDS
from sot_fairseq.tokenizers.tokenization import TextEncoder
from sot_text.glue import GLUE_TASKS, GlueTask, custom_task, get_task
from sot_text.labels import parse_labels

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Preprocess from the command line, and print what was written."""
    args = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    task, encoder = _task(args), _encoder(args)
    header = write_data(task, args.data_dir, args.output_dir, encoder, args.max_length)
    for name, split in header.splits.items():
        counts = f"{split.rows} rows, {split.tokens} tokens, longest {split.longest}"
        counts += f", {split.truncated} truncated, {split.skipped} skipped, {'' if split.labelled else 'no '}labels"
        print(f"{name} ({split.source}): {counts}")  # noqa: T201
    print(f"labels: {', '.join(join_names([label]) for label in header.labels) or 'numbers'}")  # noqa: T201
    print(f"wrote {args.output_dir}")  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sot_fairseq.preprocess", description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", required=True, help="the folder with train.tsv, dev.tsv..., or GLUE's folder")
    parser.add_argument("--output-dir", required=True, help="the folder to write")
    data = parser.add_argument_group("what the files hold")
    data.add_argument("--task", help=f"a GLUE task: {', '.join(GLUE_TASKS)}")
    data.add_argument("--text-columns", metavar="A[,B]", help="own data: names of one or two columns, as in line 1")
    data.add_argument("--label-column", help="own data: name of the column with the label")
    data.add_argument(
        "--labels",
        metavar="X,Y,...",
        help='own data: the labels in order; by default sorted; a comma in a name: "X, Y"',
    )
    data.add_argument("--regression", action="store_true", help="own data: the label is a number")
    data.add_argument("--multi-label", action="store_true", help="own data: a cell lists labels, X,Y, or none")
    text = parser.add_argument_group("how text becomes tokens")
    text.add_argument(
        "--bpe", required=True, choices=tuple(SUBWORDS), help="RoBERTa has gpt2, XLM-R sentencepiece, BERT wordpiece"
    )
    text.add_argument("--gpt2-bpe-dir", help="the folder with encoder.json, vocab.bpe and dict.txt")
    text.add_argument(
        "--sentencepiece-model", help="sentencepiece.bpe.model with dict.txt beside it, or the folder they lie in"
    )
    text.add_argument("--vocab", help="BERT's vocab.txt, or the folder it lies in")
    casing = text.add_mutually_exclusive_group()
    casing.add_argument("--cased", dest="lower_case", action="store_false", help="insist on a cased vocabulary")
    casing.add_argument("--uncased", dest="lower_case", action="store_true", help="insist on a lower-cased one")
    casing.add_argument(
        "--force-lower-case",
        action="store_true",
        help="lower-case text even if the vocabulary is cased, as --do_lower_case of BERT's scripts does",
    )
    parser.set_defaults(lower_case=None)
    text.add_argument(
        "--moses-detokenize", action="store_true", help="turn tokenized English text into plain text first"
    )
    text.add_argument("--max-length", type=int, help="shorten samples to so many positions, special tokens included")
    return parser


def _task(args: argparse.Namespace) -> GlueTask:
    own = (args.text_columns, args.label_column, args.labels, args.regression or None, args.multi_label or None)
    if args.task:
        if any(option is not None for option in own):
            raise UsageError(f"options for custom data beside --task {args.task}: the command line; leave one kind out")
        return get_task(args.task)
    if not (args.text_columns and args.label_column):
        raise UsageError("no task: the command line; give --task, or --text-columns and --label-column")
    labels = parse_labels(args.labels) if args.labels else ()
    columns = split_names(args.text_columns, "--text-columns")
    return custom_task(columns, args.label_column, labels, args.regression, args.multi_label)


def _encoder(args: argparse.Namespace) -> TextEncoder:
    options = {
        "gpt2": ("--gpt2-bpe-dir", args.gpt2_bpe_dir),
        "sentencepiece": ("--sentencepiece-model", args.sentencepiece_model),
        "wordpiece": ("--vocab", args.vocab),
    }
    option, given = options[args.bpe]
    if given is None:
        raise UsageError(f"no tokenizer files: --bpe {args.bpe}; give {option}")
    if args.bpe == "wordpiece":
        return TextEncoder.wordpiece(given, args.lower_case, args.moses_detokenize, args.force_lower_case)
    if args.lower_case is not None or args.force_lower_case:
        option = "--force-lower-case" if args.force_lower_case else "--cased or --uncased"
        raise UsageError(f"{option} with --bpe {args.bpe}: the command line; it keeps the case")
    load = TextEncoder.gpt2 if args.bpe == "gpt2" else TextEncoder.sentencepiece
    return load(given, args.moses_detokenize)


if __name__ == "__main__":
    run_main(main)
