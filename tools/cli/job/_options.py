"""The options that several `yard job` commands have."""

from typing import Any

from tools.cli._parameters import shared
from tools.kube import Kubectl


@shared
def cluster(namespace: str | None, context: str | None) -> dict[str, Any]:
    return {"kubectl": Kubectl(context, namespace)}
