"""A walkthrough's cell: two g5.8xlarge, DeepSeek-R1-Distill-Qwen-1.5B, 1,000 rows of Alpaca."""

from __future__ import annotations

from tools.cells.kustomize import rendered
from tools.core import repo
from training.config import load_texts

CELL = "overlays/g5/deepseek-r1-distill-qwen-1-5b-alpaca"


def test_the_cell_renders_two_machines_and_the_walkthroughs_values() -> None:
    documents = rendered(repo.root() / CELL).objects
    (job,) = (one for one in documents if one["kind"] == "PyTorchJob")
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == 2
    assert "g5.8xlarge" in str(worker["template"]["spec"]["affinity"])
    assert worker["template"]["spec"]["containers"][0]["args"][1] == "training.finetune"
    files = {name: text for one in documents for name, text in one.get("data", {}).items()}
    config = load_texts({name: (name, files[f"{name}.yaml"]) for name in ("model", "hardware", "cell")})
    assert config.model.weights == (
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B@ad9f0ae0864d7fbcd1cd905e3c6c5b069cc8b562"
    )
    data = config.data
    assert data.source == "tatsu-lab/alpaca@dce01c9b08f87459cf36a430d809084718273017:train[:1000]"
    assert (data.format, data.learn, data.tokenizer, data.packing) == ("alpaca", "answer", "base", False)
    assert (config.parallel.micro_batch_size, config.train.global_batch_size) == (2, 16)
