"""Scripts that want CUDA train on the CPU with the stand-in, and not without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.prove import proving
from tests.prove.parts import ROOT, launch
from training.prove.records import Batch, Begin, End, Step, World

SCRIPTS = ROOT / "tests/prove/scripts_cuda"
RANKS = {"ddp_amp": 2, "fsdp1_gpu": 2, "fsdp2_gpu": 2, "plain_loop": 0}
ANSWERS = """
    import json, torch
    tensor = torch.ones(3, device="cuda")
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        moved = torch.zeros(2).to("cuda", non_blocking=True)
    event.record()
    event.synchronize()
    torch.cuda.manual_seed_all(3)
    states = torch.cuda.get_rng_state_all()
    torch.cuda.set_rng_state_all(states)
    torch.save({"x": tensor}, "x.pt")
    loaded = torch.load("x.pt", map_location="cuda:0")["x"]
    host = moved.cpu()
    host += 1
    try:
        torch.cuda.set_device(7)
        wrong = ""
    except RuntimeError as error:
        wrong = str(error)
    model = torch.nn.Linear(3, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(tensor).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(json.dumps({
        "available": torch.cuda.is_available(), "count": torch.cuda.device_count(), "device": str(tensor.device),
        "is_cuda": tensor.is_cuda, "loaded": str(loaded.device), "moved": str(moved.device), "host": host.tolist(),
        "untouched": moved.tolist(), "states": len(states), "wrong": wrong,
        "generator": isinstance(torch.Generator("cuda"), torch.Generator), "parameter": str(model.weight.device),
        "memory": torch.cuda.max_memory_allocated() > 0, "accelerator": torch.accelerator.current_accelerator().type,
    }))
"""


def test_the_script_hears_what_a_gpu_would_answer(tmp_path: Path) -> None:
    done = launch(tmp_path, ANSWERS, ranks=0, stand_in=True)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output.splitlines()[-1]) == {
        "available": True, "count": 1, "device": "cuda:0", "is_cuda": True, "loaded": "cuda:0", "moved": "cuda:0",
        "host": [1.0, 1.0], "untouched": [0.0, 0.0], "states": 1, "generator": True, "parameter": "cuda:0",
        "wrong": "CUDA error: invalid device ordinal 7 (this node has 1 rank, and so many devices)",
        "memory": True, "accelerator": "cuda",
    }  # fmt: skip
    assert done.of(0, Begin)[0].stand_in
    assert [step.step for step in done.of(0, Step)] == [1]


def test_without_the_stand_in_there_is_no_gpu(tmp_path: Path) -> None:
    done = launch(tmp_path, ANSWERS, ranks=0)
    assert done.exit_code == 1
    assert "CUDA" in done.output or "NVIDIA" in done.output


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.parametrize("name", RANKS)
def test_a_script_for_gpus_trains(name: str, tmp_path: Path) -> None:
    """Without the stand-in the same script takes no step."""
    control = launch(tmp_path / "without", SCRIPTS / f"{name}.py", ranks=RANKS[name], steps=4)
    assert not control.all(Step)
    assert control.exit_code != 0
    done = launch(tmp_path / "with", SCRIPTS / f"{name}.py", ranks=RANKS[name], steps=4, stand_in=True)
    assert done.exit_code == 0, done.output
    for rank in range(max(RANKS[name], 1)):
        assert [step.step for step in done.of(rank, Step)] == [1, 2, 3, 4]
        assert done.of(rank, Batch)
        (end,) = done.of(rank, End)
        assert (end.reason, end.error) == ("steps", "")
        assert all(world.backend == "gloo" for world in done.of(rank, World))


@pytest.mark.long
@pytest.mark.longest
def test_a_proof_says_what_the_stand_in_leaves_open(tmp_path: Path) -> None:
    """A defect in a script for GPUs is named on the CPU. Its healthy neighbour passes."""
    script = SCRIPTS / "ddp_amp.py"
    text = script.read_text(encoding="utf-8")
    path = Path(sys.executable).parent
    command = ["torchrun", "--nproc-per-node", "2", "train.py"]
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    healthy = proving.prove(tmp_path, command, "--only", "data", path=path)
    assert (healthy.code, healthy.states()) == (0, {"data": "PASS"}), healthy.errors
    assert healthy.rows[0]["stand_in"]
    assert healthy.rows[0]["summary"].endswith("(on CPU)")
    assert "stand-in for CUDA on the CPU" in healthy.errors
    (tmp_path / "train.py").write_text(text.replace("sampler.set_epoch(epoch)", "pass"), encoding="utf-8")
    assert proving.prove(tmp_path, command, "--only", "data", path=path).found == {"data/order-fixed": "WARN"}
