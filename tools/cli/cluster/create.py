"""Create a cluster with eksctl from its eksctl.yaml, or continue where an earlier run stopped."""

from tools.aws import Session, principals
from tools.cli.cluster import _options
from tools.cluster import Spec, create, eksctl, steps
from tools.core import UserError, output, repo


@_options.cluster_and_account
def command(spec: Spec, session: Session, dry_run: bool, as_json: bool) -> None:
    if spec.adopted:
        hint = f"use yard cluster adopt {spec.title}"
        raise UserError(f"{spec.source}: ADOPTED=true: not created by trainyard", hint)
    execute(spec, session, dry_run, as_json)


def execute(spec: Spec, session: Session, dry_run: bool, as_json: bool) -> None:
    """Run the remaining commands for a cluster, and print its state in AWS."""
    path = spec.directory / eksctl.FILE
    if not path.is_file() or path.read_text(encoding="utf-8") != eksctl.text(spec):
        hint = f"yard cluster config {spec.title}"
        raise UserError(f"{repo.shown(path)} is out of date", hint)
    exists = create.check(session, spec)
    todo = create.steps(spec, exists)
    words = [" ".join(step.words) for step in todo]
    if dry_run:
        output.answer({"commands": words, "proof": []}, words, as_json)
        return
    with output.activity(f"creating {spec.title}", every=0.0, fraction=output.BRACKETS) as now:
        if exists:
            create.settle(session, spec, now.at)
        for number, step in enumerate(todo, start=1):
            now.at(f"[{number}/{len(todo)}] {step.title}", number - 1, len(todo))
            if step.words[0] == "yard":
                create.proof(session, spec)  # roles belong to a cluster that is there
            hint = f"{create.AGAIN}; yard cluster down {spec.title} deletes the cluster"
            steps.run(step, hint, now.at)
    proof = create.proof(session, spec)
    output.answer({"commands": words, "proof": proof}, proof, as_json)
    creator = principals.caller(session).arn
    if not exists and creator != spec.get("ADMIN_ROLE_ARN"):
        output.note(f"{creator} created the cluster and stays its administrator. To end that:")
        output.note(f"  aws eks delete-access-entry --cluster-name {spec.name} --principal-arn {creator}")
    output.note(f"next: yard cluster kubeconfig {spec.title}")
