"""Try to break the promise: canary clients on the real path, and what an adversary can tell of them."""
