#!/usr/bin/env bash
# SST-2: is the review positive? 67,349 / 872 sentences in GLUE, accuracy. Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=SST-2
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
