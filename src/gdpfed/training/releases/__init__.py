"""How clipped updates become released sums: plain floats, secure integers, charged to a ledger."""
