#!/usr/bin/env bash
# STS-B: how alike are the sentences, from 0 to 5? 5,749 / 1,500 pairs, mean of Pearson's and Spearman's correlation.
# Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=STS-B
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
