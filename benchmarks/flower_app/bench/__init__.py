"""The apps of benchmarks/deployment.py: the same vector by three ways."""
