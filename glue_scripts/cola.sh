#!/usr/bin/env bash
# CoLA: is the sentence acceptable English? 8,551 / 1,043 sentences, Matthews correlation. Variables: see common.sh.
# Learning rate, batch size and epochs: fairseq's GLUE recipe for RoBERTa (base and large).
# shellcheck disable=SC2034  # read by common.sh
TASK=CoLA TASK_LR=1e-5 TASK_BATCH_SIZE=16 TASK_MAX_EPOCH=10
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
