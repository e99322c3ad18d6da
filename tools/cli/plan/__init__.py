"""Plan a run before it is paid for: memory, time, cost, interruptions, each with its error."""

from tools.cli._lazy_group import group

command = group(__name__)
