"""How clients are trained: the fast path, and where it runs."""
