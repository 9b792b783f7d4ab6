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

from sot_base.command_help import show_help
from sot_fairseq.command_options import preprocess_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: preprocess_parser(__doc__))

from sot_base.errors import UsageError, run_main
from sot_base.names import join_names, split_names
from sot_fairseq.data.binarize import write_data
from sot_fairseq.tokenizers.tokenization import TextEncoder
from sot_text.glue import GlueTask, custom_task, get_task
from sot_text.labels import parse_labels

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Preprocess from the command line, and print what was written."""
    args = preprocess_parser(__doc__).parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    task, encoder = _task(args), _encoder(args)
    header = write_data(task, args.data_dir, args.output_dir, encoder, args.max_length)
    for name, split in header.splits.items():
        counts = f"{split.rows} rows, {split.tokens} tokens, longest {split.longest}"
        counts += f", {split.truncated} truncated, {split.skipped} skipped, {'' if split.labelled else 'no '}labels"
        print(f"{name} ({split.source}): {counts}")  # noqa: T201
    print(f"labels: {', '.join(join_names([label]) for label in header.labels) or 'numbers'}")  # noqa: T201
    print(f"wrote {args.output_dir}")  # noqa: T201


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
