#!/usr/bin/env bash
# CoLA: is the sentence acceptable English? 8,551 / 1,043 sentences, Matthews correlation. Variables: see common.sh.
# shellcheck disable=SC2034  # read by common.sh
TASK=CoLA
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
