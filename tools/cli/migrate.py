"""Turn a PyTorchJob into a TrainJob of Kubeflow Trainer, with the proof that it is still one world."""

from tools.core import State, output
from tools.kube.manifests import read, written
from tools.new.trainjob import migrate
from tools.simulator import wiring, wiring_proof


def command(file: str, timeout: float, as_json: bool) -> int:
    made = migrate(read(file))
    verdict = wiring_proof.prove(wiring.analyse(made.job), None, None, timeout)
    if as_json:
        output.data({**verdict.as_dict(), "differences": made.said, "objects": made.manifests.objects}, raw=True)
    else:
        for text in made.said:
            output.note(text)
        if verdict.state is not State.FAIL:
            output.block(written(made.manifests.objects), raw=True)
        output.note(f"{verdict.state.value}: {verdict.summary}")
        output.notes("\n".join(f"  {line}" for line in verdict.evidence))
    return verdict.state.exit_code
