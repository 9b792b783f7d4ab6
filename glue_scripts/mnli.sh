#!/usr/bin/env bash
# MNLI: entailment, neutral or contradiction? 392,702 pairs, accuracy on 9,815 matched and 9,832 mismatched ones;
# the matched ones pick the best checkpoint. Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=MNLI
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
