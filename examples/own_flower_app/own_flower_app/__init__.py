"""The apps of this project."""
