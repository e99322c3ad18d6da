"""Runs in git: write one, list them with their state in the cluster, check them before a push.

\b
Examples:
  yard cluster run new overlays/cpu/llama-tiny --cluster cpu-demo --image REGISTRY/trainer-cpu@sha256:...
  yard cluster run list --cluster cpu-demo
  yard cluster run check

\b
A run is one file in clusters/<name>/runs, from which Flux creates a job (docs/flux.md).
"""

from tools.cli._lazy_group import group

command = group(__name__, __doc__)
