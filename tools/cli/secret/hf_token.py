"""Create or update the Secret hf-token, with which pods download gated models."""

import os
import sys

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job.snapshot import lookup
from tools.kube import Kubectl
from tools.stage import hub_token

LONGEST = 4096


@_options.cluster
def command(kubectl: Kubectl, from_env: str | None, as_json: bool) -> None:
    token = hub_token.checked_form(_given(from_env))
    owner = hub_token.owner(token)
    here = lookup.in_namespace(kubectl)
    uid, version = hub_token.store(here, token)
    found = {"namespace": here.namespace, "secret": hub_token.NAME, "uid": uid, "version": version, "owner": owner}
    said = f"the hub says: the token of {owner}" if owner else "not checked: the hub did not answer"
    output.answer(found, [f"{here.namespace}/Secret/{hub_token.NAME} {uid}, version {version}", said], as_json)


def _given(variable: str | None) -> str:
    """Return the token from a variable, the terminal or standard input. Raises UserError."""
    if variable is not None:
        if variable not in os.environ:
            raise UserError(f"--from-env {variable}: there is no such variable")
        return os.environ[variable]
    if sys.stdin.isatty():
        return output.ask("token of the Hugging Face hub", hidden=True)
    return sys.stdin.read(LONGEST)
