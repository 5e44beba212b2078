"""Errors that a user can fix. Every message says what is wrong, what is allowed and what to do.

All derive from `KernelseedError`, and each also from the built-in error that people catch. The command prints them as
one line; any other exception is a bug in this library and shows its traceback.
"""

from __future__ import annotations


class KernelseedError(Exception):
    """The base class of all errors that a user can fix."""


class ArgumentError(KernelseedError, ValueError):
    """An argument with a value that is not allowed."""


class ArgumentTypeError(KernelseedError, TypeError):
    """An argument of a type that is not allowed."""


class ConfigError(ArgumentError):
    """A training setting that is not allowed."""


class NonFiniteError(KernelseedError, FloatingPointError):
    """A loss or a gradient that is NaN or infinite."""


class NonFiniteOutputError(ArgumentError, NonFiniteError):
    """A network's output that is NaN or infinite: its input was, or its training has left the finite numbers."""


class DataError(KernelseedError, ValueError):
    """Data that is missing, damaged or of the wrong form."""


class StorageError(KernelseedError, OSError):
    """A file that can't be read or written."""


class StoppedError(KernelseedError, RuntimeError):
    """A training that stopped before its end for a reason outside of it; it can be resumed."""


class PathExistsError(StorageError, FileExistsError):
    """A file or folder that exists where a new one would be written."""


class MissingPackageError(KernelseedError, ImportError):
    """An optional package that is not installed."""


class GraphError(KernelseedError, RuntimeError):
    """A use of the autograd graph for which gradients can't be computed."""
