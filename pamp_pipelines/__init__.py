"""Declarative pipelines for the full life of a language model."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pamp-pipelines")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
