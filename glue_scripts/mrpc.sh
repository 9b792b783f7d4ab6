#!/usr/bin/env bash
# MRPC: do the sentences mean the same? 3,668 / 408 pairs, mean of accuracy and F1. Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=MRPC
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
