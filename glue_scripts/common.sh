#!/usr/bin/env bash
# What the task scripts share: data -> encoder -> preprocess -> fairseq-train for each head and seed -> dev metric table.
#
#   [VARIABLE=value ...] bash glue_scripts/rte.sh [further words for fairseq-train, e.g. --cpu or --fp16]
#
# A script sets TASK, LR, BATCH_SIZE and MAX_EPOCH and then sources this file. Variables from the environment come first:
#
#   GLUE_DIR       folder with GLUE's folders (RTE, CoLA, SST-2, ...); needed
#   GPT2_BPE_DIR   folder with encoder.json, vocab.bpe and dict.txt; needed for RoBERTa and scratch encoders
#   ENCODER        what is fine-tuned: a name (minilm, roberta.base, ...), a path (a Hugging Face BERT folder, or a folder
#                  with fairseq's model.pt and dict.txt), or scratch:<layers>x<dim>, a random one  [roberta.base]
#   HEAD           one or more of mgcrp, gcp, gap, cls; cls is the framework's own head, the baseline  [mgcrp cls]
#   SEEDS          one training each  [1 2 3 4 5; 1 2 3 with --freeze-backbone]
#   MAX_EPOCH      epochs  [the task's; 4 with --freeze-backbone]
#   LR             peak learning rate  [the task's; 1e-3 with --freeze-backbone]
#   BATCH_SIZE     sentences in an update  [the task's]
#   OUT_DIR        everything that is written  [out/<task>]
#
# OUT_DIR gets data/ (binary data), <head>/seed-<n>/ (checkpoints, train.log, command.txt) and results.json. A run that was
# killed goes on from its last checkpoint when it is started again with the same settings.
set -euo pipefail

: "${TASK:?set TASK before sourcing common.sh}"
if [[ -z "${GLUE_DIR:-}" ]]; then
  echo "error: GLUE_DIR is not set; give the folder that holds $TASK/, e.g. GLUE_DIR=glue_data bash $0" >&2
  exit 2
fi
frozen=""
for word in "$@"; do [[ "$word" == --freeze-backbone ]] && frozen=1; done
ENCODER=${ENCODER:-roberta.base}
HEAD=${HEAD:-mgcrp cls}
SEEDS=${SEEDS:-${frozen:+1 2 3}}
SEEDS=${SEEDS:-1 2 3 4 5}
MAX_EPOCH=${MAX_EPOCH:-${frozen:+4}}
MAX_EPOCH=${MAX_EPOCH:-$TASK_MAX_EPOCH}
LR=${LR:-${frozen:+1e-3}}
LR=${LR:-$TASK_LR}
BATCH_SIZE=${BATCH_SIZE:-$TASK_BATCH_SIZE}
OUT_DIR=${OUT_DIR:-out/$(tr '[:upper:]' '[:lower:]' <<<"$TASK")}
PYTHON=${PYTHON:-python}
USER_DIR=$("$PYTHON" -c 'import importlib.util; print(importlib.util.find_spec("sot_fairseq").submodule_search_locations[0])')

mistake() {
  echo "error: $*" >&2
  exit 2
}

read -ra heads <<<"$HEAD"
((${#heads[@]})) || mistake "HEAD is blank; give one or more of mgcrp, gcp, gap, cls"
for head in "${heads[@]}"; do
  [[ "$head" =~ ^(mgcrp|gcp|gap|cls)$ ]] || mistake "HEAD=$head is no head; give one or more of mgcrp, gcp, gap, cls"
done
read -ra seeds <<<"$SEEDS"
((${#seeds[@]})) || mistake "SEEDS is blank; give one or more whole numbers"
for seed in "${seeds[@]}"; do
  [[ "$seed" =~ ^(0|[1-9][0-9]*)$ ]] || mistake "SEEDS=$seed is no whole number; give one or more"
done
for name in MAX_EPOCH BATCH_SIZE; do
  [[ "${!name}" =~ ^[1-9][0-9]*$ ]] || mistake "$name=${!name} is no positive whole number; correct it"
done

# Another run's results are neither mixed with this one's nor lost.
settings="TASK=$TASK ENCODER=$ENCODER MAX_EPOCH=$MAX_EPOCH LR=$LR BATCH_SIZE=$BATCH_SIZE $*"
mkdir -p "$OUT_DIR" || mistake "OUT_DIR=$OUT_DIR cannot be made; give another OUT_DIR"
if compgen -G "$OUT_DIR/*/seed-*/checkpoint_*.pt" >/dev/null && [[ "$(cat "$OUT_DIR/settings.txt")" != "$settings" ]]; then
  mistake "$OUT_DIR holds a run with other settings ($(cat "$OUT_DIR/settings.txt")); give another OUT_DIR"
fi
echo "$settings" >"$OUT_DIR/settings.txt"

say() { printf '\n== %s\n' "$*"; }

field() { sed -n "s/^$1\t//p" "$OUT_DIR/encoder.txt"; }

find_encoder() {
  say "encoder: $ENCODER"
  "$PYTHON" -m sot_fairseq.encoders "$ENCODER" --output-dir "$OUT_DIR/encoder" --format lines >"$OUT_DIR/encoder.tmp"
  mv "$OUT_DIR/encoder.tmp" "$OUT_DIR/encoder.txt"
  mapfile -t ARCH_ARGS < <(field arch_args)
  mapfile -t PREPROCESS_ARGS < <(field preprocess_args)
  RESTORE_FILE=$(field restore_file)
}

preprocess() {
  say "data: $GLUE_DIR/$TASK -> $OUT_DIR/data"
  "$PYTHON" -m sot_fairseq.preprocess --task "$TASK" --data-dir "$GLUE_DIR" --output-dir "$OUT_DIR/data" "${PREPROCESS_ARGS[@]}"
  read -r ROWS NUM_CLASSES METRIC REGRESSION < <("$PYTHON" -c '
import json, sys
data = json.load(open(sys.argv[1], encoding="utf-8"))
classes = 1 if data["regression"] else len(data["labels"])
print(data["splits"]["train"]["rows"], classes, data["main_metric"], "yes" if data["regression"] else "")
' "$OUT_DIR/data/preprocess.json")
}

train() { # head seed further-words...
  local head=$1 seed=$2 save_dir=$OUT_DIR/$1/seed-$2
  shift 2
  local updates_per_epoch=$(((ROWS + BATCH_SIZE - 1) / BATCH_SIZE))
  local total=$((updates_per_epoch * MAX_EPOCH)) fusion=(--head-fusion sum_fc --head-pooling "$head")
  [[ "$head" == cls ]] && fusion=(--head-fusion cls)
  local command=(
    fairseq-train "$OUT_DIR/data" --user-dir "$USER_DIR"
    --task sentence_prediction_mgcrp --criterion sentence_prediction_mgcrp "${ARCH_ARGS[@]}" "${fusion[@]}"
    --num-classes "$NUM_CLASSES" --classification-head-name "${TASK}_head"
    ${RESTORE_FILE:+--finetune-from-model "$RESTORE_FILE"}
    --batch-size "$BATCH_SIZE" --required-batch-size-multiple 1 --num-workers 0
    --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-06 --weight-decay 0.1 --clip-norm 0.0
    --lr-scheduler polynomial_decay --lr "$LR" --total-num-update "$total" --warmup-updates $((total * 6 / 100))
    --max-epoch "$MAX_EPOCH" --seed "$seed" --save-dir "$save_dir" --no-epoch-checkpoints
    --best-checkpoint-metric "$METRIC" --maximize-best-checkpoint-metric --no-progress-bar --log-format simple
    ${REGRESSION:+--regression-target} "$@"
  )
  mkdir -p "$save_dir"
  printf '%q ' "${command[@]}" | sed 's/ $/\n/' >"$save_dir/command.txt"
  say "$TASK, head $head, seed $seed"
  cat "$save_dir/command.txt"
  local status=0
  "${command[@]}" >"$save_dir/train.log" 2>&1 || status=$?
  if ((status)); then
    tail -n 3 "$save_dir/train.log" >&2
    echo "error: fairseq-train failed: $save_dir/train.log; see the lines above" >&2
    return "$status"
  fi
  grep -o "epoch [0-9]* | valid on .*" "$save_dir/train.log" || true
}

find_encoder
preprocess
for head in "${heads[@]}"; do
  for seed in "${seeds[@]}"; do train "$head" "$seed" "$@"; done
done
say "$TASK: dev results"
"$PYTHON" -m sot_fairseq.results "$OUT_DIR"
