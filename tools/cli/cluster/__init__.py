"""Create, check, scale, price and delete clusters on AWS."""

from tools.cli._lazy_group import group

command = group(__name__)
