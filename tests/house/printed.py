"""The commands that the pages print, and the test that runs each.

A command in a block marked `sh` must stand in exactly one of the tables below: a new one without a test fails
tests/house/test_docs.py. The tests of AS_PRINTED take their commands from here and run them literally.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from docs import generate

FENCE = re.compile(r"^(?P<mark>`{3,})(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=mark)$", re.MULTILINE | re.DOTALL)
KINDS = {"sh", "text", "yaml", "json", "mermaid"}
EXAMPLES = generate.COMMANDS  # its blocks are the examples of the help texts, which have a test of their own


@dataclass(frozen=True)
class Printed:
    """One command line of a page."""

    page: str
    line: str


def fences(page: Path) -> list[tuple[str, str]]:
    """Return kind and text of each fenced block of a page."""
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [(match["kind"], match["text"]) for match in found]


def lines(text: str) -> list[str]:
    """Return the commands of a block: continued lines joined, comments left out."""
    joined = re.sub(r"\\\n\s*", "", text)
    found = (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in joined.splitlines())
    return [line for line in found if line]


def printed(root: Path = generate.ROOT) -> list[Printed]:
    """Return the commands of all pages in the order in which a reader meets them."""
    pages = [page for page in generate.pages(root) if page != EXAMPLES]
    first = ("tutorials/first-run", "tutorials/fine-tune", "weights")
    order = [generate.README, *(f"{generate.DOCS}/{name}.md" for name in first)]
    pages.sort(key=lambda page: order.index(page) if page in order else len(order))
    return [
        Printed(page, line)
        for page in pages
        for kind, text in fences(root / page)
        if kind == "sh"
        for line in lines(text)
    ]


def run_by(test: str) -> list[str]:
    """Return the commands that a test of AS_PRINTED has to run, each once, in the order of the pages."""
    mine = AS_PRINTED[test]
    return [line for line in dict.fromkeys(command.line for command in printed()) if line in mine]


# Commands that a test runs literally.
AS_PRINTED: dict[str, tuple[str, ...]] = {
    "tests/e2e/test_front_door.py": (
        "make train",
        ".venv/bin/yard preflight -f job.yaml",
        ".venv/bin/yard wiring -f job.yaml",
        ".venv/bin/yard matrix memory p5/llama-3-1-8b",
        'make train ARGS="--set train.steps=400"',
        'make sample PROMPT="class Queue"',
        ".venv/bin/yard job plot local/runs/cpu-llama-tiny-train",
        ".venv/bin/yard checkpoint list cpu-llama-tiny-train",
        ".venv/bin/yard checkpoint export cpu-llama-tiny-train --to exported/llama-tiny",
        '.venv/bin/python -c "from transformers import pipeline; '
        "print(pipeline('text-generation', 'exported/llama-tiny')('import ')[0])\"",
        "make render",
        "make wiring",
        "make preflight",
        "make finetune",
        ".venv/bin/yard run cpu/llama-tiny-lora --show-example",
        ".venv/bin/yard checkpoint export cpu-llama-tiny-lora-train --merge --to exported/llama-tiny-tuned",
        '.venv/bin/python -c "from transformers import pipeline; '
        "print(pipeline('text-generation', 'exported/llama-tiny-tuned')('What')[0])\"",
        "mv local/runs/cpu-llama-tiny-lora-train local/runs/lora-python-help",
        ".venv/bin/yard run cpu/llama-tiny-lora --set data.source=chats.jsonl --show-example",
        ".venv/bin/yard run cpu/llama-tiny-lora --set data.source=chats.jsonl",
        ".venv/bin/yard matrix memory p5/llama-3-1-8b-lora",
        ".venv/bin/yard preflight overlays/p5/llama-3-1-8b-lora",
        ".venv/bin/yard checkpoint export cpu-llama-tiny-lora-train --to exported/llama-tiny-adapter",
        "mv local/runs/cpu-llama-tiny-train local/runs/llama-tiny-stdlib",
        ".venv/bin/yard run cpu/llama-tiny --set data.source=training --set train.steps=20 "
        "--set train.warmup_steps=5",
        '.venv/bin/yard sample llama-tiny-stdlib --prompt "class Queue"',
        ".venv/bin/yard run cpu/bert-tiny",
        ".venv/bin/yard matrix memory trn1/bert-large",
        ".venv/bin/yard render overlays/trn1/bert-large-phase2",
    ),
    "tests/aws/test_docs.py": (
        ".venv/bin/yard cluster capacity p5.48xlarge 4 --cluster gpu",
        ".venv/bin/yard cluster create cpu-demo --dry-run",
        "yard cluster whoami --region us-west-2",
        "yard cluster zones m5.2xlarge --region us-west-2",
        "yard cluster capacity m5.2xlarge 2 --cluster cpu-demo",
        "yard cluster config cpu-demo",
        "yard cluster create cpu-demo --dry-run",
        "yard cluster create cpu-demo",
        "yard cluster facts cpu-demo --write",
        "yard cluster kubeconfig cpu-demo",
        "yard cluster kubeconfig cpu-demo --use",
        "yard cluster access cpu-demo --dry-run",
        "yard cluster access cpu-demo",
        "yard cluster identity cpu-demo --simulate",
        "yard cluster identity cpu-demo --apply --irsa --dry-run",
        "yard cluster network cpu-demo",
        "yard cluster validate cpu-demo --fix",
        "yard cluster nodes",
        "yard cluster cost cpu-demo",
        "yard cluster scale cpu-demo cpu 2",
        "yard cluster down cpu-demo --dry-run",
        "yard cluster down cpu-demo --yes",
        "yard cluster down cpu-demo",
        "yard cluster capacity p5.48xlarge 4 --cluster gpu",
        "yard cluster stack gpu",
        "yard cluster facts gpu-hyperpod --hyperpod ml-cluster --write",
        "yard cluster config gpu-hyperpod",
        "yard cluster adopt gpu-hyperpod --dry-run",
        "yard cluster kubeconfig gpu-hyperpod --use",
        "yard cluster validate gpu-hyperpod",
        "yard cluster down gpu-hyperpod --dry-run",
        "yard cluster zones trn1.32xlarge --region us-west-2",
        "yard cluster capacity trn1.32xlarge 2 --cluster trn1",
        "yard cluster config trn1",
        "yard cluster create trn1",
        "yard cluster scale trn1 trn1 2",
        "yard cluster scale trn1 trn1 0",
        "yard cluster down trn1 --dry-run",
    ),
    "tests/cells/test_extending.py": (
        "yard matrix sync",
        "yard matrix check",
        "yard matrix memory g5/smollm-135m",
        "kubectl kustomize overlays/g5/smollm-135m",
        "yard matrix memory g6/llama-3-1-8b-lora",
        "kubectl kustomize overlays/g6/llama-3-1-8b-lora",
    ),
    "tests/cli/test_data.py": (
        '.venv/bin/yard data prepare "corpus/*.jsonl.gz" --vocab-size 4096',
        '.venv/bin/yard data prepare "https://host/part-{00..07}.jsonl.gz" --tokenizer corpus/tokenizer.json',
        ".venv/bin/yard data inspect --sequence-length 256",
        ".venv/bin/yard data verify",
        ".venv/bin/yard run cpu/llama-tiny --set data.stream={} "
        '--set "data.source=/shared/corpus/*.jsonl.gz"',
    ),
    "tests/gitops/test_docs.py": (
        "yard cluster run new overlays/cpu/llama-tiny --cluster cpu-demo --image REGISTRY/trainer-cpu@DIGEST",
        "yard cluster run list --cluster cpu-demo",
        "yard cluster run check",
    ),
    # `make -n`, and yard's own parser on what make would start.
    "tests/house/test_docs.py": (
        "make image",
        "make image-test",
        "make push TO=registry.example.com/team/trainer-cpu",
        "make push TO=123456789012.dkr.ecr.us-west-2.amazonaws.com/trainyard/trainer-cpu",
        "make image IMAGE=trainer-neuron",
        "make push IMAGE=trainer-neuron "
        "TO=123456789012.dkr.ecr.us-west-2.amazonaws.com/trainyard/trainer-neuron",
        'make job HW=cpu MODEL=llama-tiny ARGS="-n training"',
        'make job HW=p5 MODEL=llama-3-1-8b-lora ARGS="-n training"',
        "make job HW=trn1 MODEL=bert-large",
        "make job HW=trn1 MODEL=bert-large-phase2",
        "make precompile MODEL=bert-large",
        "make cluster CLUSTER=cpu-demo",
        "make down CLUSTER=cpu-demo",
        "yard render mine",
    ),
}

# Commands that a test runs with arguments of its own: another namespace, image, cluster or directory.
IN_OTHER_WORDS: dict[str, tuple[str, ...]] = {
    "tests/house/test_docs.py": (".venv/bin/python docs/generate.py", "make docs"),
    "tests/job/test_pages.py": (".venv/bin/yard job why", "yard job why -n training"),
    "tests/job/test_views.py": ("yard job why --save evidence/", "yard job why trn1-bert-large-train-graphs"),
    "tests/job/test_metrics.py": ("yard job plot -n training",),
    "tests/job/test_nccl_test.py": ("yard job nccl-test overlays/p5/llama-3-1-8b -n hyperpod-training",),
    "tests/cluster/test_job_submit.py": (
        "yard job submit cpu/llama-tiny -n training --dry-run",
        "yard job stop -n training --delete",
    ),
    "tests/cluster/test_job_nodes.py": (
        "yard job submit mine -n hyperpod-training",
        "yard job submit cpu/llama-tiny -n training --resume",
        "yard job status -n training --watch",
        "yard job logs -n training --follow",
        "yard job tensorboard -n training",
        "yard job stop -n training",
        "yard job cp cpu-llama-tiny-train report.json . -n training",
    ),
    "tests/preflight/test_command.py": ("yard preflight overlays/cpu/llama-tiny",),
    "tests/image/test_check.py": ("yard image check trainer-cpu",),
    "tests/image/test_fix.py": ("yard image fix .",),
    "tests/docker/test_images.py": (
        "yard image build trainer-cpu",
        "yard image test trainer-cpu",
        "yard image push trainer-cpu --to registry.example.com/team/trainer-cpu --pin",
    ),
    "tests/neuron/test_precompile.py": (
        "kubectl logs trn1-bert-large-train-graphs-worker-0 | .venv/bin/yard job metrics -",
    ),
    "tests/neuron/test_torchx.py": (
        'torchx run -s kubernetes -cfg queue=trainyard --workspace "" tools/cells/torchx.py:trn1_bert '
        "--name bertcompile --precompile True",
        'torchx run -s kubernetes -cfg queue=trainyard --workspace "" tools/cells/torchx.py:trn1_bert '
        "--name berttrain",
    ),
    "tests/training/weights/test_sharded_load.py": (
        "PYTHONPATH=. .venv/bin/torchrun --nproc-per-node=2 tests/training/weights/sharded_load.py "
        "/tmp/sharded-load",
    ),
    "tests/platform/test_plugins_and_storage.py": (
        "kubectl apply --server-side -k base/plugins/training-operator",
        "kubectl apply --server-side -n training -k base/storage/default-class",
    ),
    "tests/platform/test_facts.py": (
        "yard platform cpu-demo/plugins | kubectl apply --server-side -f -",
        "yard platform cpu-demo/storage | kubectl apply --server-side -f -",
        "yard platform gpu-hyperpod/plugins | kubectl apply --server-side -f -",
        "yard platform gpu-hyperpod/storage | kubectl apply --server-side -f -",
        "yard platform gpu-hyperpod/queues | kubectl apply --server-side -f -",
    ),
    "tests/aws/test_access.py": ("yard cluster identity cpu-demo --apply",),
    "tests/aws/test_create.py": ("yard cluster adopt gpu-hyperpod",),
    "tests/flux/world.py": ("kubectl apply --server-side -k clusters/cpu-demo", "git push"),
    "tests/flux/fleet.py": ("flux install", "flux get kustomizations --watch"),
    "tests/flux/test_runs.py": ("git rm clusters/cpu-demo/runs/cpu-llama-tiny-example.yaml",),
    "tests/flux/test_platform.py": (
        "age-keygen -o age.key",
        "kubectl create secret generic sops-age --namespace flux-system --from-file=age.agekey=age.key",
        "sops encrypt --in-place --age PUBLIC_KEY --encrypted-regex '^(data|stringData)$' "
        "clusters/cpu-demo/storage/token.yaml",
    ),
    "tests/gitops/conftest.py": ("git add clusters/cpu-demo/runs", 'git commit -m "A first run"'),
}

# Commands that no test runs, and why.
NOT_RUN: dict[str, str] = {
    "make test": "it is this very run",
    "git clone URL_OF_THIS_REPOSITORY trainyard && cd trainyard": "tests/e2e works in a copy instead",
    ".venv/bin/tensorboard --logdir local/runs": "it serves until Ctrl-C",
    '.venv/bin/python -c "from huggingface_hub import HfApi; '
    "print(HfApi().model_info('HuggingFaceTB/SmolLM-135M').sha)\"": "it asks the Hugging Face hub",
    'pip install -e ".[torchx]"': "tests/neuron/environment.py installs the same from its lock",
    "kubectl create namespace training": "kubectl's own",
    "kubectl label namespace training pod-security.kubernetes.io/enforce=restricted": "kubectl's own",
    "kubectl delete namespace training": "kubectl's own",
    "kubectl delete pvc -n training trainyard": "kubectl's own",
    "kubectl config set-context --current --namespace=training": "kubectl's own",
    "kubectl create secret generic hf-token --namespace training --from-file=token=token.txt": (
        "kubectl's own"
    ),
    "kubectl apply --server-side -n training -f upload.yaml": "test_docs.py checks the manifest",
    "kubectl wait -n training --for=condition=Ready pod/upload": "kubectl's own",
    "kubectl exec -n training upload -- mkdir -p /shared/finetune": "kubectl's own",
    "kubectl cp -n training chats.jsonl upload:/shared/finetune/chats.jsonl": "kubectl's own",
    "kubectl delete -n training pod/upload": "kubectl's own",
    "aws secretsmanager create-secret --name training/hf-token --secret-string file://token.txt": "AWS's own",
    "aws sagemaker start-cluster-health-check --cluster-name ml-cluster "
    "--deep-health-check-configurations InstanceGroupName=GROUP,DeepHealthChecks=InstanceStress": "AWS's own",
    "helm install kueue oci://registry.k8s.io/kueue/charts/kueue --version 0.19.2 -n kueue-system "
    "--create-namespace": "test_docs.py compares the version with the plugin's",
    "helm install volcano volcano --repo https://volcano-sh.github.io/helm-charts --version 1.15.1 "
    "-n volcano-system --create-namespace": "test_docs.py compares the version with the plugin's",
    "helm install aws-mountpoint-s3-csi-driver aws-mountpoint-s3-csi-driver "
    "--repo https://awslabs.github.io/mountpoint-s3-csi-driver --version 2.7.0 -n kube-system": (
        "test_docs.py compares the version with the plugin's"
    ),
    "helm install external-secrets oci://ghcr.io/external-secrets/charts/external-secrets --version 1.3.1 "
    "-n external-secrets --create-namespace": "test_docs.py compares the version with the plugin's",
}
