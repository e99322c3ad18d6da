"""Runs in git: write one, list them with their state in the cluster, check them before a push."""

from tools.cli._lazy_group import group

command = group(__name__)
