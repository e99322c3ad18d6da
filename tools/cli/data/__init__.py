"""Prepare, inspect and verify token shards."""

from tools.cli._lazy_group import group

command = group(__name__)
