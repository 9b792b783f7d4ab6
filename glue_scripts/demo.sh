#!/usr/bin/env bash
# The toolkit in ten minutes on two CPU cores: a real pretrained encoder (MiniLM, from a Python package), a small corpus
# of acceptable and unacceptable sentences (demo_corpus), the MGCrP head against the CLS head, with the encoder frozen and
# fine-tuned, three seeds each. Writes out/demo; OUT_DIR is another place. Run by `make demo`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT_DIR:-out/demo}
export GLUE_DIR=$here/demo_corpus ENCODER=minilm HEAD="mgcrp cls" SEEDS="1 2 3" BATCH_SIZE=32 OMP_NUM_THREADS=1

OUT_DIR=$out/frozen LR=1e-3 MAX_EPOCH=4 bash "$here/cola.sh" --cpu --freeze-backbone &
frozen=$!
OUT_DIR=$out/fine-tuned LR=1e-4 MAX_EPOCH=1 bash "$here/cola.sh" --cpu || { kill "$frozen"; exit 1; }
wait "$frozen"
printf '\n== dev results: encoder frozen and fine-tuned\n'
"${PYTHON:-python}" -m sot_fairseq.results --saved "$out/frozen" "$out/fine-tuned"
