#!/usr/bin/env bash
# What the task scripts share: data -> encoder -> preprocess -> fairseq-train for each head and seed -> dev metric table.
#
#   [VARIABLE=value ...] bash glue_scripts/rte.sh [extra arguments for fairseq-train, e.g. --cpu or --fp16]
#
# Nothing has to be set. What is not on this machine is downloaded, and a line says what, from where, how large it is and
# under which terms; a GPU is used if there is one. A script sets TASK and then sources this file. Variables from the
# environment:
#
#   GLUE_DIR       folder with GLUE's folders (RTE, CoLA, SST-2, ...); a task that it lacks is downloaded  [glue_data]
#   GPT2_BPE_DIR   folder with encoder.json, vocab.bpe and dict.txt, for RoBERTa and scratch encoders  [downloaded]
#   ENCODER        what is fine-tuned: a name (minilm, roberta.base, ...), a path (a Hugging Face BERT folder, a folder
#                  with fairseq's model.pt and dict.txt, or the model of a probe), or scratch:<layers>x<dim>, a random one; gpt, or hf: and a
#                  folder or a name on the Hugging Face Hub, is fine-tuned by sot_hf.run_glue, which the extra arguments
#                  are then for  [roberta.base]
#   HEAD           one or more of mgcrp, gcp, gap, cls; cls is the framework's own head, the baseline  [mgcrp cls]
#   SEEDS          one training each  [1 2 3 4 5; 1 2 3 with --freeze-backbone]
#   LR, BATCH_SIZE, MAX_EPOCH   peak learning rate, sentences in a batch, epochs  [the table's]
#   MAX_LENGTH     tokens of a sample, special ones included; longer samples are shortened  [the table's]
#   LOWER_CASE     1: lower-case text even if BERT's vocabulary is cased, as --do_lower_case of BERT's scripts does
#   OUT_DIR        everything that is written  [out/<task>]
#   DRY_RUN        1: prepare the data, print the fairseq-train commands and stop
#
# The table is sot_text/tables/hyperparameters.tsv: a row for each task and kind of encoder, with its source. Variables
# override the table; extra arguments override both: --mgcrp-q 8 after the script's name replaces the table's. An update
# is one batch; BATCH_SIZE=16 with --update-freq 4, or with --distributed-world-size 4 on 4 GPUs, makes updates of 64
# sentences.
#
# OUT_DIR gets data/ (binary data), <head>/seed-<n>/ (checkpoints, train.log, command.txt), run.json and results.json. A
# stopped run resumes from its last checkpoint when started again with the same settings; a training that
# fails does not stop the others (finetune.py, which takes over this process, says more).
set -euo pipefail

: "${TASK:?set TASK before sourcing common.sh}"
GLUE_DIR=${GLUE_DIR:-glue_data}
frozen=""
for word in "$@"; do [[ "$word" == --freeze-backbone ]] && frozen=1; done
ENCODER=${ENCODER:-roberta.base}
HEAD=${HEAD:-mgcrp cls}
SEEDS=${SEEDS:-${frozen:+1 2 3}}
SEEDS=${SEEDS:-1 2 3 4 5}
OUT_DIR=${OUT_DIR:-out/$(tr '[:upper:]' '[:lower:]' <<<"$TASK")}
PYTHON=${PYTHON:-python}
[[ -n "${which+set}" ]] || which=(--task "$TASK")

mistake() {
  echo "error: $*" >&2
  exit 2
}

mapfile -t heads < <(grep -oE "[^[:space:]]+" <<<"$HEAD")  # words may stand on several lines
((${#heads[@]})) || mistake "HEAD is blank; give one or more of mgcrp, gcp, gap, cls"
for head in "${heads[@]}"; do
  [[ "$head" =~ ^(mgcrp|gcp|gap|cls)$ ]] || mistake "HEAD=$head is not a head; give one or more of mgcrp, gcp, gap, cls"
done
mapfile -t seeds < <(grep -oE "[^[:space:]]+" <<<"$SEEDS")
((${#seeds[@]})) || mistake "SEEDS is blank; give one or more whole numbers"
for seed in "${seeds[@]}"; do
  [[ "$seed" =~ ^(0|[1-9][0-9]*)$ ]] || mistake "SEEDS=$seed is not a whole number; give one or more"
done
for name in MAX_EPOCH BATCH_SIZE MAX_LENGTH; do
  [[ "${!name:-1}" =~ ^[1-9][0-9]*$ ]] || mistake "$name=${!name} is not a positive whole number; correct it"
done
[[ "${LR:-1}" =~ ^[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?$ && ! "${LR:-1}" =~ ^[0.]+([eE]|$) ]] || mistake "LR=$LR is not a positive number; correct it"
[[ "${DRY_RUN:-0}" =~ ^[01]$ ]] || mistake "DRY_RUN=$DRY_RUN; give 1, or leave it out to train"
[[ "${LOWER_CASE:-0}" =~ ^[01]$ ]] || mistake "LOWER_CASE=$LOWER_CASE; give 1, or leave it out to keep the vocabulary's case"
lower=()
[[ "${LOWER_CASE:-0}" == 1 ]] && lower=(--force-lower-case)
dry=()
[[ "${DRY_RUN:-0}" == 1 ]] && dry=(--dry-run)

# From here on this process is finetune.py: signals reach it directly.
exec "$PYTHON" "$(dirname "${BASH_SOURCE[0]}")/finetune.py" "${which[@]}" "${dry[@]}" \
  --output-dir "$OUT_DIR" --heads "${heads[@]}" --seeds "${seeds[@]}" --encoder "$ENCODER" --data-dir "$GLUE_DIR" \
  ${LR:+--lr "$LR"} ${BATCH_SIZE:+--batch-size "$BATCH_SIZE"} ${MAX_EPOCH:+--max-epoch "$MAX_EPOCH"} \
  ${MAX_LENGTH:+--max-length "$MAX_LENGTH"} "${lower[@]}" -- "$@"
