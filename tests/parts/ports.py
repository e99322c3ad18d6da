"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 20_000


def free_port() -> int:
    """Return a port on which nothing listens, and which no outgoing connection takes before the server is up.

    The kernel gives outgoing connections random ports of a range of its own, so a port that it gave to a probe may be
    taken again at once.
    """
    end = int(OUTGOING.read_text().split()[0]) if OUTGOING.exists() else 32_768
    draw = random.SystemRandom()
    for _ in range(100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", draw.randrange(LOWEST, end) if end > LOWEST else 0))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError(f"no port between {LOWEST} and {end} is free")
