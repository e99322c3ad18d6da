"""Say for each HOST:PORT whether its name resolves and its port answers: `python reach.py HOST[:PORT] ...`

Exit code 0 when all do, 1 when one does not, 2 for a bad argument. Only Python's own library is needed.
"""

from __future__ import annotations

import socket
import sys
import time

SECONDS = 3.0


def reach(target: str) -> tuple[bool, str]:
    """Return whether `target` (HOST or HOST:PORT) is reached, and one line that says how or why not."""
    host, _, port = target.rpartition(":") if ":" in target else (target, "", "")
    began = time.perf_counter()
    try:
        found = socket.getaddrinfo(host, int(port) if port else None, type=socket.SOCK_STREAM)
    except OSError as problem:
        return False, f"{target}: the name does not resolve ({problem.strerror or problem})"
    addresses = sorted({str(entry[4][0]) for entry in found})
    name = f"{target}: {', '.join(addresses)} in {1000 * (time.perf_counter() - began):.0f} ms"
    if not port:
        return True, name
    return _connect(found[0][4], f"{name}; port {port}")


def _connect(address: tuple, said: str) -> tuple[bool, str]:
    began = time.perf_counter()
    try:
        with socket.create_connection(address[:2], timeout=SECONDS):
            return True, f"{said} answers in {1000 * (time.perf_counter() - began):.0f} ms"
    except TimeoutError:
        return False, f"{said} says nothing for {SECONDS:.0f} s: a NetworkPolicy or security group drops it"
    except OSError as problem:
        return False, f"{said}: {problem.strerror or problem}: the pod is there and nobody listens"


def main(arguments: list[str]) -> int:
    """Print a line for each argument; return the exit code."""
    ports = [argument.rpartition(":")[2] for argument in arguments if ":" in argument]
    if not arguments or not all(port.isdigit() for port in ports):
        print(__doc__, file=sys.stderr)
        return 2
    answers = [reach(argument) for argument in arguments]
    for good, line in answers:
        print(f"{'good' if good else 'BAD '}  {line}", flush=True)
    return 0 if all(good for good, _ in answers) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
