"""Write a new Component."""

from tools.cli._lazy_group import group

command = group(__name__)
