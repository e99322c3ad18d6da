"""Two ranks load a sharded base from a hub: one downloads it, each reads and holds only its rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.weights.bases import LORA, configuration, random_weights
from tests.training.weights.fake_hub import COMMIT, TOKEN, FakeHub
from tests.training.weights.sharded_load import SHAPE
from training.run.directory import RunDir
from training.weights import open_weights

CHECKOUT = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_each_rank_holds_its_shard_and_little_more(tmp_path: Path) -> None:
    """In child processes, because the library reads HF_ENDPOINT and HF_TOKEN_PATH when it is imported."""
    config = configuration(str(tmp_path / "base"), LORA, **SHAPE)
    random_weights(tmp_path / "base", config, torch.bfloat16)
    (tmp_path / "token").write_text(TOKEN)
    hub = FakeHub(tmp_path / "base")
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            str(Path(__file__).with_name("sharded_load.py")), str(tmp_path), f"team/gated@{COMMIT}",
        ],
        capture_output=True, text=True, timeout=170, check=False,
        env={
            **os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN_PATH": str(tmp_path / "token"),
            "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{os.environ['PYTHONPATH']}",
            "OMP_NUM_THREADS": "1", "TRAINYARD_CPUS": "1",
        },
    )  # fmt: skip
    hub.close()
    assert done.returncode == 0, done.stderr[-3000:]
    assert hub.bodies() == [""]  # fetched once, whole
    reports = [json.loads((tmp_path / f"report-{rank}.json").read_text()) for rank in range(2)]
    assert [report["rank"] for report in reports] == [0, 1]
    digest = open_weights(config, RunDir(tmp_path / "runs" / "local")).digest
    for report in reports:
        assert report["digest"] == digest
        assert report["shard_mib"] > 100
        assert 0.9 < report["ratio"] < 1.5, report
        assert report["control"] > 2, report
