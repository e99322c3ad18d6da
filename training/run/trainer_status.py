"""Progress for `status.trainerStatus` of a TrainJob, where Kubeflow Trainer has its gate TrainJobStatus on.

Trainer (v2.3.0, plugins/trainjobstatus) then gives the pod an address, a file with its certificate, and a file with a
token that the kubelet renews. Without the address nothing is sent. Training never waits for an answer.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

URL = "KUBEFLOW_TRAINER_SERVER_URL"
CERTIFICATE, TOKEN = "KUBEFLOW_TRAINER_SERVER_CA_CERT", "KUBEFLOW_TRAINER_SERVER_TOKEN"
SECONDS = 5.0  # for one answer


class TrainerStatus:
    """Sends progress in a thread, one request at a time. `say` gets the first failure, and no other."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say: Callable[[str], None] | None = say
        self._url = os.environ.get(URL, "")
        self._thread: threading.Thread | None = None

    def send(self, step: int, steps: int, seconds_left: float, metrics: Mapping[str, float]) -> None:
        """Send what is done and left, unless the request before is still on its way."""
        if not self._url.startswith("https://") or (self._thread is not None and self._thread.is_alive()):
            return
        status = {
            "progressPercentage": 100 * step // steps,
            "estimatedRemainingSeconds": int(seconds_left),
            "metrics": [{"name": name, "value": f"{value:.6g}"} for name, value in metrics.items()],
            "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._thread = threading.Thread(target=self._post, args=({"trainerStatus": status},), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the last request, within its time."""
        if self._thread is not None:
            self._thread.join(SECONDS)

    def _post(self, body: Mapping[str, Any]) -> None:
        try:
            token = Path(os.environ[TOKEN]).read_text(encoding="utf-8").strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
            trusted = ssl.create_default_context(cafile=os.environ[CERTIFICATE])
            with urllib.request.urlopen(request, timeout=SECONDS, context=trusted) as answer:
                answer.read()
        except (OSError, KeyError, ValueError) as problem:
            if self._say is not None:
                self._say(f"Kubeflow Trainer does not take progress: {problem!r}; training continues")
                self._say = None
