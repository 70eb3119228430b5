"""The paper's experiments: a package of the repository, not of the wheel."""
