"""All situations of the corpus: importing the families adds them."""

from tests.job.corpus import SITUATIONS
from tests.job.situations import (
    before,
    communication,
    ended,
    failing,
    healthy,
    machine,
    neighbours,
    nodes,
    passing,
    placing,
    queues,
    running,
    starting,
    unclear,
)

__all__ = [
    "SITUATIONS",
    "before",
    "communication",
    "ended",
    "failing",
    "healthy",
    "machine",
    "neighbours",
    "nodes",
    "passing",
    "placing",
    "queues",
    "running",
    "starting",
    "unclear",
]
