"""One round after another: sample, train, clip, noise, sum, sparsify, update."""

import os

# MKL's matrix products may differ in the last bit with the alignment of their operands, so with a client's place in its
# chunk. This setting takes that away, at no cost that we could measure. It must be made before MKL's first call.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
