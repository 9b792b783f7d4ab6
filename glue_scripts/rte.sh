#!/usr/bin/env bash
# RTE: does the first sentence entail the second? 2,490 / 277 pairs, accuracy. Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=RTE
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
