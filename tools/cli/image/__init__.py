"""Check, repair, build, test, push and pin container images.

\b
Examples:
  yard image check trainer-cuda
  yard image check docker/Dockerfile --context .
"""

from tools.cli._lazy_group import group

command = group(__name__, __doc__)
