"""Say for each HOST:PORT whether its name resolves and its port answers: `python reach.py HOST[:PORT] ...`

With --json as one JSON list. Exit code 0 when all do, 1 when one does not, 2 for a bad argument. Only
Python's own library is needed, of 3.10 or newer: `yard job debug` sends this file to a pod.
"""

from __future__ import annotations

import json
import socket
import sys
import time

SECONDS = 3.0


def reach(target: str) -> dict:
    """Return what is found on the way to `target` (HOST or HOST:PORT).

    `addresses` are what the name resolves to (empty: it does not), `port` is None where none was asked for.
    `state` is good, unresolved, silent (something drops it), refused (nobody listens) or unreachable; `line`
    says it in words.
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
        return "silent", f"says nothing for {SECONDS:.0f} s: a NetworkPolicy or security group drops it"
    except ConnectionRefusedError:
        return "refused", "refuses: the pod is there and nobody listens"
    except OSError as problem:
        return "unreachable", f"is not reached: {problem.strerror or problem}"


def main(arguments: list) -> int:
    """Print a line for each argument, or all as JSON; return the exit code."""
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
