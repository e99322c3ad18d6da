"""The token of the Hugging Face hub, as the Secret that cells refer to."""

import base64
import json
import os
import re

import httpx2

from tools.core import UserError
from tools.kube import Kubectl
from tools.kube.kubectl import failure

NAME, KEY = "hf-token", "token"
SECONDS = 10.0
_FORM = re.compile(r"[\x21-\x7e]{8,1024}")


def checked_form(text: str) -> str:
    """Return the token without white space around it. Raises UserError, which does not show it."""
    token = text.strip()
    if not _FORM.fullmatch(token):
        found = "empty" if not token else f"{len(token)} characters, or some that no token has"
        raise UserError(f"this is not a token ({found})", "https://huggingface.co/settings/tokens")
    return token


def owner(token: str) -> str | None:
    """Return the name of the token's owner on the hub, None if the hub does not answer.

    Raises UserError (1) if the hub refuses the token.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        answer = httpx2.get(
            f"{endpoint.rstrip('/')}/api/whoami-v2", headers={"Authorization": f"Bearer {token}"}, timeout=SECONDS
        )
        if answer.status_code == 200:
            return str(answer.json()["name"])
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError):
        return None
    if answer.status_code in (401, 403):
        hint = "make one at https://huggingface.co/settings/tokens"
        raise UserError(f"{endpoint} refuses this token ({answer.status_code}): nothing was stored", hint, 1)
    return None


def store(kubectl: Kubectl, token: str) -> tuple[str, str]:
    """Create or update the Secret, and return its UID and version. Raises UserError."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": "trainyard"}},
        "type": "Opaque",
        "data": {KEY: base64.b64encode(token.encode()).decode()},
    }
    words = ("apply", "--server-side", "--filename=-", "--output=json")
    done = kubectl.run(*words, stdin=json.dumps(secret))
    if done.returncode != 0:
        problem = failure("apply", done.stderr)
        hint = problem.hint
        if "orbidden" in done.stderr:
            hint = "an administrator or External Secrets (base/plugins/external-secrets) creates it for the team"
        elif "conflict" in done.stderr:
            hint = "another manager, such as External Secrets, owns it: change the token there"
        raise UserError(problem.message, hint, 1 if problem.code == 2 else problem.code)
    metadata = json.loads(done.stdout)["metadata"]
    return str(metadata["uid"]), str(metadata["resourceVersion"])
