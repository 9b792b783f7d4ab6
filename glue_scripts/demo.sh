#!/usr/bin/env bash
# The toolkit in ten minutes on two CPU cores: a real pretrained encoder (MiniLM, from a Python package), a small corpus
# of acceptable and unacceptable sentences (demo_corpus), the MGCrP head against the CLS head, with the encoder frozen and
# fine-tuned side by side, three seeds each. Writes out/demo; OUT_DIR is another place. Run by `make demo`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export GLUE_DIR=$here/demo_corpus ENCODER=minilm HEAD="mgcrp cls" SEEDS="1 2 3" BATCH_SIZE=32 OMP_NUM_THREADS=1
exec "${PYTHON:-python}" "$here/demo.py"
