#!/usr/bin/env bash
# QQP: are the questions the same? 363,846 / 40,430 pairs, mean of accuracy and F1. Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=QQP
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
