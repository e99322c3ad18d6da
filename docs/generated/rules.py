"""The rules for manifests and Dockerfiles, and the releases that they know."""

from __future__ import annotations

from docs.generated.markdown import escaped, head
from tools.core.rules import PRACTICE, Rule
from tools.facts import compatibility
from tools.image.rules.rule import rule as dockerfile_rules
from tools.preflight.rule import rule as preflight_rules


def preflight_page() -> str:
    """Return docs/preflight.md."""
    rules = list(preflight_rules.all.values())
    listed = [f"| [{rule.id}](#{rule.id}) | {rule.question.value} | {_fault(rule)} | {rule.why} |" for rule in rules]
    sections = [f"## {rule.id}\n\nWhy: {rule.why}.\n\n{rule.page}\n" for rule in rules]
    return head("preflight") + "\n".join([*listed, "", *sections])


def _fault(rule: Rule) -> str:
    warns = " or WARN" if "warning" in rule.page else ""
    return "WARN" if rule.question is PRACTICE else f"FAIL{warns}"


def image_rules() -> str:
    """Return the rules for Dockerfiles, with what each checks."""
    lines = ["| rule | checks | why |", "|---|---|---|"]
    for rule in dockerfile_rules.all.values():
        checks = " ".join(rule.page.partition("\n\n")[0].split())
        lines.append(f"| {rule.id} | {escaped(checks)} | {escaped(rule.why)} |")
    return "\n".join(lines) + "\n"


def torch_table() -> str:
    """Return the known releases of torch with what goes with each."""
    lines = [
        "| torch | CUDA of the default wheel | other builds | NCCL | torchvision | Python |",
        "|---|---|---|---|---|---|",
    ]
    for row in compatibility.TORCH.values():
        others = ", ".join(row.other_cuda) or "-"
        vision = compatibility.torchvision_of(f"{row.series}.0")
        python = " to ".join(row.python)
        lines.append(f"| {row.series} | {row.cuda} | {others} | {row.nccl} | {vision} | {python} |")
    return "\n".join(lines) + "\n"
