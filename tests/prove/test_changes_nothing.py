"""The probe changes nothing: checkpoints are equal to the last bit with and without it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.prove.parts import ROOT, launch
from training.prove.records import Step

SCRIPTS = ROOT / "tests/prove/scripts"
LONGEST = (pytest.mark.long, pytest.mark.longest)
# The state of a run: what it trains and draws. Logs and arguments hold times and paths.
STATE = {".pt", ".pth", ".safetensors", ".distcp", ".ckpt", ".bin", ".pkl"}
ARGUMENTS = {"training_args.bin"}


def digests(directory: Path) -> dict[str, str]:
    """Return the digests of all files of checkpoints."""
    found = [path for path in directory.rglob("*") if path.suffix in STATE and path.name not in ARGUMENTS]
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("ddp", 2),
        pytest.param("fsdp2", 2, marks=LONGEST),
        pytest.param("hf_trainer", 2, marks=LONGEST),
        pytest.param("accelerate_script", 2, marks=LONGEST),
        pytest.param("no_framework", 0, marks=LONGEST),
    ],
)
def test_the_last_state_is_equal_to_the_bit(name: str, ranks: int, tmp_path: Path) -> None:
    work = tmp_path / "work"
    seen = []
    for probe in (False, True, False):
        shutil.rmtree(work / "checkpoints", ignore_errors=True)
        done = launch(work, SCRIPTS / f"{name}.py", ranks=ranks, steps=1000, probe=probe, timeout=170)
        # The exit code is not looked at: torch may abort a process after its last line, while Python ends.
        assert bool(done.ranks and done.of(0, Step)) is probe
        seen.append(digests(work / "checkpoints"))
    plain, probed, again = seen
    assert plain, done.output
    assert plain == again  # control: the script repeats itself without the probe
    assert plain == probed


def test_another_seed_is_another_state(tmp_path: Path) -> None:
    """Control: the comparison can fail."""
    seen = []
    for seed in ("1", "2"):
        launch(tmp_path / seed, SCRIPTS / "no_framework.py", "--seed", seed, ranks=0, probe=False)
        seen.append(digests(tmp_path / seed / "checkpoints"))
    assert seen[0].keys() == seen[1].keys()
    assert seen[0] != seen[1]
