"""The task of tests/runs, which trains in a second."""

from tests.runs.conftest import tiny, tiny_file

__all__ = ["tiny", "tiny_file"]
