#!/usr/bin/env bash
# RTE: does the first sentence entail the second? 2,490 / 277 pairs, accuracy. Variables: see common.sh.
# Learning rate, batch size and epochs: fairseq's GLUE recipe for RoBERTa (base and large).
# shellcheck disable=SC2034  # read by common.sh
TASK=RTE TASK_LR=2e-5 TASK_BATCH_SIZE=16 TASK_MAX_EPOCH=10
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
