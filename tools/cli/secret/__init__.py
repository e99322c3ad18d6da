"""Secrets that cells refer to."""

from tools.cli._lazy_group import group

command = group(__name__)
