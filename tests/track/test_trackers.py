"""Real trackers get a real run: a server of MLflow on loopback, Weights & Biases offline, trackio's database."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.parts import venv
from tests.parts.ports import free_port
from tests.training.inprocess import StopAfter, Texts, losses, run
from training.run.directory import RunDir, read_json, write_json
from training.run.secret_files import DIRECTORY
from training.trackers import processes

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path(__file__).with_name("requirements.lock")
SECONDS = 300.0  # for a server that starts on a busy machine
# Run by the environment's own Python: the records of Weights & Biases' files, as JSON. A file is a log of LevelDB:
# behind its head, blocks of 32 KiB hold parts with a checksum, a length and a kind (whole, first, middle, last).
READ_WANDB = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
def records(data):
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts = data[at + 7 : at + 7 + length] if kind in (1, 2) else parts + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
for path in sys.argv[1:]:
    for found in records(open(path, "rb").read()):
        record = Record()
        record.ParseFromString(found)
        if record.HasField("run"):
            config = {one.key: json.loads(one.value_json) for one in record.run.config.update}
            print(json.dumps({"id": record.run.run_id, "project": record.run.project, "config": config}))
        if record.HasField("history"):
            print(json.dumps({one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}))
"""
pytestmark = [pytest.mark.long, pytest.mark.longest, pytest.mark.timeout(900)]  # `make test-track`
SHORT = ("train.steps=8", "train.warmup_steps=2", "checkpoint.every=4")


@pytest.fixture(scope="session")
def python() -> Path:
    found = venv.python(LOCK)
    if found is None:
        pytest.skip("needs the trackers: python -m tests.parts.venv tests/track/requirements.lock")
    return found


@pytest.fixture
def trainer(python: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The trainer of this process, whose trackers' processes have the environment with their packages."""
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(processes, "check_packages", lambda track: None)
    monkeypatch.setattr("training.trainer.loop.check_packages", lambda track: None)
    monkeypatch.setattr(processes, "END_SECONDS", 100)
    monkeypatch.setattr(processes, "FAILED_SECONDS", 100)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return python


class Server:
    """A server of MLflow with a database in a directory."""

    def __init__(self, python: Path, directory: Path) -> None:
        self.port, self._directory, self._python = free_port(), directory, python
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["-m", "mlflow", "server", "--host=127.0.0.1", f"--port={self.port}", "--workers=1"]
        store = f"--backend-store-uri=sqlite:///{self._directory / 'mlflow.db'}"
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._python), *words, store], cwd=self._directory, stdout=log, stderr=log, start_new_session=True,
                # Its job runners, which nothing here uses, start eight more processes.
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip
        deadline = time.monotonic() + SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._directory / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, 15)
            self._process.wait(60)

    def ask(self, what: str, **given: Any) -> dict[str, Any]:
        """Ask MLflow's own API."""
        if "metric_key" in given:
            query = "&".join(f"{key}={value}" for key, value in given.items())
            request = urllib.request.Request(f"{self.url}/api/2.0/mlflow/{what}?{query}")
        else:
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{self.url}/api/2.0/mlflow/{what}", json.dumps(given).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def runs(self) -> list[dict[str, Any]]:
        experiments = self.ask("experiments/search", max_results=100)["experiments"]
        return self.ask("runs/search", experiment_ids=[one["experiment_id"] for one in experiments]).get("runs", [])

    def history(self, run_id: str, key: str) -> list[tuple[int, float]]:
        found = self.ask("metrics/get-history", run_id=run_id, metric_key=key)["metrics"]
        return [(int(one["step"]), float(one["value"])) for one in found]


@pytest.fixture
def server(python: Path, tmp_path: Path) -> Iterator[Server]:
    directory = tmp_path / "server"
    directory.mkdir()
    found = Server(python, directory)
    found.start()
    yield found
    found.stop()


def test_three_trackers_get_a_run_that_was_stopped_and_continued(
    trainer: Path,
    server: Server,
    texts: Texts,
    data_root: Path,
    tmp_path: Path,
) -> None:
    settings = (
        *SHORT, f"track.mlflow.uri={server.url}", "track.mlflow.experiment=tiny models", "track.wandb.mode=offline",
        "track.wandb.project=tiny", "track.trackio.project=tiny", "track.tags={team: a}",
    )  # fmt: skip
    run(texts, settings, tmp_path / "runs/mine", data_root, StopAfter(6))
    (stopped,) = server.runs()
    assert stopped["info"]["status"] == "FAILED"
    done = run(texts, settings, tmp_path / "runs/mine", data_root)
    expected = list(enumerate(losses(done), 1))  # exactly: all three keep 64 bits

    (found,) = server.runs()
    assert (found["info"]["run_name"], found["info"]["status"]) == ("mine", "FINISHED")
    tags = {one["key"]: one["value"] for one in found["data"]["tags"]}
    assert (tags["team"], tags["trainyard.data"]) == ("a", read_json(done.run)["dataset"])
    parameters = {one["key"]: one["value"] for one in found["data"]["params"]}
    assert (parameters["train.steps"], parameters["model.hidden_size"]) == ("8", "64")
    number = found["info"]["run_id"]
    assert server.history(number, "loss") == expected
    assert [step for step, _ in server.history(number, "checkpoint")] == [4, 6, 8]
    last = {one["key"] for one in found["data"]["metrics"]}
    assert {"heldout_loss", "lr", "grad_norm", "tokens_per_s", "mfu"} <= last

    files = sorted((done.track / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2, "one for each start"
    words = [str(trainer), "-c", READ_WANDB, *map(str, files)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    lines = [json.loads(line) for line in told.splitlines()]
    begun = [line for line in lines if "id" in line]
    assert {(one["id"], one["project"]) for one in begun} == {(read_json(done.track / "wandb.json")["id"], "tiny")}
    assert begun[0]["config"]["train.steps"] == "8"
    assert [(one["step"], one["loss"]) for one in lines if "loss" in one] == expected

    (database,) = [path for path in (done.track / "trackio").glob("*.db") if "tiny" in path.name]
    with sqlite3.connect(database) as store:
        rows = store.execute("select step, metrics from metrics order by id").fetchall()
    values = [(step, json.loads(text)) for step, text in rows]
    assert [(step, one["loss"]) for step, one in values if "loss" in one] == expected


SAGEMAKER = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/team"


@pytest.mark.parametrize("sagemaker", [False, True], ids=["mlflow", "sagemaker"])
def test_what_a_dead_server_missed_is_sent_when_it_is_back(
    trainer: Path, server: Server, texts: Texts, data_root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, sagemaker: bool,
) -> None:  # fmt: skip
    """With a name of SageMaker its plugin finds and signs the requests to the same server."""
    monkeypatch.setenv("SAGEMAKER_MLFLOW_CUSTOM_ENDPOINT", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA" + "EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")
    server.stop()
    uri = SAGEMAKER if sagemaker else server.url
    done = run(texts, (*SHORT, f"track.mlflow.uri={uri}"), tmp_path / "runs/mine", data_root)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tracker mlflow: ")]
    assert len(said) == 2, said
    assert "11 rows were not sent" in said[1]
    server.start()
    assert by_hand(trainer, done) == (0, "")
    (found,) = server.runs()
    assert found["info"]["status"] == "FINISHED"
    assert server.history(found["info"]["run_id"], "loss") == list(enumerate(losses(done), 1))


def by_hand(python: Path, done: RunDir) -> tuple[int, str]:
    words = [str(python), "-m", "training.track", "--run", str(done.path)]
    sent = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL)
    return sent.returncode, sent.stderr


class Refuses(BaseHTTPRequestHandler):
    """Answers 401 to everything, and keeps what it was given to know the client by."""

    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        self.send_response(401)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_secret_goes_to_the_server_only_and_a_refusal_is_one_line(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Refuses.seen.clear()
    url, key = f"http://127.0.0.1:{server.server_port}", "0123456789abcdef" * 2 + "01234567"
    for name in ("mlflow-tracking-token", "wandb-api-key"):
        (tmp_path / name).write_text(key)
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = RunDir(tmp_path / "run")
    write_json(done.run, {"config": {"train": {"steps": 1}}})
    settings = {
        "mlflow": {"uri": url, "experiment": "a"},
        "wandb": {"server": url, "project": "a", "entity": None, "mode": "online"},
    }
    write_json(done.track / "settings.json", {"run": "mine", tracker: settings[tracker]})
    done.metrics.write_text('{"step": 1, "time": 1.0, "loss": 2.0}\n')
    code, said = by_hand(python, done)
    server.shutdown()
    server.server_close()
    assert (code, said.count("\n")) == (1, 2), said
    assert "does not take this run: " in said
    assert "1 rows were not sent" in said
    assert any(seen and (key in seen or "Basic" in seen) for seen in Refuses.seen)
    assert not [path for path in done.path.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
