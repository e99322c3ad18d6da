#!/usr/bin/env python3
"""Stands in for kubectl where `yard cluster validate` and `nodes` are tested, over a world in one JSON file.

WORLD is the file: objects by kind, verbs that are refused, kinds that are hidden, how often the webhook still
fails. What changes the world (apply, patch) is written back.
"""

import json
import os
import sys

PATH = os.environ["WORLD"]


def main(words: "list[str]") -> int:
    """Answer one command."""
    with open(PATH) as file:
        world = json.load(file)
    words = [word for word in words if not word.startswith(("--context", "--namespace"))]
    code = {"get": get, "auth": auth, "create": create, "apply": apply, "patch": patch}[words[0]](
        world, words
    )
    with open(PATH, "w") as file:
        json.dump(world, file)
    return code


def get(world: dict, words: "list[str]") -> int:
    """All objects of a kind."""
    kind = words[1]
    if kind in world.get("hidden", []):
        print(f'Error from server (Forbidden): {kind} is forbidden: User "a" cannot list', file=sys.stderr)
        return 1
    print(json.dumps({"kind": "List", "items": world["objects"].get(kind, [])}))
    return 0


def auth(world: dict, words: "list[str]") -> int:
    """An access review."""
    refused = words[2] in world.get("refused", [])
    print("no" if refused else "yes")
    return 1 if refused else 0


def create(world: dict, words: "list[str]") -> int:
    """A dry run of a job, through a webhook that may not be up yet."""
    if world.get("webhook_fails", 0):
        world["webhook_fails"] -= 1
        text = 'failed calling webhook "validator.kubeflow.org": no endpoints available for service'
        print(
            f"Error from server (InternalError): error when creating: Internal error occurred: {text}",
            file=sys.stderr,
        )
        return 1
    print("pytorchjob.kubeflow.org/trainyard-validate created (server dry run)")
    return 0


def apply(world: dict, words: "list[str]") -> int:
    """Make a namespace."""
    if world.get("apply_webhook_fails", 0):
        world["apply_webhook_fails"] -= 1
        print("Error from server (InternalError): failed calling webhook", file=sys.stderr)
        return 1
    if "apply" in world.get("refused", []):
        print("Error from server (Forbidden): namespaces is forbidden", file=sys.stderr)
        return 1
    world["objects"]["namespaces"].append(json.load(sys.stdin))
    return 0


def patch(world: dict, words: "list[str]") -> int:
    """Merge into a CSI driver; a world that is stubborn takes it and stays as it was."""
    if not world.get("stubborn"):
        change = next(word for word in words if word.startswith("--patch=")).partition("=")[2]
        world["objects"]["csidrivers"][0]["spec"].update(json.loads(change)["spec"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
