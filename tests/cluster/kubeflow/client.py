"""What Kubeflow's SDK makes of our objects. It runs in an environment of its own (requirements.lock).

python client.py models < objects.json            read by kubeflow-trainer-api's models, and written again
python client.py job KUBECONFIG NAMESPACE JOB     a job in a cluster, as TrainerClient shows it
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kubeflow.trainer import KubernetesBackendConfig, TrainerClient  # type: ignore[import-not-found]
from kubeflow_trainer_api import models  # type: ignore[import-not-found]

MODELS = {"TrainJob": models.TrainerV1alpha1TrainJob, "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime}


def written_again(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each object as its model writes it."""
    return [MODELS[one["kind"]].from_dict(one).to_dict() for one in objects]


def told(kubeconfig: str, namespace: str, name: str) -> dict[str, Any]:
    """Return the job as TrainerClient shows it."""
    client = TrainerClient(KubernetesBackendConfig(namespace=namespace, config_file=kubeconfig))
    job = client.get_job(name)
    steps = {one.name: one.pod_name for one in job.steps}
    return {"status": job.status, "nodes": job.num_nodes, "steps": steps, "framework": job.runtime.trainer.framework}


if __name__ == "__main__":
    print(json.dumps(written_again(json.load(sys.stdin)) if sys.argv[1] == "models" else told(*sys.argv[2:])))
