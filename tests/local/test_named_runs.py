"""Runs of one cell side by side, the trash of a fresh start, and manifests of others."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.local.test_run import config_map, mounting, one_error
from tools.local import earlier
from training.config import load_texts

FINISH = {"DO": "finish", "ON": "0"}


def trained(checkout: Any, make_job: Any, *arguments: str, steps: int = 5) -> str:
    """Make a cell and train it once; its run holds the configuration and a checkpoint, as a trainer's."""
    configuration = config_map("one")
    env = {**FINISH, "STEPS": str(steps)}
    cell: str = checkout.cell(mounting(make_job("one", master=True, env=env), configuration), configuration)
    done = checkout.yard("run", cell, *arguments)
    assert done.returncode == 0, done.stderr
    run = checkout.run_directory("one")
    texts = {key.removesuffix(".yaml"): (key, text) for key, text in configuration["data"].items()}
    (run / "run.json").write_text(json.dumps({"config": load_texts(texts).model_dump(mode="json")}))
    (run / "checkpoints/step-00000005").mkdir(parents=True)
    return cell


def test_one_cell_has_many_runs_side_by_side(checkout: Any, make_job: Any) -> None:
    cell = trained(checkout, make_job)
    for name in ("a", "b"):
        done = checkout.yard("run", cell, "--name", name, "--set", "train.learning_rate=0.5")
        assert done.returncode == 0, done.stderr
        assert f"run {cell} --set train.learning_rate=0.5 --name {name} --fresh" in done.stdout
        assert f"sample one-{name}" in done.stdout
        assert (checkout.run_directory(f"one-{name}") / "report.json").is_file()
        pod = checkout.root / f"local/pods/one-{name}-master-0/config/model.yaml"
        assert "learning_rate: 0.5" in pod.read_text()
    listed = checkout.yard("checkpoint", "list", cell, "--name", "b")
    assert "one-b: no committed checkpoint yet" in listed.stdout
    assert "/one: " not in listed.stdout
    for words in (("checkpoint", "list", cell), ("sample", cell, "--prompt", "x")):
        unknown = checkout.yard(*words, "--name", "c")
        assert f"has not been trained here with --name c\n  hint: make train, or yard run {cell} --name c" in (
            unknown.stderr
        )
        assert unknown.returncode == 2
    near = checkout.yard("sample", "one", "--name", "bb", "--prompt", "x")
    assert "no such run: one-bb\n  hint: did you mean one-b?" in near.stderr


def test_other_values_on_a_run_offer_a_run_of_its_own(checkout: Any, make_job: Any) -> None:
    cell = trained(checkout, make_job)
    change = ("--set", "train.learning_rate=1e-3", "--set", "train.steps=5")
    done = checkout.yard("run", cell, *change)
    assert one_error(done.stderr) == "one has made all its steps with train.learning_rate 0.01, not 0.001"
    assert done.returncode == 2
    offered = f"run {cell} {' '.join(change)} --name learning-rate-1e-3"
    assert f"{offered};" in done.stderr
    own = checkout.yard(*offered.split())
    assert own.returncode == 0, own.stderr
    taken = checkout.yard("run", cell, *change)
    assert "--name learning-rate-1e-3-2;" in taken.stderr  # the first is a run by now
    assert checkout.yard("run", cell, "--set", "train.learning_rate=0.01").returncode == 0  # as it began
    (checkout.run_directory("one") / "report.json").unlink()
    further = checkout.yard("run", cell, *change)
    assert "one began with train.learning_rate 0.01, not 0.001; it continues" in further.stderr
    assert further.returncode == 0


def test_a_fresh_start_moves_the_run_to_a_trash_that_expires(checkout: Any, make_job: Any) -> None:
    """Without a question, because nothing is lost. Another run of the cell stays as it is."""
    cell = trained(checkout, make_job)
    assert checkout.yard("run", cell, "--name", "b").returncode == 0
    run, runs = checkout.run_directory("one"), checkout.run_directory("one").parent
    (run / "data").mkdir()
    stamps = {days: datetime.now(UTC) - timedelta(days=days) for days in (earlier.DAYS - 1, earlier.DAYS + 1)}
    old = {days: runs / earlier.TRASH / "other" / at.strftime(earlier.STAMP) for days, at in stamps.items()}
    for path in (*old.values(), runs / earlier.TRASH / "other/mine"):
        path.mkdir(parents=True)
    done = checkout.yard("run", cell, "--fresh")
    assert done.returncode == 0, done.stderr
    (trash,) = (runs / earlier.TRASH / "one").iterdir()
    assert f"moved 1 checkpoint and the rest of the run to {trash.relative_to(checkout.root)}" in done.stderr
    assert "where it stays for 7 days" in done.stderr
    assert json.loads((trash / "run.json").read_text())["config"]["train"]["steps"] == 5
    assert (trash / "checkpoints/step-00000005").is_dir()
    assert (run / "data").is_dir()  # prepared data stays
    assert not (run / "checkpoints").exists()
    assert [path.exists() for path in old.values()] == [True, False]
    assert (runs / earlier.TRASH / "other/mine").exists()  # not a fresh start's
    assert "already" in checkout.yard("run", cell, "--name", "b").stdout
    named = checkout.yard("run", cell, "--name", "b", "--fresh")
    (own,) = (runs / earlier.TRASH / "one-b").iterdir()
    assert f"moved the run to {own.relative_to(checkout.root)}, where it stays for 7 days" in named.stderr
    assert trash.is_dir()
    again = checkout.yard("checkpoint", "list")
    assert again.stderr.endswith("hint: runs: one, one-b\n")  # the trash is not a run


@pytest.mark.parametrize("place", ["{root}/precious", "/shared", "/shared/runs", "/shared/runs/../x/y"])
def test_a_fresh_start_empties_no_place_that_a_manifest_names(checkout: Any, make_job: Any, place: str) -> None:
    kept = checkout.root / "precious/file"
    for path in (kept, checkout.root / "local/runs/other/file", checkout.root / "local/x/y/file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("kept")
    env = {"TRAINYARD_RUN": place.format(root=checkout.root)}
    job = make_job("rude", master=True, command=["true"], env=env)
    for _ in range(2):
        done = checkout.yard("run", checkout.cell(job), "--fresh")
        assert done.returncode == 0, done.stderr
    assert kept.read_text() == "kept"
    assert (checkout.root / "local/runs/other/file").exists()
    assert (checkout.root / "local/x/y/file").exists()
    assert checkout.run_directory("rude").is_dir()
    assert [path.name for path in (checkout.run_directory("rude").parent / ".trash").iterdir()] == ["rude"]


def write(path: Path, *objects: Any) -> Path:
    with path.open("w") as file:
        YAML(typ="safe").dump_all(objects, file)
    return path


def test_the_manifest_of_others_runs_here_as_it_is(checkout: Any, make_job: Any, tmp_path: Path) -> None:
    script = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    (checkout.root / "mine.py").write_text(script)
    job = make_job("theirs", master=True, command=["python", "mine.py"])
    held = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "theirs"},
        "data": {"model.yaml": "layers: 3\n"},  # another program's
    }
    waiting = {"name": "wait", "image": "busybox", "command": ["sleep", "1"]}
    job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["initContainers"] = [waiting]
    file = write(tmp_path / "job.yaml", job, held)
    done = checkout.yard("run", "-f", str(file), "--nodes", "3", "--name", "b")
    assert done.returncode == 0, done.stderr
    assert "not used here: the image localhost/none; containers init-pytorch, wait; the command" in done.stderr
    assert "rank 0 of 3" in done.stdout
    assert "theirs-b: all pods ended well" in done.stdout
    assert (checkout.run_directory("theirs-b") / "logs").is_dir()
    shell = write(tmp_path / "shell.yaml", make_job("shell", master=True, command=["sh", "-c", "exec python mine.py"]))
    assert checkout.yard("run", "-f", str(shell), "--dry-run").returncode == 0  # a text is not a file
    (checkout.root / "mine.py").unlink()
    gone = checkout.yard("run", "-f", str(file))
    assert "pod theirs-master-0 starts mine.py, which is not on this machine" in one_error(gone.stderr)
    assert gone.returncode == 2


TRAIN = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_training_of_others_meets_here_as_on_a_cluster(checkout: Any, make_job: Any, tmp_path: Path) -> None:
    """Two real torchrun, from a file and from standard input, with other numbers of pods and processes."""
    (checkout.root / "train.py").write_text(TRAIN)
    file = write(tmp_path / "job.yaml", make_job("theirs", command=["torchrun", "train.py"]))
    done = checkout.yard("run", "-f", str(file))
    assert "rank 0 of 2: 2" in done.stdout, done.stderr
    wider = checkout.yard("run", "-f", str(file), "--nodes", "1", "--nproc", "3", "--name", "wide")
    assert "rank 2 of 3: 3" in wider.stdout, wider.stderr
    assert (done.returncode, wider.returncode) == (0, 0)


@pytest.mark.parametrize("words", [["run"], ["render"], ["diff"], ["wiring"]])
def test_a_cell_or_a_file_is_needed(checkout: Any, make_job: Any, tmp_path: Path, words: list[str]) -> None:
    cell = checkout.cell(make_job("x"))
    file = write(tmp_path / "job.yaml", make_job("x"))
    for target in ([], [cell, "-f", str(file)]):
        done = checkout.yard(*words, *target)
        assert "give a cell, or a file with -f" in one_error(done.stderr)
        assert done.returncode == 2
