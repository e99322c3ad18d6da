"""Show which log-monitoring rule fires on a log, at which line and when, and what the agent does."""

from pathlib import Path
from typing import Any

from tools.cells import locate
from tools.core import output, worst
from tools.job import log_rules
from tools.job.diagnosis import log_files
from tools.kube.manifests import documents, text_of


def command(rules: str, log: str, as_json: bool) -> int:
    found, lines = log_rules.rules_of(_read(rules), rules), log_files.read(log).lines
    verdicts = log_rules.check(found, lines)
    output.verdicts(verdicts, as_json)
    return worst(one.state for one in verdicts).exit_code


def _read(rules: str) -> Any:
    """Return the HyperPodPyTorchJob of a cell or a manifest, or the only document of a file."""
    if not Path(rules).is_file():
        made = locate.rendered(rules).of_kind("HyperPodPyTorchJob")
        return made[0] if made else None
    found = documents(text_of(Path(rules), rules), rules)
    jobs = [one for one in found if isinstance(one, dict) and one.get("kind") == "HyperPodPyTorchJob"]
    return (jobs or found or [None])[0]
