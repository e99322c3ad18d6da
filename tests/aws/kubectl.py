"""Stands in for kubectl in the tests of `validate` and `nodes`. tests/cluster uses the real one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from subprocess import CompletedProcess
from typing import Any

import pytest

from tools.cluster import isolation
from tools.kube.kubectl import Kubectl

Object = dict[str, Any]
WEBHOOK = 'failed calling webhook "validator.kubeflow.org": no endpoints available for service'


class Refused(Exception):
    """An error message of kubectl."""


@dataclass
class World:
    """Objects by kind, which commands change, and the faults of the cluster."""

    objects: dict[str, list[Object]]
    refused: list[str] = field(default_factory=list)  # verbs
    hidden: list[str] = field(default_factory=list)  # kinds
    webhook_fails: int = 0  # the number of dry runs that fail
    apply_webhook_fails: int = 0
    stubborn: bool = False  # a patch is accepted without effect

    def install(self, monkeypatch: pytest.MonkeyPatch) -> World:
        """Replace kubectl for all of `tools`."""

        real = Kubectl.run

        def run(asked: Kubectl, *words: str, stdin: str | None = None, **_: Any) -> CompletedProcess[str]:
            if words[0] == "config":  # needs no cluster
                return real(asked, *words)
            verb = {"get": self._get, "create": self._create, "apply": self._apply, "patch": self._patch}
            try:
                return CompletedProcess(words, 0, verb[words[0]](words, stdin or ""), "")
            except Refused as problem:
                return CompletedProcess(words, 1, "", f"Error from server {problem}")

        monkeypatch.setattr(Kubectl, "run", run)
        # Pods that try ports are tried in tests/cluster and tests/security.
        monkeypatch.setattr(isolation, "probe", lambda *_: isolation.judge([isolation.OPEN]))
        return self

    def _get(self, words: tuple[str, ...], stdin: str) -> str:
        last = words[1].partition("?")[0].rpartition("/")[2]  # of `--raw=/api/v1/pods` too
        known = (one for one in (*self.hidden, *self.objects) if one.partition(".")[0] == last)
        kind = next(known, last) if words[1].startswith("--raw") else last
        if kind in self.hidden:
            raise Refused(f'(Forbidden): {kind} is forbidden: User "a" cannot list')
        return json.dumps({"kind": "List", "items": self.objects.get(kind, [])}, separators=(",", ":"))

    def _create(self, words: tuple[str, ...], stdin: str) -> str:
        """Answer access reviews, or a dry run of a job through a webhook that may be down."""
        if "--dry-run=server" not in words:
            asked = [one["spec"]["resourceAttributes"]["verb"] for one in json.loads(stdin)["items"]]
            return "".join(f"{'false' if verb in self.refused else 'true'}\n" for verb in asked)
        if self.webhook_fails:
            self.webhook_fails -= 1
            raise Refused(f"(InternalError): error when creating: Internal error occurred: {WEBHOOK}")
        return "pytorchjob.kubeflow.org/trainyard-validate created (server dry run)\n"

    def _apply(self, words: tuple[str, ...], stdin: str) -> str:
        if self.apply_webhook_fails:
            self.apply_webhook_fails -= 1
            raise Refused("(InternalError): failed calling webhook")
        if "apply" in self.refused:
            raise Refused("(Forbidden): namespaces is forbidden")
        name = re.search(r"(?m)^  name: (\S+)$", stdin)
        assert name is not None, stdin
        self.objects["namespaces"].append({"metadata": {"name": name[1]}})
        return ""

    def _patch(self, words: tuple[str, ...], stdin: str) -> str:
        if not self.stubborn:
            change = next(word for word in words if word.startswith("--patch=")).partition("=")[2]
            self.objects["csidrivers"][0]["spec"].update(json.loads(change)["spec"])
        return ""
