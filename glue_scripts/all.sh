#!/usr/bin/env bash
# Several tasks one after the other, and one table of all of them, beside what the SoT authors report for the encoder.
#
#   [VARIABLE=value ...] bash glue_scripts/all.sh [extra arguments for fairseq-train]
#
#   TASKS     GLUE's names, e.g. "CoLA RTE"  [those of the nine that have a folder in GLUE_DIR; all if none has]
#   OUT_DIR   each task writes OUT_DIR/<task>  [out]
#
# The other variables are those of common.sh, and hold for every task. What is missing is downloaded before the first
# training. A task that fails does not stop the others: the table has those that did not, failed tasks are named at the
# end, and the exit status is then 1.
set -euo pipefail

known=(CoLA RTE SST-2 MNLI QNLI MRPC STS-B QQP WNLI)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

mistake() {
  echo "error: $*" >&2
  exit 2
}

GLUE_DIR=${GLUE_DIR:-glue_data}
mapfile -t tasks < <(grep -oE "[^[:space:]]+" <<<"${TASKS-}")  # words may stand on several lines
if [[ -z "${TASKS+set}" ]]; then
  for task in "${known[@]}"; do [[ -d "$GLUE_DIR/$task" ]] && tasks+=("$task"); done
  ((${#tasks[@]})) || tasks=("${known[@]}")
fi
((${#tasks[@]})) || mistake "TASKS is blank; give some of ${known[*]}"
for task in "${tasks[@]}"; do
  [[ " ${known[*]} " == *" $task "* ]] || mistake "TASKS=$task is not a task; give some of ${known[*]}"
done

# shellcheck disable=SC2034  # both are read by common.sh
TASK=all which=(--tasks "${tasks[@]}")
OUT_DIR=${OUT_DIR:-out}
# shellcheck source=common.sh
source "$here/common.sh" "$@"
