#!/usr/bin/env bash
# QNLI: does the sentence hold the answer to the question? 104,743 / 5,463 pairs, accuracy. Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=QNLI
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
