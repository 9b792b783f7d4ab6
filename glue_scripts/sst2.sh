#!/usr/bin/env bash
# SST-2: is the review positive? 67,349 / 872 sentences in GLUE, accuracy. Variables: see common.sh.
# Learning rate, batch size and epochs: fairseq's GLUE recipe for RoBERTa (base and large).
# shellcheck disable=SC2034  # read by common.sh
TASK=SST-2 TASK_LR=1e-5 TASK_BATCH_SIZE=32 TASK_MAX_EPOCH=10
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
