#!/usr/bin/env bash
# WNLI: does the sentence with the pronoun replaced follow? 635 / 71 pairs, accuracy. Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=WNLI
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
