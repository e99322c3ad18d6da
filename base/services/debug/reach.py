"""Check that names resolve and ports answer: `python reach.py HOST[:PORT] ...`

--json prints one JSON list. Exit codes: 0 all are good, 1 one is not, 2 wrong arguments. This needs only the
standard library of Python 3.10 or newer, because `yard job debug` sends this file to a pod.
"""

from __future__ import annotations

import json
import socket
import sys
import time

SECONDS = 3.0


def reach(target: str) -> dict:
    """Check `target` (HOST or HOST:PORT).

    `addresses` is empty if the name does not resolve. `port` is None if none was given. `state` is good,
    unresolved, silent (no answer), refused (no process listens) or unreachable. `line` describes the result.
    """
    host, _, port = target.rpartition(":") if ":" in target else (target, "", "")
    found = {"target": target, "addresses": [], "port": int(port) if port else None, "state": "good"}
    began = time.perf_counter()
    try:
        entries = socket.getaddrinfo(host, int(port) if port else None, type=socket.SOCK_STREAM)
    except OSError as problem:
        line = f"{target}: the name does not resolve ({problem.strerror or problem})"
        return {**found, "state": "unresolved", "line": line}
    found["addresses"] = sorted({str(entry[4][0]) for entry in entries})
    line = f"{target}: {', '.join(found['addresses'])} in {1000 * (time.perf_counter() - began):.0f} ms"
    if port:
        found["state"], how = _connect(entries[0][4])
        line = f"{line}; port {port} {how}"
    return {**found, "line": line}


def _connect(address: tuple) -> tuple:
    began = time.perf_counter()
    try:
        with socket.create_connection(address[:2], timeout=SECONDS):
            return "good", f"answers in {1000 * (time.perf_counter() - began):.0f} ms"
    except TimeoutError:
        return "silent", f"no answer for {SECONDS:.0f} s: a NetworkPolicy or security group drops the packets"
    except ConnectionRefusedError:
        return "refused", "refused: the pod is running, but no process listens"
    except OSError as problem:
        return "unreachable", f"unreachable: {problem.strerror or problem}"


def main(arguments: list) -> int:
    """Print a line for each argument, or all as JSON. Return the exit code."""
    as_json, targets = "--json" in arguments, [word for word in arguments if word != "--json"]
    ports = [target.rpartition(":")[2] for target in targets if ":" in target]
    if not targets or not all(port.isdigit() for port in ports):
        print(__doc__, file=sys.stderr)
        return 2
    found = []
    for target in targets:
        found.append(reach(target))
        if not as_json:
            good = found[-1]["state"] == "good"
            print(f"{'good' if good else 'BAD '}  {found[-1]['line']}", flush=True)
    if as_json:
        print(json.dumps(found))
    return 0 if all(one["state"] == "good" for one in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
