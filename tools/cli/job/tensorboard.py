"""Start TensorBoard of runs here, or on the volume of a job's runs, and serve it on this machine until Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Mapping

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job import runs, tensorboard
from tools.job.snapshot import collect, lookup
from tools.kube import Kubectl


@_options.cluster
def command(
    kubectl: Kubectl, names: tuple[str, ...], port: int, expose: bool, stop: bool, no_forward: bool, as_json: bool
) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what serves too
    if local := [path for name in names for path in runs.local(name) or []]:
        traces = tensorboard.traces(local)
        for path in traces:
            output.note(f"profiler trace: {path}, for https://ui.perfetto.dev")
        with tensorboard.on_this_machine(local, port, output.note) as answer:
            shown = {"runs": [path.name for path in local], "traces": [str(path) for path in traces]}
            _serve(answer, shown, "Ctrl-C ends it", as_json)
        return
    if len(names) > 1:
        raise UserError(
            f"{len(names)} names, and none is a run on this machine", "one job shows all runs of its volume"
        )
    job = names[0] if names else None
    here = lookup.in_namespace(kubectl)
    if stop:
        _stop(here, as_json)
        return
    found = collect.find(here, job, logs=False, run=False)[1].workload
    if expose:
        tensorboard.require_secrets(here)
    applied = tensorboard.start(here, tensorboard.manifests(found, expose), output.note)
    facts = {"namespace": here.namespace, "objects": [vars(one) for one in applied]}
    for one in [] if as_json else applied:
        output.line(f"{here.namespace}/{one}")
    if expose:
        url = f"https://{tensorboard.NAME}.{here.namespace}.svc:{tensorboard.HTTPS}"
        output.note(f"in the cluster: {url}, with a name and a password of tensorboard-login")
    if no_forward:
        words = " ".join(here.words("port-forward", f"service/{tensorboard.NAME}", f"{port}:{tensorboard.PORT}"))
        output.answer({**facts, "next": words}, [f"next: {words}"], as_json)
        return
    with tensorboard.forwarded(here, port, output.note) as answer:
        _serve(answer, facts, "Ctrl-C closes it, --stop removes it", as_json)


def _serve(answer: tuple[str, str], facts: Mapping[str, object], ends: str, as_json: bool) -> None:
    """Tell the URL, and wait for a signal."""
    url, directory = answer
    output.answer({**facts, "url": url, "reads": directory}, [f"{url} (reads {directory}); {ends}"], as_json)
    threading.Event().wait()


def _stop(kubectl: Kubectl, as_json: bool) -> None:
    gone = tensorboard.stop(kubectl)
    lines = [f"removed: {kubectl.namespace}/{one}" for one in gone]
    lines = lines or [f"there is no {tensorboard.NAME} in namespace {kubectl.namespace}"]
    output.answer({"namespace": kubectl.namespace, "removed": gone}, lines, as_json)
