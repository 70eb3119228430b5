"""One round after another: sample, train, clip, noise, sum, sparsify, update."""
