"""The package behind the `yard` command."""

__version__ = "0.1.0"
