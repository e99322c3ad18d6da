#!/usr/bin/env python3
"""A stand-in for kubectl with prepared answers; tests/cluster uses the real one.

STAND_IN names a directory: objects.json holds objects by resource, <pod>.log a pod's log. A command in a
pod runs on this machine with the directory `volume` as its volume. Each question is added to asked.txt.
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
    if os.path.exists(f"{HOME}/gone"):
        print("The connection to the server 10.0.0.1 was lost: connection reset by peer", file=sys.stderr)
        return 1
    answers = {"get": get, "logs": logs, "exec": execute, "port-forward": forward, "api-resources": kinds}
    answers |= dict.fromkeys(("patch", "delete", "create"), change)
    if WORDS[0] not in answers:  # the real one renders cells
        os.environ["PATH"] = os.environ["PATH"].partition(os.pathsep)[2]
        os.execvp("kubectl", ["kubectl", *sys.argv[1:]])
    return answers[WORDS[0]](WORDS[1:])


def kinds(words: "list[str]") -> int:
    """Print the kinds that are served."""
    with open(f"{HOME}/objects.json") as file:
        print("\n".join([*json.load(file), *refused()]))
    if not os.path.exists(f"{HOME}/down"):
        return 0
    with open(f"{HOME}/down") as file:
        what = f"{file.read()}: the server is currently unable to handle the request"
    print(f"error: unable to retrieve the complete list of server APIs: {what}", file=sys.stderr)
    return 1


def refused() -> "list[str]":
    """The kinds that the user may not list."""
    if not os.path.exists(f"{HOME}/forbidden"):
        return []
    with open(f"{HOME}/forbidden") as file:
        return file.read().split()


def change(words: "list[str]") -> int:
    """End the pods, as a suspended job does. A deleted job goes too. Input is added to asked.txt."""
    with open(f"{HOME}/objects.json") as file:
        objects = json.load(file)
    objects["pods"] = []
    if WORDS[0] == "delete":
        objects[words[0]] = [one for one in objects[words[0]] if one["metadata"]["name"] != words[-1]]
    with open(f"{HOME}/objects.json", "w") as file:
        json.dump(objects, file)
    if "--filename=-" in words:
        with open(f"{HOME}/asked.txt", "a") as asked:
            asked.write(sys.stdin.read() + "\n")
    return 0


def get(words: "list[str]") -> int:
    """Print the objects of some kinds, or objects of one kind by name."""
    with open(f"{HOME}/objects.json") as file:
        objects = json.load(file)
    raw = [word.partition("?")[0].rpartition("/")[2] for word in words if word.startswith("--raw=")]
    kinds, *names = raw or [word for word in words if not word.startswith("-")]
    found = []
    for kind in kinds.split(","):
        if kind in refused() or (kind not in objects and f"{kind}s" not in objects):
            error = f'Error from server (Forbidden): {kind} is forbidden: User "a" cannot list'
            print(error, file=sys.stderr)
            return 1
        found += objects.get(kind, objects.get(f"{kind}s"))
    chosen = [one for one in found if not names or one["metadata"]["name"] in names]
    if any(word.startswith("--output=go-template") for word in words):
        for one in chosen:
            print("\n".join([one["metadata"]["name"], *one.get("data", {}), *one.get("binaryData", {})]))
    elif "--output=jsonpath={..image}" in words:
        print(*(one["spec"]["template"]["spec"]["containers"][0]["image"] for one in chosen))
    elif "--output=name" in words:
        print("\n".join(one["metadata"]["name"] for one in chosen))
    elif len(names) == 1 and "--ignore-not-found" not in words:
        print(json.dumps(chosen[0]))
    else:
        print(json.dumps({"kind": "List", "items": chosen}, separators=(",", ":")))
    return 0


def logs(words: "list[str]") -> int:
    """Print a pod's log."""
    pod = words[words.index("--") + 1]
    if not os.path.exists(f"{HOME}/{pod}.log"):
        error = f'Error from server (BadRequest): container in pod "{pod}" is waiting to start'
        print(error, file=sys.stderr)
        return 1
    previous = "--previous" in words and os.path.exists(f"{HOME}/{pod}.previous.log")
    with open(f"{HOME}/{pod}.{'previous.' if previous else ''}log") as file:
        for line in file.read().splitlines():
            print(line if "--timestamps" in words else line.partition(" ")[2])
    return 0


def forward(words: "list[str]") -> int:
    """Answer on the forwarded port as TensorBoard does; with `mute` fail."""
    import http.server

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data_location": "/shared/runs"}).encode())

    service, ports = words[-2:]
    if os.path.exists(f"{HOME}/mute"):
        print(f"error: {service}: no such service", file=sys.stderr)
        return 1
    http.server.HTTPServer(("127.0.0.1", int(ports.partition(":")[0])), Answer).serve_forever()
    return 0


def execute(words: "list[str]") -> int:
    """Run a command here. `break` holds the number of bytes after which the output ends, once."""
    end = words.index("--")
    if "exec" in refused():
        error = f'pods "{words[end - 1]}" is forbidden: User "a" cannot create resource "pods/exec"'
        print(f"Error from server (Forbidden): {error}", file=sys.stderr)
        return 1
    command = words[end + 1 :]
    environment = {**os.environ, "TRAINYARD_RUN": f"{HOME}/volume", "POD": words[end - 1]}
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
