"""`yard run`: a job of real processes here, its environment, its ends, and what is said and left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parts import screen
from tools.cells import locate, trainer_config
from tools.cells.knobs import Knobs
from tools.core import repo
from tools.core.errors import UserError
from tools.local import job as local_job
from tools.local import preconditions, report
from training.config import apply_override, load_texts
from training.run.failure import CODES

Job = Callable[..., dict[str, Any]]


def one_error(text: str) -> str:
    """Return the message of the one error in `text`. Fails for several errors or a traceback."""
    assert "Traceback" not in text
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, text
    return errors[0].removeprefix("error: ")


def test_pods_have_the_operators_environment_and_nothing_of_the_users_shell(checkout: Any, make_job: Job) -> None:
    cell = checkout.cell(make_job("clean", master=True, env={"OWN": "$(RANK) of $(WORLD_SIZE)", "DIR": "/shared/x"}))
    stray = {
        "RANK": "9",
        "MASTER_ADDR": "example.org",
        "PET_NNODES": "7",
        "PYTHONPATH": "/nowhere",
        "STRAY": "x",
    }
    done = checkout.yard("run", cell, **stray, CUDA_VISIBLE_DEVICES="0,1")
    assert done.returncode == 0, done.stderr
    directory = checkout.run_directory("clean")
    master, worker = (
        json.loads((directory / f"environment-clean-{pod}-0.json").read_text()) for pod in ("master", "worker")
    )
    allowed = {
        *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "HOSTNAME"),
        *(
            "CUDA_VISIBLE_DEVICES",
            "PET_LOCAL_ADDR",
            "PET_RDZV_ID",
            "GLOO_SOCKET_IFNAME",
            "NCCL_SOCKET_IFNAME",
        ),
        *("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TRAINYARD_LOOPBACK"),
        *("TRAINYARD_RUN", "OWN", "DIR", "PYTHONUNBUFFERED", "MASTER_PORT", "PET_MASTER_PORT", "MASTER_ADDR"),
        *("PET_MASTER_ADDR", "WORLD_SIZE", "RANK", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_NNODES"),
    }
    assert set(worker) <= allowed
    assert worker["PYTHONPATH"] == f"{checkout.root}/training/guard"
    assert worker["PET_RDZV_ID"] == master["PET_RDZV_ID"]
    assert worker["RANK"] == "1"
    assert worker["OWN"] == "$(RANK) of $(WORLD_SIZE)"  # the operator's variables stand behind the user's own
    assert (worker["MASTER_ADDR"], worker["PET_NNODES"]) == ("127.0.0.1", "2")
    assert worker["CUDA_VISIBLE_DEVICES"] == ""
    assert worker["DIR"] == f"{checkout.root}/local/x"
    assert worker["HOME"].startswith(f"{checkout.root}/local/pods/clean-worker-0")
    assert master["RANK"] == "0"
    assert master["HOSTNAME"] == "clean-master-0"


def test_the_first_pods_output_is_relayed_and_every_pods_is_logged(checkout: Any, make_job: Job) -> None:
    done = checkout.yard("run", checkout.cell(make_job("logs", master=True)))
    assert done.returncode == 0, done.stderr
    assert "hello from logs-master-0" in done.stdout
    assert "hello from logs-worker-0" not in done.stdout + done.stderr
    log = (checkout.run_directory("logs") / "logs" / "pod-logs-worker-0.log").read_text()
    assert "--- attempt 1 of logs-worker-0" in log
    assert "hello from logs-worker-0" in log
    assert "warning of logs-worker-0" in log


def test_a_failed_pod_starts_again_and_the_job_goes_on(checkout: Any, make_job: Job) -> None:
    env = {"DO": "fail once", "ON": "0"}
    done = checkout.yard("run", checkout.cell(make_job("again", master=True, env=env)))
    assert done.returncode == 0, done.stderr
    log = (checkout.run_directory("again") / "logs" / "pod-again-master-0.log").read_text()
    assert log.count("--- attempt") == 2
    assert "exited with code 3; restarting" in done.stderr


def test_restarts_that_bring_nothing_end_in_one_error(checkout: Any, make_job: Job) -> None:
    env = {"DO": "fail", "ON": "0", "ELSE": "wait", "AFTER": "waiting-dies-worker-0"}
    done = checkout.yard("run", checkout.cell(make_job("dies", master=True, env=env)))
    message = one_error(done.stderr)
    assert done.returncode == 1
    assert "pod dies-master-0 exited with code 1, twice without a step in between" in message
    assert "ValueError: the stand-in was told to fail" in message
    assert "local/runs/dies/logs/pod-dies-master-0.log" in done.stderr
    assert (checkout.run_directory("dies") / "waiting-dies-worker-0").exists()  # the other pod was up, and ended


@pytest.mark.parametrize("kind", ["config", "nan"])
def test_what_a_restart_cannot_cure_ends_the_job_at_once(checkout: Any, make_job: Job, kind: str) -> None:
    env = {
        "DO": "record",
        "CLASS": kind,
        "CODE": str(CODES[kind]),
        "ON": "1",
        "ELSE": "wait",
        "EARLIER": "yes",
    }
    done = checkout.yard("run", checkout.cell(make_job("permanent", master=True, env=env)))
    assert one_error(done.stderr) == f"rank 1 on here failed at step 7 ({kind}): told to"
    assert done.returncode == 1
    log = (checkout.run_directory("permanent") / "logs" / "pod-permanent-worker-0.log").read_text()
    assert log.count("--- attempt") == 1


def test_backoff_limit_bounds_the_restarts(checkout: Any, make_job: Job) -> None:
    spec = {"runPolicy": {"backoffLimit": 0}}
    done = checkout.yard("run", checkout.cell(make_job("bound", master=True, spec=spec, env={"DO": "fail"})))
    assert "after 0 restarts (backoffLimit 0)" in one_error(done.stderr)
    assert done.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_drains_every_pod(
    checkout: Any, make_job: Job, wait_until: Callable[..., None], number: signal.Signals
) -> None:
    process = checkout.start("run", checkout.cell(make_job("drains", master=True, env={"DO": "wait"})))
    directory = checkout.run_directory("drains")
    pods = ("drains-master-0", "drains-worker-0")
    wait_until(lambda: all((directory / f"waiting-{pod}").exists() for pod in pods), "both pods are up")
    process.send_signal(number)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 128 + number
    assert [(directory / f"drained-{pod}").read_text() for pod in pods] == ["SIGTERM", "SIGTERM"]
    assert "to continue: " in err


def test_a_second_interrupt_ends_stubborn_pods(checkout: Any, make_job: Job, wait_until: Callable[..., None]) -> None:
    env = {"DO": "wait", "STUBBORN": "1"}
    job = make_job("stubborn", master=True, env=env)
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["terminationGracePeriodSeconds"] = 600
    process = checkout.start("run", checkout.cell(job))
    waiting = checkout.run_directory("stubborn") / "waiting-stubborn-worker-0"
    wait_until(waiting.exists, "the pod is up")

    def insist() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait_until(insist, "yard ends though its pods ignore SIGTERM")  # long before their grace is over
    assert process.returncode == 130
    assert not (checkout.run_directory("stubborn") / "drained-stubborn-worker-0").exists()


def test_killing_yard_leaves_nothing(checkout: Any, make_job: Job, wait_until: Callable[..., None]) -> None:
    process = checkout.start("run", checkout.cell(make_job("killed", master=True, env={"DO": "wait"})))
    waiting = [checkout.run_directory("killed") / f"waiting-killed-{pod}-0" for pod in ("master", "worker")]
    wait_until(lambda: all(path.exists() for path in waiting), "both pods are up")
    assert len(checkout.processes()) >= 4  # two pods, each with a child in a session of its own
    process.kill()
    process.communicate()
    wait_until(lambda: not checkout.processes(), "the kernel has ended every process")


def test_what_a_dead_pod_leaves_is_ended(checkout: Any, make_job: Job, wait_until: Callable[..., None]) -> None:
    process = checkout.start(
        "run",
        checkout.cell(make_job("orphans", master=True, env={"DO": "orphan", "ON": "0", "ELSE": "wait"})),
    )
    _, err = process.communicate(timeout=180)
    assert "was killed by SIGKILL" in one_error(err)
    orphan = int((checkout.run_directory("orphans") / "orphan-orphans-master-0").read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{orphan}"), "the orphan is gone")


def test_only_one_run_at_a_time(checkout: Any, make_job: Job, wait_until: Callable[..., None]) -> None:
    cell = checkout.cell(make_job("locked", master=True, env={"DO": "wait"}))
    first = checkout.start("run", cell)
    wait_until((checkout.run_directory("locked") / "waiting-locked-worker-0").exists, "the first run is up")
    second = checkout.yard("run", cell)
    assert second.returncode == 2
    assert f"already being trained here, by process {first.pid}" in one_error(second.stderr)
    first.terminate()
    first.communicate(timeout=180)


def test_a_taken_port_that_was_asked_for_is_an_error(checkout: Any, make_job: Job) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        job = make_job("port", command=["torchrun", "-m", "nothing"])
        done = checkout.yard("run", checkout.cell(job), "--port", str(port))
    assert done.returncode == 2
    assert f"the rendezvous port {port} is taken" in one_error(done.stderr)
    assert "without --port" in done.stderr


@pytest.mark.long
def test_two_runs_at_once_meet_at_ports_of_their_own(
    checkout: Any, make_job: Job, wait_until: Callable[..., None]
) -> None:
    command = ["torchrun", str(Path(__file__).with_name("stand_in.py"))]
    jobs = [make_job("first", command=command, env={"DO": "meet"})]
    port = jobs[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["ports"]
    jobs.append(make_job("second", command=command, env={"DO": "meet"}, port=port[0]["containerPort"]))
    runs = [checkout.start("run", checkout.cell(job)) for job in jobs]
    ends = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ends
    for name in ("first", "second"):
        directory = checkout.run_directory(name)
        met = [json.loads((directory / f"met-{name}-worker-{i}").read_text()) for i in range(2)]
        assert met == [sorted(f"{name}-worker-{i}" for i in range(2))] * 2
    moved = [err for _, err in ends if "is taken on this machine; using port " in err]
    assert len(moved) == 1


def test_a_finished_run_says_so_and_starts_nothing(checkout: Any, make_job: Job) -> None:
    job, configuration = make_job("done", master=True, env={"DO": "finish", "ON": "0"}), config_map("done")
    cell = checkout.cell(mounting(job, configuration), configuration)
    first = checkout.yard("run", cell)
    assert first.returncode == 0, first.stderr
    assert "5.0000 nats a token" in first.stdout
    assert "| os" in first.stdout
    environment = checkout.run_directory("done") / "environment-done-master-0.json"
    environment.unlink()
    second = checkout.yard("run", cell)
    assert second.returncode == 0
    assert "has already made its 5 steps" in second.stdout
    assert f"run {cell} --set train.steps=10" in second.stdout
    assert not environment.exists()  # no pod was started
    data = json.loads(checkout.yard("run", cell, "--json").stdout)
    assert data["report"]["heldout_loss"] == 5.0
    with socket.socket() as taken:  # a fresh start that cannot start costs nothing
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = checkout.yard("run", cell, "--fresh", "--port", str(taken.getsockname()[1]))
    assert refused.returncode == 2
    assert (checkout.run_directory("done") / "report.json").exists()
    assert checkout.yard("run", cell, "--fresh").returncode == 0
    assert environment.exists()
    assert (checkout.run_directory("done").parent / ".trash").is_dir()


def test_dry_run_shows_pods_masks_secrets_and_starts_nothing(checkout: Any, make_job: Job) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "key"},
        "stringData": {"token": "hidden"},
    }
    job = make_job("dry")
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}}
    container.update(command=["torchrun", "-m", "x"], env=[*container["env"], reference])
    cell = checkout.cell(job, secret)
    done = checkout.yard("run", cell, "--dry-run", "--nodes", "3", "--nproc", "2", "--port", "4567")
    assert done.returncode == 0, done.stderr
    assert "pod dry-worker-2" in done.stdout
    for line in ("PET_NNODES=3:3", "PET_NPROC_PER_NODE=2", "PET_RDZV_ENDPOINT=127.0.0.1:4567", "TOKEN=***"):
        assert f"environment  {line}" in done.stdout
    assert "hidden" not in done.stdout
    assert "/shared = local (claim trainyard)" in done.stdout
    plan = json.loads(checkout.yard("run", cell, "--dry-run", "--json").stdout)
    assert [pod["pod"] for pod in plan["pods"]] == ["dry-worker-0", "dry-worker-1"]
    assert not (checkout.root / "local").exists()


def test_a_dry_run_shows_the_plan_of_a_job_with_more_gpus_than_here(checkout: Any, make_job: Job) -> None:
    job = make_job("gpus")
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container.update(command=["torchrun", "-m", "x"], resources={"limits": {"nvidia.com/gpu": "64"}})
    cell = checkout.cell(job)
    done = checkout.yard("run", cell, "--dry-run")
    assert done.returncode == 0
    assert "pod gpus-worker-1" in done.stdout
    assert "the job asks for 128 GPUs; this machine has" in done.stderr
    assert "2 pods ask for 128 GPUs" in one_error(checkout.yard("run", cell).stderr)  # the control
    example = checkout.yard("run", cell, "--show-example")  # reads data only, so it needs no GPU either
    assert "holds no trainer configuration, so it has no example to show" in example.stderr


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (
            {"command": ["no-such-program"], "master": True},
            "its command no-such-program is not on this machine",
            "",
        ),
        ({"elastic": False}, "it trains as 2 separate jobs", "elasticPolicy"),
        (
            {"elastic": False, "command": ["torchrun", "a.py"]},
            "it hangs: 2 pods wait in 2 places",
            "elasticPolicy",
        ),
        ({"spec": {"nprocPerNode": 2}}, "spec.nprocPerNode: must be a string in quotes, not 2", ""),
        ({"name": "Upper"}, "metadata.name: 'Upper' must be", ""),
    ],
)
def test_a_manifest_that_cannot_train_is_refused(
    checkout: Any, make_job: Job, change: dict[str, Any], message: str, hint: str
) -> None:
    done = checkout.yard("run", checkout.cell(make_job(**{"name": "bad", **change})))
    assert message in one_error(done.stderr)
    assert hint in done.stderr
    assert done.returncode in (1, 2)
    assert not checkout.processes()


def test_missing_references_are_named(checkout: Any, make_job: Job) -> None:
    job = make_job("lacks", master=True)
    container = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "token"}}})
    done = checkout.yard("run", checkout.cell(job))
    assert one_error(done.stderr).startswith("pod lacks-master-0 needs Secret gone with key token (for KEY)")
    assert done.returncode == 2


def test_settings_reach_the_configuration_or_fail_by_name(checkout: Any, make_job: Job) -> None:
    configuration = config_map("set")
    cell = checkout.cell(mounting(make_job("set", master=True), configuration), configuration)
    wrong = checkout.yard("run", cell, "--set", "train.stepps=7")
    assert "did you mean train.steps?" in one_error(wrong.stderr)
    assert wrong.returncode == 2
    done = checkout.yard("run", cell, "--set", "train.steps=7", "--nodes", "2")
    assert done.returncode == 1  # the stand-in writes no report
    assert "without a report" in one_error(done.stderr)
    for pod in ("set-master-0", "set-worker-0"):
        assert "steps: 7" in (checkout.root / "local/pods" / pod / "config" / "model.yaml").read_text()
    indivisible = checkout.yard("run", cell, "--nodes", "3")
    assert "cannot be divided" in one_error(indivisible.stderr)


def test_bad_data_is_one_error_and_no_pod(checkout: Any, make_job: Job) -> None:
    configuration = config_map("data", source="/no/such/place")
    env = {"TRAINYARD_DATA": "/shared/data"}
    cell = checkout.cell(mounting(make_job("data", master=True, env=env), configuration), configuration)
    done = checkout.yard("run", cell)
    assert "/no/such/place" in one_error(done.stderr)
    assert done.returncode == 2
    assert not list(checkout.run_directory("data").glob("environment-*"))


def test_a_wrong_cell_is_named(checkout: Any, make_job: Job) -> None:
    checkout.cell(make_job("right"))
    done = checkout.yard("run", "test/rihgt")
    assert one_error(done.stderr) == "no such cell: test/rihgt"
    assert "did you mean overlays/test/right?" in done.stderr
    assert done.returncode == 2


def config_map(name: str, source: str = "python-stdlib") -> dict[str, Any]:
    model = f"""\
model: {{architecture: llama, vocab_size: 512, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 1,
  num_attention_heads: 4, num_key_value_heads: 2}}
sequence_length: 32
data: {{source: {source}}}
train:
  seed: 7
  steps: 5
  global_batch_size: 8
  learning_rate: 1.0e-2
  eval_every: 5
  eval_sequences: 8
"""
    texts = {
        "model.yaml": model,
        "hardware.yaml": "device: {type: cpu}\n",
        "cell.yaml": "parallel: {micro_batch_size: 2, sharding: ddp}\ncheckpoint: {every: 5}\n",
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-config"}, "data": texts}


def mounting(job: dict[str, Any], configuration: dict[str, Any]) -> dict[str, Any]:
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        spec = replica["template"]["spec"]
        spec["volumes"].append({"name": "config", "configMap": {"name": configuration["metadata"]["name"]}})
        spec["containers"][0]["volumeMounts"].append({"name": "config", "mountPath": "/etc/trainyard"})
    return job


def test_next_commands_keep_what_was_changed(checkout: Any, make_job: Job) -> None:
    configuration = config_map("next")
    env = {"DO": "finish", "ON": "0", "STEPS": "7"}
    cell = checkout.cell(mounting(make_job("next", master=True, env=env), configuration), configuration)
    changes = ["--set", "train.steps=7", "--set", "train.learning_rate=0.5"]
    done = checkout.yard("run", cell, *changes)
    assert done.returncode == 0, done.stderr
    assert f"run {cell} --set train.learning_rate=0.5 --set train.steps=14" in done.stdout
    assert f"run {cell} {' '.join(changes)} --fresh" in done.stdout
    assert f"job submit {cell} {' '.join(changes)}\n" in done.stdout


@pytest.mark.parametrize(
    ("cell", "prompt"),
    [
        ("overlays/cpu/llama-tiny", "'def main('"),
        (
            "overlays/cpu/llama-tiny-lora",
            "'What does shutil.copyfile(src, dst, *, follow_symlinks=True) do?'",
        ),
        ("overlays/cpu/bert-tiny", "'import [MASK]'"),
    ],
)
def test_more_text_is_asked_for_as_the_model_can_give_it(cell: str, prompt: str) -> None:
    """BERT fills in words and refuses a prompt without a [MASK]."""
    manifests = locate.rendered(cell)
    job = local_job.ready(manifests, [cell], Knobs())
    assert dict(report.next_commands(job))["more text"].endswith(f"--prompt {prompt}")


def test_a_base_that_is_no_run_yet_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    """The cell's base by its make target, another cell's by `yard run`, any other by name only."""
    texts = trainer_config.config_texts(locate.rendered("cpu/llama-tiny-lora"), repo.root())
    run_directory, source = tmp_path / "runs/tuned", "overlays/cpu/llama-tiny-lora"
    for base, remedy in (
        ("cpu-llama-tiny-train", "train it: make train"),
        ("cpu-bert-tiny-train", f"train it: {report.yard_command()} run overlays/cpu/bert-tiny"),
        ("other", "train it first"),
    ):
        config = load_texts(apply_override(texts, f"model.weights=run:{base}"))
        with pytest.raises(UserError) as error:
            preconditions.check_base(config, run_directory, source)
        assert str(error.value) == f"{source} starts from the run {base}, which has no checkpoint on this machine yet"
        assert error.value.hint == remedy
        committed = tmp_path / "runs" / base / "checkpoints/step-00000003"
        committed.mkdir(parents=True)
        (committed / "MANIFEST.json").touch()
        preconditions.check_base(config, run_directory, source)
    preconditions.check_base(load_texts(apply_override(texts, "model.weights=/models/x")), run_directory, source)


STEPS = """
import pathlib, sys, time
print("[bold]made for a test", flush=True)
for step in range(1, 4):
    print(f"step {step}/4  loss {4 - step}.000  1,000 tokens/s", flush=True)
    while not pathlib.Path(sys.argv[1], str(step)).exists():
        time.sleep(0.05)
"""


def test_steps_move_a_bar_at_a_terminal_and_are_lines_elsewhere(checkout: Any, make_job: Job, tmp_path: Path) -> None:
    cell = checkout.cell(make_job("steps", pods=1, command=["python", "-c", STEPS, str(tmp_path)]))
    seen = {f"{25 * step} %": (tmp_path / str(step)).touch for step in range(1, 4)}
    shown = screen.show([sys.executable, "-m", "tools.cli", "run", cell], cwd=checkout.root, keys=seen)
    assert shown.code == 0, shown.raw
    assert any("75 %" in line and "━" in line for state in shown.states for line in state)
    assert any("step 3/4  █▅▁  loss 1.000  1,000 tokens/s" in line for state in shown.states for line in state)
    assert "[bold]made for a test" in shown.last
    assert not any("step 3/4" in line for line in shown.last), "the bar is gone"
    done = checkout.yard("run", cell, "--fresh")
    steps = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert [line.partition("  ")[0] for line in steps] == ["step 1/4", "step 2/4", "step 3/4"]
    assert "\x1b" not in done.stdout + done.stderr
