#!/usr/bin/env python3
"""Stands in for kubectl where what `yard` does with its answers is tested; the real one is in tests/cluster.

STAND_IN names a directory: objects.json holds objects by plural kind, <pod>.log what a pod has written, and
commands run here, in a directory that plays the pod's volume. What was asked is noted in asked.txt.
"""

import json
import os
import subprocess
import sys

HOME = os.environ["STAND_IN"]
WORDS = [word for word in sys.argv[1:] if not word.startswith(("--context", "--namespace", "--container"))]


def main() -> int:
    """Answer one command."""
    with open(f"{HOME}/asked.txt", "a") as asked:
        asked.write(" ".join(sys.argv[1:]) + "\n")
    answers = {"get": get, "logs": logs, "exec": execute, "port-forward": forward}
    if WORDS[0] not in answers:  # it renders cells too: that is the real one's
        os.environ["PATH"] = os.environ["PATH"].partition(os.pathsep)[2]
        os.execvp("kubectl", ["kubectl", *sys.argv[1:]])
    return answers[WORDS[0]](WORDS[1:])


def get(words: "list[str]") -> int:
    """Objects of some kinds, or some of one kind by name."""
    with open(f"{HOME}/objects.json") as file:
        objects = json.load(file)
    kinds, *names = [word for word in words if not word.startswith("-")]
    found = []
    for kind in kinds.split(","):
        if kind not in objects and f"{kind}s" not in objects:
            print(
                f'Error from server (Forbidden): {kind} is forbidden: User "a" cannot list', file=sys.stderr
            )
            return 1
        found += objects.get(kind, objects.get(f"{kind}s"))
    chosen = [one for one in found if not names or one["metadata"]["name"] in names]
    if "--output=name" in words:
        print("\n".join(one["metadata"]["name"] for one in chosen))
    elif len(names) == 1 and "--ignore-not-found" not in words:
        print(json.dumps(chosen[0]))
    else:
        print(json.dumps({"kind": "List", "items": chosen}))
    return 0


def logs(words: "list[str]") -> int:
    """A pod's log."""
    if not os.path.exists(f"{HOME}/{words[0]}.log"):
        print(
            f'Error from server (BadRequest): container in pod "{words[0]}" is waiting to start',
            file=sys.stderr,
        )
        return 1
    before = (
        "previous." if "--previous" in words and os.path.exists(f"{HOME}/{words[0]}.previous.log") else ""
    )
    with open(f"{HOME}/{words[0]}.{before}log") as file:
        for line in file.read().splitlines():
            print(line if "--timestamps" in words else line.partition(" ")[2])
    return 0


def forward(words: "list[str]") -> int:
    """A port-forward: what answers on this side is what TensorBoard would say; with `mute` nobody does."""
    import http.server

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data_location": "/shared/runs"}).encode())

    service, ports = words[-2:]
    if os.path.exists(f"{HOME}/mute"):
        print(f"error: {service}: nobody there", file=sys.stderr)
        return 1
    http.server.HTTPServer(("127.0.0.1", int(ports.partition(":")[0])), Answer).serve_forever()
    return 0


def execute(words: "list[str]") -> int:
    """A command in the pod: it runs here. `break` holds how many bytes of its output come through, once."""
    command = words[words.index("--") + 1 :]
    environment = {**os.environ, "TRAINYARD_RUN": f"{HOME}/volume", "POD": words[0]}
    if not os.path.exists(f"{HOME}/break"):
        done = subprocess.run(command, env=environment)
    else:
        with open(f"{HOME}/break") as file:
            most = int(file.read())
        os.unlink(f"{HOME}/break")
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
        sys.stdout.buffer.write(done.stdout[:most])
        return 0
    if done.returncode:
        print(f"command terminated with exit code {done.returncode}", file=sys.stderr)
    return done.returncode


sys.exit(main())
