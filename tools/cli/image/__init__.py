"""Check, repair, build, test, push and pin container images."""

from tools.cli._lazy_group import group

command = group(__name__)
