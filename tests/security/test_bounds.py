"""What a stranger wrote is read within bounds: manifests, data, templates and Dockerfiles."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import resource
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tools.cluster import cluster_env
from tools.core import command_line
from tools.core.command_line import LONGEST_LINE, MOST_LINES
from tools.core.errors import UserError
from tools.gitops import git_secrets
from tools.image.dockerfile import context, dockerignore
from tools.image.dockerfile import parse as dockerfile
from tools.image.engine import Engine
from tools.job import copy, devices
from tools.job.diagnosis import log_causes
from tools.job.snapshot import log_lines
from tools.job.snapshot.pod import JobPod
from tools.kube import manifests
from tools.preflight.evaluate import evaluate
from training.config.base import ConfigError, divisor_near
from training.config.loader import apply_override, load_texts
from training.data import http, index, readers, retries, tokenizer
from training.data.errors import DataError
from training.data.examples import template
from training.remote import file_sender
from training.run import trainer_logs

MEMORY = 500 * 2**20  # bytes that a bomb may take
HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
JOB = (
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec:\n  nprocPerNode: %s\n"
    "  pytorchReplicaSpecs: {Worker: {replicas: %s, template: {spec: {containers: [{name: pytorch}]}}}}\n"
)
LETTERS = "abcdefghij"
ALIASES = "a: &a [x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in itertools.pairwise(LETTERS)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: v}}\n" for n in range(1, 5000))
BOMBS = {
    "aliases": (HEAD + ALIASES, "the aliases stand for more than"),
    "merge keys": (HEAD + MERGES, "the aliases stand for more than"),
    "brackets": ("[" * 100_000, "mappings and lists in each other"),
    "closed brackets": ("[" * 900 + "]" * 900, "mappings and lists in each other"),
    "braces": ("{a: " * 900 + "}" * 900, "mappings and lists in each other"),
    "dashes": ("- " * 100_000, "mappings and lists in each other"),
    "keys": ("? " * 100_000, "mappings and lists in each other"),
    "itself": (HEAD + "a: &a [*a]\n", "part of the value that it stands for"),
    "itself by merge": (HEAD + "a: &a\n  <<: *a\n", "part of the value that it stands for"),
    "integer": (HEAD + f"a: {'9' * 5000}\n", "a number of 5000 characters"),
    "octal": (HEAD + f"a: 0o{'7' * 5000}\n", "a number of 5002 characters"),
    "hexadecimal": (HEAD + f"a: 0x{'f' * 1_000_000}\n", "a number of"),
    "tagged integer": (HEAD + 'a: !!int ""\n', "found the tag"),
    "tagged object": (HEAD + "a: !!python/object/apply:os.system [id]\n", "found the tag"),
    "values": (HEAD + "a: [" + "1," * 400_000 + "]\n", "more than 200000 values"),
    "documents": ("---\n" * 100_000, "more than 10000 documents"),
    "size": (HEAD + "#" * (11 * 2**20), "more than 10,485,760"),
    "duplicate": (HEAD + "kind: Secret\n", "duplicate key"),
    "NUL": (HEAD + "a: \0\n", "not valid YAML"),
    "replicas": (JOB % (1, 10**9), "replicas is 1e+09"),
    "processes": (JOB % ('"1000000000"', 1), "nprocPerNode is 1e+09"),
}


def limited(*words: str, seconds: float = 180, memory: int = 2 * 2**30) -> subprocess.CompletedProcess[str]:
    """Run Python with at most `memory` bytes of addresses; libraries alone take a part of them."""
    return subprocess.run(
        [sys.executable, *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_in_a_manifest_is_one_error(name: str, tmp_path: Path) -> None:
    text, said = BOMBS[name]
    path = tmp_path / "bomb.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said.replace("+", r"\+")) as raised:
        manifests.read(path)
    assert raised.value.code == 2
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 400


def test_preflight_ends_with_exit_code_2_and_little_memory(tmp_path: Path) -> None:
    """All bombs at once in one process, then two in processes of their own, as a user sees them."""
    for name, (text, _) in BOMBS.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "utf16.yaml").write_bytes(HEAD.encode("utf-16"))
    script = (
        "import pathlib, sys\n"
        "from tools.core.errors import UserError\n"
        "from tools.kube import manifests\n"
        "for path in pathlib.Path(sys.argv[1]).iterdir():\n"
        "    try: manifests.read(path)\n"
        "    except UserError: continue\n"
        "    sys.exit(f'{path} was read')\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(1024 * int(status.partition('VmHWM:')[2].split()[0]))\n"
    )
    done = limited("-c", script, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MEMORY
    for name in ("brackets", "aliases"):
        seen = limited("-m", "tools.cli", "preflight", "-f", str(tmp_path / f"{name}.yaml"))
        assert (seen.returncode, seen.stderr.count("\n")) == (2, 1), seen.stderr
        assert seen.stderr.startswith("error: ")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    link = tmp_path / "link.yaml"
    link.symlink_to("/dev/zero")
    for path in (tmp_path / "fifo", Path("/dev/zero"), link, tmp_path):
        with pytest.raises(UserError):
            manifests.read(path)
    plain = tmp_path / "plain.yaml"
    plain.write_text(HEAD, encoding="utf-8")
    own = tmp_path / "own.yaml"
    own.symlink_to(plain)
    assert len(manifests.read(own).objects) == 1  # the control: a link of the user to a file


def test_thousand_objects_are_read() -> None:
    text = "---\n".join(HEAD.replace("a}", f"a{n}}}") + "data: {" + "k: v}\n" for n in range(1000))
    assert len(manifests.parse(text, "many").objects) == 1000


@pytest.mark.parametrize("name", ["aliases", "brackets", "itself", "integer"])
def test_bomb_in_a_configuration_is_one_error(name: str) -> None:
    text = BOMBS[name][0].removeprefix(HEAD)
    with pytest.raises(ConfigError):
        load_texts({layer: (f"{layer}.yaml", text) for layer in ("model", "hardware", "cell")})
    value = text if name in ("brackets", "integer") else f"{{{text}}}"
    with pytest.raises(ConfigError):
        apply_override({"model": ("model.yaml", "")}, f"train.steps={value}")


def test_row_of_a_gigabyte_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"text": "a"}\n{"text": "')
        for _ in range(80):
            file.write(b"a" * 2**20)
        file.write(b'"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl\.gz, line 2: more than 64 MiB"):
        list(readers.rows_of(path, "text"))


def test_endless_blank_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_MOST_UNPACKED", 2**20)
    path, plain = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write((b" " * 999 + b"\n") * 50_000)
    with pytest.raises(DataError, match="unpacks to 200 times its size"):
        list(readers.rows_of(path, "text"))
    with gzip.open(plain, "wb") as file:
        file.writelines(json.dumps({"text": os.urandom(500).hex()}).encode() + b"\n" for _ in range(2000))
    assert len(list(readers.rows_of(plain, "text"))) == 2000


@pytest.mark.parametrize("row", ["[" * 100_000, '{"text": ' + "9" * 5000 + "}"], ids=["deep", "integer"])
def test_json_that_cannot_be_read_names_its_line(row: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(row + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1"):
        list(readers.rows_of(path, "text"))


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% set x = 1 %}{% endfor %}{% endfor %}",
        "{{ 'a' * 8000000000 }}",
        "{{ 'a' | center(9000000000) }}",
    ],
    ids=["loops", "product", "padding"],
)
def test_chat_template_ends(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "LONGEST", 0.5)
    with pytest.raises(DataError, match=r"the chat template .* needs more than"):
        template.ChatTemplate(text, {}).check()


def _variables() -> str:
    doubled = "".join(f"ENV A{n}=$A{n - 1}$A{n - 1}\n" for n in range(1, 60))
    return f"FROM a\nENV A0=xxxxxxxx\n{doubled}"


@pytest.mark.parametrize(
    "read",
    [
        lambda: dockerfile.parse(_variables(), "Dockerfile"),
        lambda: dockerfile.parse("FROM a AS a\n" * 2000, "Dockerfile"),
        lambda: dockerfile.parse("FROM a\n" + "#" * 2**20, "Dockerfile"),
        lambda: dockerignore.parse("*a*a*a*a*a*a*a*a*a*a*a*b"),
        lambda: dockerignore.parse("a[z-a]"),
    ],
    ids=["variables", "stages", "size", "wildcards", "range"],
)  # fmt: skip
def test_bomb_in_a_dockerfile_is_one_error(read: Callable[[], object]) -> None:
    with pytest.raises(UserError):
        read()


def test_line_of_a_log_is_cut_and_says_so() -> None:
    (line,) = log_lines.read("loss " * 100_000)
    assert len(line.text) < trainer_logs.LONGEST + 50
    assert line.text.endswith("... (cut: 500000 characters)")


def test_hostile_log_has_a_cause_or_none() -> None:
    """The review's lines, and values that are no numbers; each took more than 20 s or a traceback."""
    lines = [
        *("step 1 loss" + " " * 60_000, "loss: 1 step" + " " * 60_000, "1.1.1." * 10_000, "( pid=1 " * 9_000),
        *("nan " * 20_000, "checkpoint " * 9_000, "429 " * 9_000, "{" * 60_000),
        '{"step": ' + "9" * 60_000 + "}",
        *("0001-01-01T00:00:00+14:00 x", "step " + "9" * 5_000 + " loss 1", "[rank" + "9" * 5000 + "]: x"),
    ]  # fmt: skip
    log_causes.first_cause(log_lines.read("\n".join(lines)))


POD = (
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec:\n  pytorchReplicaSpecs:\n"
    "    Master:\n      replicas: 1\n      template:\n        spec:\n"
)


def _many(count: int, line: str) -> str:
    return "".join(line.replace("%", str(number)) for number in range(count))


LARGE = {
    "volumes": POD
    + "          containers: [{name: pytorch}]\n          volumes:\n"
    + _many(4000, "          - {name: c%, configMap: {name: x%}}\n"),
    "mounts": POD
    + "          containers:\n          - name: pytorch\n            volumeMounts:\n"
    + _many(3000, "            - {name: v%, mountPath: /x%}\n")
    + "          volumes:\n"
    + _many(3000, "          - {name: c%, emptyDir: {}}\n"),
}


def test_large_manifests_are_checked_in_time(tmp_path: Path) -> None:
    """Each took more than 20 s of CPU time. The kernel ends the process after both have had 20 s."""
    for name, text in LARGE.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    script = (
        "import pathlib, sys\n"
        "from tools.kube import manifests\n"
        "from tools.preflight.evaluate import evaluate\n"
        "for path in pathlib.Path(sys.argv[1]).iterdir():\n"
        "    assert evaluate(manifests.read(path)).verdicts\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_faults_of_one_object_are_cut_and_say_so() -> None:
    found = evaluate(manifests.parse(HEAD + _many(1000, "k%: v\n"), "x")).verdicts
    schema = [one.summary for one in found if one.details["rule"] == "schema"]
    assert len(schema) <= 101
    assert "not built" in schema[0] or "more than 100 faults" in schema[-1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("while True: print('+', flush=True)", "does not progress"),
        ('print(\'{"name": "a", "size": 1000000000000000000}\')', "free"),
    ],
    ids=["signs of life", "size"],
)
def test_a_pod_cannot_keep_cp_waiting(
    world: NewWorld, cluster: Cluster, tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch,
    answer: str, said: str,
) -> None:  # fmt: skip
    cluster(world())
    sender = tmp_path / "sender.py"
    sender.write_text(f"import sys\ndef main(*words):\n    {answer}\n")
    monkeypatch.setattr(file_sender, "__file__", str(sender))
    monkeypatch.setattr(copy, "PATIENCE", 0.5)
    assert said in yard.err("cp", "cpu-llama-tiny-train", ".", str(tmp_path / "out"), code=1)
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_report_of_a_pod_with_countless_devices_is_refused() -> None:
    pod = JobPod({"metadata": {"name": "a"}, "spec": {}})
    for name in ("neuron_device_count", "neuroncore_per_device_count"):
        hardware = {"neuron_device_count": 1, name: 10**9}
        with pytest.raises(ValueError, match="devices with"):
            list(devices.neuron(json.dumps({"neuron_hardware_info": hardware, "system_data": {}}), pod))


def test_nearest_divisor_is_found_or_one() -> None:
    assert divisor_near(24, 7) == 6
    assert divisor_near(10**18 + 9, 10**17) == 1  # a prime: there are 10^17 candidates


def test_sizes_of_a_configuration_are_bounded() -> None:
    root = Path(__file__).parents[2] / "overlays"
    files = {
        "model": "model/llama-tiny/model.yaml",
        "hardware": "hardware/cpu/hardware.yaml",
        "cell": "cpu/llama-tiny/cell.yaml",
    }
    texts = {layer: (name, (root / name).read_text(encoding="utf-8")) for layer, name in files.items()}
    with pytest.raises(ConfigError, match="less than or equal to"):
        load_texts(apply_override(texts, f"train.steps={10**30}"))
    load_texts(apply_override(texts, "train.steps=1000"))  # the control


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize("spoil", [os.mkfifo, _sparse], ids=["FIFO", "size"])
def test_files_of_tokenizers_datasets_and_clusters_are_bounded(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    for name in ("tokenizer.json", "index.json", "cluster.env"):
        spoil(tmp_path / name)
    with pytest.raises(DataError, match=r"tokenizer .*: cannot read"):
        tokenizer.given_files(str(tmp_path))
    with pytest.raises(DataError, match="cannot read"):
        index.read_index(tmp_path)
    with pytest.raises(UserError, match=r"cluster\.env"):
        cluster_env.read(tmp_path / "cluster.env")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd"])
def test_dataset_names_only_its_own_files(name: str, tmp_path: Path) -> None:
    def write(shard: str) -> None:
        split = index.Split(1, 1, 1, [shard], [1], "starts.npy")
        files = {one: index.FileEntry(1, "0") for one in (shard, "starts.npy")}
        made = index.Index(1, {}, {}, 300, 0, 0, "uint16", 1.0, {"train": split}, files)
        (tmp_path / "index.json").write_text(made.to_json())

    write(name)
    with pytest.raises(DataError, match="outside of the dataset"):
        index.read_index(tmp_path)
    write("train-00000.bin")  # the control
    index.read_index(tmp_path)


class _Server(BaseHTTPRequestHandler):
    """`/` redirects with a body that never ends."""

    def do_GET(self) -> None:
        if self.path == "/":
            self.send_response(302)
            self.send_header("Location", "/file")
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"a" * 2**16)
            return
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"good")

    def log_message(self, format: str, *words: object) -> None:
        pass


def test_answers_of_servers_are_bounded() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with http.RemoteFile(f"{address}/") as file:
            assert file.read() == b"good"
        server.shutdown()
    for size in ("9" * 5000, "\u00b2"):
        headers = {"Content-Range": f"bytes 0-1/{size}"}
        assert http._size(types.SimpleNamespace(status_code=206, headers=headers)) is None
    for value in ("\u00b2", "9" * 5000, "Mon, 99 Foo 99999", "x"):
        assert retries._retry_after({"Retry-After": value}) >= 0


def test_wildcards_of_copy_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    with pytest.raises(UserError, match="more than 6 wildcards"):
        list(context.matching(tmp_path, "*a*a*a*a*a*a*b"))
    assert list(context.matching(tmp_path, "**/**/**/**/**/*.py")) == [tmp_path / "a.py"]
    assert list(context.matching(tmp_path, "**a")) == []


@pytest.mark.parametrize("text", ["", "-x", "--help", "a\nb", "a\x1b[0m"])
def test_operand_is_no_option(text: str) -> None:
    with pytest.raises(UserError, match="begins with a dash"):
        command_line.operand(text, "an image")
    assert command_line.operand("a-b:1", "an image") == "a-b:1"  # the control


def test_output_of_a_build_is_bounded(tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text(f"#!{sys.executable}\nprint('a' * 10**7)\nprint('b\\n' * 10**5, end='')\n")
    program.chmod(0o755)
    lines: list[str] = []
    code, said = Engine(str(program)).stream([], lines.append)
    assert code == 0
    assert max(map(len, lines)) <= LONGEST_LINE
    assert said.count("\n") == MOST_LINES
    assert said.endswith("b\n")


@pytest.mark.parametrize("pattern", ["(a+)+b", "a*a*a*b", "(?:a|a)*b"])
def test_rule_of_sops_takes_no_time(pattern: str) -> None:
    secret = {"data": {"a" * 5000: "plain"}}
    assert any(git_secrets._plain(secret, {"unencrypted_regex": pattern}))  # the rule excludes nothing
    assert not any(git_secrets._plain(secret, {"unencrypted_regex": "^data$"}))  # the control
