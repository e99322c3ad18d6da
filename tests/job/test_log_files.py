"""`yard job why --log` explains logs without a cluster, and no log can harm it."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Yard
from tests.job.log_corpus import CASES, HEALTHY
from tools.cells import locate
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job.diagnosis import log_causes, log_files
from tools.job.snapshot import log_lines

STEPS = "\n".join(f"step {step} loss 2.{99 - step}" for step in range(1, 9))
MEMORY = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/train.py", line 60, in <module>\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
PEER = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"


@pytest.fixture(autouse=True)
def nothing_of_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kubectl on PATH, no kubeconfig, and a directory that is not the repository."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def test_the_cause_names_file_and_line(yard: Yard) -> None:
    shown = yard.out("why", "--log", write("train.log", f"{STEPS}\n{MEMORY}"), code=1)
    assert "oom-device" in shown
    assert "train.log:11: torch.OutOfMemoryError" in shown


def test_a_log_may_be_packed_or_come_by_a_pipe(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.log.gz").write_bytes(gzip.compress(MEMORY.encode()))
    assert "train.log.gz:3: " in yard.out("why", "--log", "train.log.gz", code=1)
    pipe = io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(MEMORY.encode()))))
    monkeypatch.setattr(sys, "stdin", pipe)
    assert "-:3: " in yard.out("why", "--log", "-", code=1)
    Path("wide.log").write_bytes(MEMORY.encode("utf-16"))
    assert "oom-device" in yard.out("why", "--log", "wide.log", code=1)


@pytest.mark.parametrize(
    ("shown", "setting"),
    [
        ("", "takes at once, shard"),
        ('  File "/usr/lib/python3/site-packages/transformers/trainer.py", line 2', "--per_device_train_batch_size"),
        ("[rank0]: [titan] 2026-03-01 10:00:01 - root - INFO - torchtitan version: 0.2.0", "local_batch_size"),
        ("rank 3: out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.", "parallel.micro_batch_size"),
        ("entrypoint: OOM killer is off", "takes at once, shard"),
    ],
)
def test_a_remedy_names_the_settings_of_the_trainer_that_wrote_the_log(shown: str, setting: str, yard: Yard) -> None:
    remedy = yard.json("why", "--log", write("train.log", f"{shown}\n{MEMORY}"), code=1)["causes"][0]["remedy"]
    assert setting in remedy
    assert "{" not in remedy


def test_the_rank_whose_failure_is_a_cause_comes_before_its_victims(yard: Yard) -> None:
    files = [write("rank0.log", PEER), write("rank1.log", MEMORY), write("rank10.log", PEER)]
    found = yard.json("why", "--log", *files, code=1)
    assert found["causes"][0]["cause"] == "oom-device"
    assert found["causes"][0]["rank"] == 1
    assert found["logs"] == files


def test_of_two_equal_failures_the_earlier_one_comes_first(yard: Yard) -> None:
    late = write("rank0.log", "2026-03-01 10:00:09 ValueError: a is not b\nValueError: a is not b\n")
    early = write("rank1.log", "2026-03-01 10:00:01 starting\nValueError: c is not d\n")
    assert yard.json("why", "--log", late, early, code=1)["causes"][0]["rank"] == 1


@pytest.mark.parametrize("name", ["logs/attempt_0/3/stderr.log", "rank_3.txt", "rank-3", "pod-rank3.log"])
def test_the_name_of_a_file_tells_its_rank(name: str) -> None:
    assert log_files.LogFile(name, []).rank == 3


@pytest.mark.parametrize(
    ("text", "code", "status", "kind"),
    [
        (STEPS, None, 0, None),
        (STEPS, 0, 0, None),
        ("hello\n", None, 3, None),
        ("", None, 3, None),
        (STEPS, 137, 1, "killed"),
        (STEPS, -9, 1, "killed"),
        (STEPS, 139, 1, "memory-fault"),
        (STEPS, 143, 1, "drained"),
        (STEPS, 130, 1, "drained"),
        (STEPS + "\n^CTraceback (most recent call last):\nKeyboardInterrupt\n", None, 1, "drained"),
        (STEPS, 127, 1, "command"),
        ("", 1, 1, "crash"),
        ("hello\n", 0, 1, "no-steps"),
        (MEMORY, 1, 1, "oom-device"),
        ("\n".join(f"step {step} loss nan" for step in range(9)), None, 1, "nan"),
        (f"step 1 loss nan\n{STEPS}", None, 0, None),
        ("Not enough GPUs to train: found 0\n", 0, 1, "no-steps"),
        # nccl-tests and preparations take no steps, and are healthy.
        ("#  size  count  type  redop  time  algbw  busbw\n# Avg bus bandwidth : 180\n", 0, 0, None),
        ("tokenizing shard 3 of 9\nwrote 9 shards\n", 0, 0, None),
        ("Epoch 1 of 3\nEpoch 2 of 3\n", 0, 0, None),
    ],
)  # fmt: skip
def test_the_exit_code_is_used(yard: Yard, text: str, code: int | None, status: int, kind: str | None) -> None:
    given = [] if code is None else ["--exit-code", str(code)]
    found = yard.json("why", "--log", write("a.log", text), *given, code=status)
    assert ([cause["cause"] for cause in found["causes"]] or [None])[0] == kind


def test_an_interrupt_is_named_and_does_not_hide_a_failure(yard: Yard) -> None:
    said = "it was interrupted: SIGINT"
    log = write("rank0.log", f"{STEPS}\nTraceback (most recent call last):\nKeyboardInterrupt\n")
    for words in (["--log", log], ["--log", write("steps.log", STEPS), "--exit-code", "130"]):
        found = yard.json("why", *words, code=1)["causes"][0]
        assert said in found["summary"]
        assert "if the interrupt was intended" in found["remedy"]
    both = yard.json("why", "--log", log, write("rank1.log", "ValueError: a is not b\n"), code=1)
    assert both["causes"][0]["rank"] == 1


def test_the_remedy_of_an_exit_code_needs_no_cluster(yard: Yard) -> None:
    found = yard.json("why", "--log", write("a.log", STEPS), "--exit-code", "1", code=1)
    assert "yard job logs" not in found["causes"][0]["remedy"]


@pytest.mark.parametrize(
    "message",
    [
        "size mismatch for lm_head.weight: copying a param with shape torch.Size([32000, 8]) from checkpoint, the shape"
        " in current model is torch.Size([32001, 8]).\n\tsize mismatch for embed.weight: copying a param",
        'Missing key(s) in state_dict: "layers.0.weight".',
    ],
)
def test_a_checkpoint_of_another_model_is_not_called_damaged(yard: Yard, message: str) -> None:
    error = f"{MEMORY.rpartition('torch.')[0]}RuntimeError: Error(s) in loading state_dict for Llama:\n\t{message}\n"
    found = yard.json("why", "--log", write("a.log", error), code=1)["causes"][0]
    assert found["cause"] == "checkpoint"
    assert found["summary"].endswith("the checkpoint belongs to another model")
    assert "make the model as the checkpoint has it" in found["remedy"]


def test_a_run_of_this_machine_is_told_from_a_cell() -> None:
    with pytest.raises(UserError, match="a run of this machine") as raised:
        locate.cell_path(str(Path(write("my run/run.json", "{}")).parent))
    assert raised.value.hint == "yard job why --log 'my run'/logs/*.log; yard job goodput 'my run'"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ('ERROR: missing key "lr" in config.yaml', "config"),
        ("ERROR: missing key AWS_REGION in the environment", "config"),
        ("error: missing keys in the config: model.hidden", "config"),
        ("ERROR: loading failed: missing keys in the model: layers.0.bias", "checkpoint"),
        ("ERROR: unexpected keys in the state_dict: layers.0.bias", "checkpoint"),
    ],
)
def test_missing_keys_are_of_a_checkpoint_only_where_words_say_so(yard: Yard, error: str, kind: str) -> None:
    found = yard.json("why", "--log", write("a.log", f"start\n{error}\n"), code=1)
    assert found["causes"][0]["cause"] == kind


@pytest.mark.parametrize(
    ("driver", "broken"),
    [
        ("NVRM: Xid (PCI:0000:53:00): 79, pid=1, name=python, GPU has fallen off the bus.", True),
        ("[ 18.3] NVRM: Xid (PCI:0000:53:00): 48, An uncorrectable double bit error has been detected", True),
        ("NVRM: Xid (PCI:0000:53:00): 31, pid=1, name=python, MMU Fault", False),
        ("NVRM: Xid (PCI:0000:53:00): 13, Graphics Exception", False),
    ],
)
def test_the_drivers_word_on_a_broken_gpu_explains_a_failed_call(yard: Yard, driver: str, broken: bool) -> None:
    error = MEMORY.replace("torch.OutOf", "[rank2]: ").partition("[rank2]")[0]
    log = f"{driver}\n{error}RuntimeError: CUDA error: unspecified launch failure\n"
    found = yard.json("why", "--log", write("a.log", log), code=1)["causes"][0]
    assert found["cause"] == "device"
    assert found["remedy"].startswith("cordon the node") == broken
    assert (f"a.log:1: {driver}" in found["evidence"]) == broken


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
         "device", "nvidia-fabricmanager"),
        ("torch.AcceleratorError: CUDA error: system not yet initialized", "device", "nvidia-fabricmanager"),
        ("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
         "device", "cordon the node"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
         "device", "request the GPUs"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
         "library-version", "install releases"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "device", "request the GPUs"),
        ("ncclSystemError: System call\nLast error:\nCall to ibv_create_cq failed with error Cannot allocate memory",
         "efa", "raise memlock"),
        ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded",
         "checkpoint", "weights_only=False"),
        ("RuntimeError: unexpected EOF, expected 7263 more bytes. The file might be corrupted.",
         "checkpoint", "an older run"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/mnt/sft/train.json'", "data", "the data"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/etc/ds.json'", "config", "the option"),
    ],
)  # fmt: skip
def test_a_remedy_is_that_of_the_cause_and_not_of_words_beside_it(
    yard: Yard, error: str, kind: str, remedy: str
) -> None:
    log = write("a.log", f"{MEMORY.rpartition('torch.')[0]}{error}\n")
    found = yard.json("why", "--log", log, code=1)["causes"][0]
    assert found["cause"] == kind
    assert remedy in found["remedy"]


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("Aborted", "memory-fault"),
        ("Illegal instruction (core dumped)", "memory-fault"),
        ("run.sh: line 5:    23 Illegal instruction     (core dumped) python train.py", "memory-fault"),
        ("Floating point exception (core dumped)", "memory-fault"),
        ("*** stack smashing detected ***: terminated", "memory-fault"),
        ("run.sh: line 5:    23 Terminated              python train.py", "drained"),
        ("run.sh: line 5:    23 Terminated              nvidia-smi dmon", None),
        ("NVRM: Xid (PCI:0000:53:00): 31, pid=1, name=python, MMU Fault", "device"),
    ],
)  # fmt: skip
def test_a_signal_that_the_shell_names_ends_a_training(yard: Yard, last: str, kind: str | None) -> None:
    found = yard.json("why", "--log", write("a.log", f"{STEPS}\n{last}\n"), code=1 if kind else 0)
    assert ([cause["cause"] for cause in found["causes"]] or [None])[0] == kind


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -7) local_rank: 0 (pid: 44)", 1),
        ("run.sh: line 5:    23 Bus error               (core dumped) python train.py", 135),
        ("saving", 135),
    ],
)  # fmt: skip
def test_a_bus_error_is_mostly_shared_memory(yard: Yard, last: str, code: int) -> None:
    log = write("a.log", f"{STEPS}\n{last}\n")
    found = yard.json("why", "--log", log, "--exit-code", str(code), code=1)["causes"][0]
    assert found["cause"] == "memory-fault"
    assert "/dev/shm" in found["remedy"]


def test_a_programs_own_xid_is_no_broken_gpu(yard: Yard) -> None:
    log = write("a.log", "NVRM: Xid (PCI:0000:53:00): 31, pid=1, name=python, MMU Fault\n")
    assert "CUDA_LAUNCH_BLOCKING" in yard.json("why", "--log", log, code=1)["causes"][0]["remedy"]


# What programs print of their steps, in forms that the reader of metrics need not know.
PROGRESS = (
    "iter {n} loss 2.{n}",
    "Epoch 3/10 [{n}/1000] Loss: 1.{n}",
    "epoch {n}, train acc 0.{n}",
    " {n}0%|####      | {n}0/100 [00:0{n}<00:09, 1.01it/s]",
    "{n}/100 [=>......] - ETA: 3s - loss: 0.{n} - accuracy: 0.5",
    '2026-01-01 10:00:00 | INFO | train_inner | {{"epoch": 1, "update": {n}, "loss": "4.{n}"}}',
    " iteration  {n}/  100 | consumed samples: {n}00 | lm loss: 1.{n}E+00 | grad norm: 1.2 |",
    "{{'loss': 2.{n}, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'epoch': 0.{n}}}",
    "[step {n}] ce=2.{n} lr=1e-4",
    "Train Epoch: 1 [{n}00/60000 (1%)]\tLoss: 0.{n}",
    "batch {n} of 500: 2.{n}",
    "step={n} ppl=3{n}.1",
    "| epoch   1 |  {n}00/ 2983 batches | lr 5.00 | ms/batch  8.{n} | loss  6.{n} | ppl 900.1",
    "INFO:tensorflow:loss = 3.{n}, step = {n}00 (4.1 sec)",
    "{n}: loss 4.{n}, 2100 tokens/s",
    "episode {n} reward 1{n}.0",
    "[1,0]<stdout>:925/925 - 522s - loss: 0.{n} - auc: 0.7404",
    "(RayTrainWorker pid=17) round {n} loss=0.{n}",
    '{{"step": {n}, "train_loss": 1.{n}}}',
    "Epoch {n}: train_loss=0.{n}, val_acc=0.8",
    "[Epoch 0][Iter {n}] cls 0.{n} box 0.1 total loss 0.3",
    "I0101 10:00:0{n}.000000 17 solver.cpp:218] Iteration {n}00 (2.1 iter/s), loss = 0.{n}",
    "worker 0: {n}00 samples, 31{n} samples/s",
)


@pytest.mark.parametrize("form", PROGRESS)
def test_steps_in_any_form_are_training(form: str) -> None:
    """Also if the program said before that a part of it needs more GPUs."""
    steps = [form.format(n=n) for n in range(1, 7)]
    refused = "tensor parallelism requires at least 2 GPUs"
    for lines in (steps, [refused, *steps]):
        log = log_files.LogFile("a.log", log_lines.read("\n".join(lines), "a.log"))
        found = log_files.explain([log], 0)
        assert (found.state, found.causes) == (State.PASS, []), (form, found.causes)
    short = log_files.LogFile("a.log", log_lines.read(f"{refused}\ngood bye", "a.log"))
    assert log_files.explain([short], 0).causes[0].kind == "no-steps"


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-03-01T10:00:0{n}.123456789Z stderr F ",
        "[pod/train-worker-0/pytorch] ",
        "trainer-1  | ",
        "Mar  1 10:00:0{n} node-7 trainer[4711]: ",
        "[2026-03-01 10:00:0{n}.123] ",
        "2026-03-01 10:00:0{n},123 ",
        "(TrainWorker pid=4711, ip=10.0.0.7) ",
        "[1,0]<stderr>:",
        "[default0]:",
        "[stderr] ",
        "3: ",
        "10.0.0.7: ",
    ],
)
def test_what_a_collector_puts_before_lines_is_not_read(prefix: str) -> None:
    for case in CASES[::9]:
        # Two collectors, one behind the other.
        if case.name.endswith(("behind-a-long-prefix", "its-own-brackets-around-the-time")):
            continue
        lines = case.text.split("\n")
        marked = (prefix.format(n=n % 10) + line for n, line in enumerate(lines))
        found = log_causes.first_cause(log_lines.read("\n".join(marked)))
        assert (found.kind if found else HEALTHY) == case.why, case.name


@pytest.mark.parametrize("prefix", ["worker: ", "> ", "    "])
def test_what_stands_before_all_lines_is_not_read(prefix: str) -> None:
    error = ["starting", *MEMORY.splitlines()]
    found = log_causes.first_cause(log_lines.read("\n".join(prefix + line for line in error)))
    assert found is not None
    assert (found.kind, found.exception) == ("oom-device", True)


@pytest.mark.parametrize(
    "put",
    [
        lambda line: {"log": f"{line}\n", "stream": "stderr"},  # Docker
        lambda line: {"log": json.dumps({"level": "error", "exception": line}), "stream": "stderr"},
        lambda line: {"textPayload": line, "severity": "ERROR"},  # Google Cloud, by the stream
        lambda line: {"jsonPayload": {"message": line}, "severity_number": 9},
        lambda line: {"log": line, "level": "info", "kubernetes": {"pod_name": "a"}},  # a collector's guess
        lambda line: {"content": {"message": line, "service": "train"}, "id": "A"},  # Datadog
        lambda line: {"line": line, "labels": {"pod": "a"}},  # Loki
        lambda line: {"body": line, "attributes": {}},  # OpenTelemetry
        lambda line: {"@timestamp": "2026-03-01 10:00:00", "@message": line},  # CloudWatch
    ],
)
def test_lines_that_a_collector_has_put_into_json_are_read(put: Callable[[str], dict[str, Any]]) -> None:
    text = "\n".join(json.dumps(put(line)) for line in MEMORY.splitlines())
    for read in (text, json.dumps([put(line) for line in MEMORY.splitlines()], indent=2)):
        found = log_causes.first_cause(log_lines.read(read))
        assert found is not None
        assert found.kind == "oom-device"
    found = log_causes.first_cause(log_lines.read(text))
    assert found is not None
    assert (found.exception, found.text[:23]) == (True, "torch.OutOfMemoryError:")


@pytest.mark.parametrize(
    "line",
    [
        {"log.level": "error", "message": "failed", "error": {"type": "E", "stack_trace": MEMORY}},
        {"severity_text": "ERROR", "body": "failed", "attributes": {"exception.stacktrace": MEMORY}},
        {"level": 50, "msg": f"failed\n{MEMORY}"},
        {"level": "error", "event": "failed", "exception": MEMORY},
    ],
)
def test_the_traceback_in_a_line_of_json_is_read(line: dict[str, Any]) -> None:
    found = log_causes.first_cause(log_lines.read(json.dumps(line)))
    assert found is not None
    assert (found.kind, found.exception) == ("oom-device", True)
    quiet = {**line, "level": "info", "severity_text": "INFO", "log.level": "info"}
    assert log_causes.first_cause(log_lines.read(json.dumps(quiet))) is None


def test_an_error_of_an_unknown_program_counts_at_the_end_of_a_log_that_did_not_end_well(yard: Yard) -> None:
    error = "[merger] error: 3 of 9 parts are odd\n"
    log = write("a.log", f"starting\n{error}")
    found = yard.json("why", "--log", log, code=1)["causes"][0]
    assert (found["cause"], found["evidence"][0]) == ("crash", f"a.log:2: {error.strip()}")
    yard.json("why", "--log", log, "--exit-code", "1", code=1)
    done = write("b.log", f"{error}merged 9 parts, done\n")
    yard.json("why", "--log", done, "--exit-code", "0", code=0)
    early = write("c.log", error + "waiting\n" * 60)
    assert yard.json("why", "--log", early, code=3)["causes"] == []


SUMMARY = "E0101 1 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 2) local_rank: 1 (pid: 9)\n"


@pytest.mark.parametrize("before", ["", "step: 1 loss: 2.5\nstep: 2 loss: 2.4\nstep: 3 loss: 2.3\n"])
def test_a_launcher_without_the_output_of_its_child_is_quoted(yard: Yard, before: str) -> None:
    found = yard.json("why", "--log", write("a.log", before + SUMMARY), code=3)
    assert found["causes"] == []
    assert "(exitcode: 2)" in found["looked_at"][0]


@pytest.mark.parametrize(
    "end",
    [
        "srun: error: node-1: task 3: Exited with exit code 1",
        "mpirun detected that one or more processes exited with non-zero status, thus causing the job to be ended.",
        "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD with errorcode 1.",
        "[ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py', '--local_rank=7'] exits with return code = 1",
    ],
)
def test_the_end_of_a_launcher_is_not_a_cause(yard: Yard, end: str) -> None:
    found = yard.json("why", "--log", write("a.log", f"start\n{end}\n"), code=3)
    assert "its own output is not in the log" in found["summary"]
    assert found["looked_at"][0] == f"a.log:2: {end}"


def test_a_traceback_without_its_last_line_shows_where_and_not_why(yard: Yard) -> None:
    frames = MEMORY.rpartition("torch.OutOf")[0] + "    loss.backward()\n"
    found = yard.json("why", "--log", write("a.log", f"{STEPS}\n{frames}"), code=3)
    assert "ends inside a traceback" in found["summary"]
    assert found["looked_at"][0] == "a.log:11: loss.backward()"
    raised = frames + '  File "/opt/lib/loader.py", line 3, in read\n    raise OSError("No space left on device")\n'
    assert yard.json("why", "--log", write("b.log", raised), code=1)["causes"][0]["cause"] == "storage-full"


def test_without_a_failure_the_last_warning_is_quoted(yard: Yard) -> None:
    log = write("a.log", "start\n[W822 03:54:49 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl\n")
    assert "a.log:2: [W822" in yard.json("why", "--log", log, code=3)["looked_at"][1]


@pytest.mark.parametrize(
    ("form", "kinds"),
    [
        ("02:31:{n}: train iter: {n} loss_net: nan loss_scale: 785.4", ["nan"]),
        ("{{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.{n}}}", ["nan"]),
        ("  {n}/100     10.2G        nan        nan        nan        120        640", ["nan"]),
        ("Train Loss: nan | Val Loss: nan | {n}", ["nan"]),
        ("Epoch 0: 10%|# | {n}/100 [00:01<00:09, 9.51it/s, v_num=0, train_loss=nan.0]", ["nan"]),
        ("Epoch 0: 10%|# | {n}/100 [00:01<00:09, 9.51it/s, train_loss_step=inf.0, lr=0.1]", ["nan"]),
        ("WARNING: NaN or Inf found in input tensor.", ["nan"]),
        ("02:31:{n}: train iter: {n} loss_net: 0.{n} loss_scale: 785.4", []),
    ],
)
def test_a_loss_that_is_no_number_is_told_in_any_form(yard: Yard, form: str, kinds: list[str]) -> None:
    log = write("a.log", "".join(form.format(n=n) + "\n" for n in range(10, 14)))
    found = yard.json("why", "--log", log, code=1 if kinds else 3)
    assert [cause["cause"] for cause in found["causes"]] == kinds


def test_the_evidence_shows_what_is_no_number(yard: Yard) -> None:
    """transformers prints a loss of 0 where it is not a number; the norm tells, and no step is invented."""
    text = "\n".join(f"{{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.{turn}}}" for turn in range(9))
    (cause,) = yard.json("why", "--log", write("a.log", text), code=1)["causes"]
    assert set(cause["evidence"]) == {"a.log: loss 0.0, gradient norm nan"}


def test_an_error_of_the_program_is_shown_with_its_place(yard: Yard) -> None:
    log = write(
        "a.log",
        """\
Traceback (most recent call last):
  File "/home/user/train.py", line 9, in main
    optimizer.step()
  File "/usr/lib/python3.11/site-packages/torch/optim/sgd.py", line 94, in step
    buf.mul_(momentum)
TypeError: 'int' object is not callable
""",
    )
    found = yard.json("why", "--log", log, code=1)["causes"][0]
    assert found["cause"] == "script"
    assert found["evidence"] == [
        "a.log:6: TypeError: 'int' object is not callable",
        "raised at /home/user/train.py:9, in main",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("communication/the-reason-on-the-fourth-line", "Connect to 169.254.0.1<40815> failed"),
        ("script/first-of-two-ranks", "KeyError: 'labelz'"),
        ("communication/nccl-connect-refused-pod-identity", "connect to 169.254.170.23<41233> returned"),
        ("checkpoint/keys-on-the-second-line", 'Missing key(s) in state_dict: "layers.0.weight"'),
    ],
)
def test_the_evidence_has_what_the_next_lines_of_a_message_say(yard: Yard, name: str, words: str) -> None:
    case = next(case for case in CASES if name in case.name)
    found = yard.json("why", "--log", write("a.log", case.text), code=1)
    assert found["causes"][0]["evidence"][0].count(words) == 1


def test_an_abort_that_follows_a_time_out_is_no_fault_of_memory(yard: Yard) -> None:
    case = next(case for case in CASES if case.why == "collective-timeout")
    found = yard.json("why", "--log", write("a.log", case.text), "--exit-code", "134", code=1)
    assert found["causes"][0]["cause"] == "collective-timeout"


def test_no_healthy_log_is_alarmed() -> None:
    """The corpus' healthy logs, with no exit code and with that of success."""
    healthy = [case for case in CASES if case.why == HEALTHY]
    assert len(healthy) >= 60
    for case in healthy:
        log = log_files.LogFile(case.name, log_lines.read(case.text, case.name))
        for code in (None, 0):
            found = log_files.explain([log], code)
            alarms = [cause for cause in found.causes if cause.kind != "no-steps"]
            assert not alarms, (case.name, alarms)


def test_a_secret_in_a_log_is_not_shown(yard: Yard) -> None:
    token = "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z"
    log = write("a.log", f"OSError: 401 Client Error: {token} is not a valid token\n")
    assert token not in yard.out("why", "--log", log, code=1)
    assert token not in yard.out("why", "--log", log, "--json", code=1)
    assert token not in yard.out("why", "--log", write("b.log", token), "--exit-code", "9", code=1)


def test_no_byte_of_a_log_reaches_the_terminal_as_a_command(yard: Yard) -> None:
    Path("a.log").write_bytes(b"ValueError: \x1b]0;title\x07 \x9b31m \xff\xfe \x1b[2J a is not b\r\n")
    shown = yard.out("why", "--log", "a.log", code=1)
    assert "a is not b" in shown
    assert not [sign for sign in shown if (ord(sign) < 32 and sign != "\n") or 127 <= ord(sign) < 160]


def test_the_proof_is_not_cut_off(yard: Yard) -> None:
    words = "x" * 600
    log = write("a.log", f"RuntimeError: {words} CUDA out of memory. Tried to allocate 2.00 GiB\n")
    found = yard.json("why", "--log", log, code=1)
    assert "CUDA out of memory" in found["causes"][0]["evidence"][0]


def test_the_first_and_the_last_words_of_a_long_proof_are_shown(yard: Yard) -> None:
    name = "cannot import name 'is_it' from 'accelerate.utils'"
    words = f"{'x' * 90} {name} (/home/user/{'y' * 90}/site-packages/accelerate)"
    found = yard.json("why", "--log", write("a.log", f"ImportError: {words}\n"), code=1)
    shown = found["causes"][0]["evidence"][0]
    assert "cannot import name 'is_it'" in shown
    assert "site-packages" in shown


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("none.log", None, "No such file"),
        (".", None, "Is a directory"),
        ("a.gz", gzip.compress(b"abc" * 999, mtime=0)[:-9], "damaged gzip data"),
        ("b.gz", b"\x1f\x8b\x08\x00" + b"\xff" * 90, "damaged gzip data"),
        ("a.bin", b"ELF\0\1\2\3", "not a text"),
    ],
    ids=["absent", "a directory", "cut", "damaged", "binary"],
)
def test_what_is_no_log_is_bad_input(yard: Yard, name: str, data: bytes | None, words: str) -> None:
    if data is not None:
        Path(name).write_bytes(data)
    with pytest.raises(UserError, match=words):
        log_files.read(name)
    yard.err("why", "--log", name, code=2)


def test_a_long_log_is_read_at_its_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "CHUNK", 1 << 10)
    monkeypatch.setattr(log_files, "KEPT", 4 << 10)
    monkeypatch.setattr(log_files, "LARGEST", 64 << 10)
    name = write("a.log", "a line of a log\n" * 1000 + MEMORY)
    read = log_files.read(name)
    assert len(read.lines) < 300
    assert read.lines[-1].number == 1003
    assert log_files.explain([read]).causes[0].evidence[0].startswith("a.log:1003: ")
    Path("bomb.gz").write_bytes(gzip.compress(bytes(range(32, 64)) * 4000))
    with pytest.raises(UserError, match="more than"):
        log_files.read("bomb.gz")


@pytest.mark.parametrize("words", [["--exit-code", "1"], ["a", "b"], ["--log", "a.log", "--from", "b"]])
def test_options_that_do_not_go_together(yard: Yard, words: list[str]) -> None:
    write("a.log", STEPS)
    Path("b").mkdir()
    yard.err("why", *words, code=2)
