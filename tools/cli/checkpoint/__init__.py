"""List, show, verify and export a run's checkpoints."""

from tools.cli._lazy_group import group

command = group(__name__)
