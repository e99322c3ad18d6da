"""Secrets that cells refer to."""
