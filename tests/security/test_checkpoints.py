"""Hostile checkpoints end in one error and the older good step is taken; a key refuses forgeries."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.training.checkpoint.values import assert_holds, snapshot
from training import checkpoints
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import MANIFEST, SIGNATURE, canonical, committed_steps, read_manifest
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.store import Store
from training.pod import hang_detector
from training.run import failure, heartbeat, signing
from training.run.directory import RunDir, read_json
from training.trainer import state as trainer_state
from training.weights.errors import WeightsError
from training.weights.tensors import SafetensorsDirectory

OLD, NEW = "step-00000001", "step-00000002"
KEY, OTHER = b"k" * 44, b"o" * 44
LIMIT_S, LIMIT_BYTES = 10, 100 << 20


def put(store: Store, step: int) -> None:
    store.save(snapshot(step))


def filled(run: Path) -> Path:
    """The checkpoint directory of a run with steps 1 and 2, saved with the present key, if any."""
    store = Store(run / "checkpoints", log=lambda line: None)
    put(store, 1)
    put(store, 2)
    return run / "checkpoints"


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    return filled(tmp_path / "job")


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End a test that waits for a FIFO; no key unless a test gives one."""
    monkeypatch.delenv("JOB_NAME", raising=False)
    monkeypatch.setenv(signing.KEY_FILE, "")

    def late(*_: object) -> None:
        raise TimeoutError("a read of a hostile file did not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Give this process these keys, the first one to sign with; none takes them away."""

    def give(*keys: bytes) -> None:
        path = tmp_path / "signing-key"
        path.write_bytes(b"\n".join(keys) + b"\n")
        monkeypatch.setenv(signing.KEY_FILE, str(path) if keys else "")

    return give


def content_of(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
    del content["digest"]
    return content


def seal(directory: Path, content: Any) -> None:
    """Write a manifest with a matching digest, as an attacker can."""
    digest = hashlib.sha256(canonical(content)).hexdigest()
    (directory / MANIFEST).write_bytes(canonical({**content, "digest": digest}) + b"\n")


def assert_older(steps: Path) -> list[str]:
    """Readers and trainers take step 1; return what the trainer was told."""
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        open_checkpoint(steps / NEW)
    beside = newest(steps)
    assert beside is not None
    assert beside.step == 1
    told: list[str] = []
    found = Store(steps, log=told.append).latest()
    assert tracemalloc.get_traced_memory()[1] < LIMIT_BYTES
    tracemalloc.stop()
    assert found is not None
    assert_holds(found, 1)
    assert "step 2 is refused" in told[0]
    return told


# --- manifests ---

HOSTILE: list[Any] = [
    None, True, -1, 0, 1.5, 10**9, 2**63, 10**400, "", "x" * 100_000, "\0", "../x", "a\nb", "/etc/passwd",
    "F128", [], [[]], [-1], [2**62, 2**62], {}, {"x": {}}, [1, 2, 3],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of a JSON document; of equal list elements the first."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in inner:
        if path not in (("meta",), ("run_state",)) and (path != ("tensors",) or key == "model.embedding"):
            yield from places(each, (*path, key))


def changed(content: dict[str, Any], path: tuple[Any, ...], value: Any, *, drop: bool = False) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    node: Any = changed
    for key in path[:-1]:
        node = node[key]
    if drop:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return changed


def test_every_key_with_every_hostile_value(steps: Path) -> None:
    """Each resealed mutation is one CheckpointError, or it changed nothing that a reader believes."""
    good = content_of(steps / NEW)
    mutants = [changed(good, path, value) for path in places(good) for value in HOSTILE]
    mutants += [changed(good, path, None, drop=True) for path in places(good)]
    refused: list[str] = []
    for mutant in mutants:
        seal(steps / NEW, mutant)
        try:
            manifest = read_manifest(steps / NEW)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            free = ("meta", "run_state", "attempt", "sha256")
            same = json.loads(manifest.encode())
            del same["digest"]
            assert same == mutant
            assert all(same[key] == good[key] for key in good if key not in (*free, "files", "tensors"))
    assert len(refused) > 0.8 * len(mutants)
    assert [line[:200] for line in refused if len(line) > 600 or "\n" in line] == []


@pytest.mark.parametrize("value", [10**6, 10**9, 10**18, 2**63 - 1])
def test_a_manifest_of_very_many_ranks(steps: Path, value: int) -> None:
    seal(steps / NEW, changed(content_of(steps / NEW), ("world_size",), value))
    assert "world size" in assert_older(steps)[0]


@pytest.mark.parametrize(
    ("key", "value"), [("dtype", "F128"), ("shape", [2**31, 2**31, 4]), ("shape", [7, 2**40]), ("dtype", 7)]
)
def test_a_tensor_that_cannot_be(steps: Path, key: str, value: Any) -> None:
    seal(steps / NEW, changed(content_of(steps / NEW), ("tensors", "model.embedding", key), value))
    assert_older(steps)


def tiny_values(directory: Path) -> None:
    (directory / MANIFEST).write_bytes(b"[" + b"[]," * 600_000 + b"[]]")


def deep(directory: Path) -> None:
    (directory / MANIFEST).write_bytes(b'{"digest":' * 100_000 + b"1" + b"}" * 100_000)


def infinite(directory: Path) -> None:
    text = (directory / MANIFEST).read_text().replace('"run_state":{"tokens":2000}', '"run_state":{"tokens":NaN}')
    (directory / MANIFEST).write_text(text)


def twice(directory: Path) -> None:
    text = (directory / MANIFEST).read_text().replace('"world_size":1', '"world_size":2,"world_size":1')
    (directory / MANIFEST).write_text(text)


def large(directory: Path) -> None:
    os.truncate(directory / MANIFEST, 100 << 20)


def replaced(make: Callable[[Path], None], name: str = MANIFEST) -> Callable[[Path], None]:
    def replace(directory: Path) -> None:
        (directory / name).unlink()
        make(directory / name)

    return replace


ODD: list[Callable[[Path], None]] = [
    os.mkfifo,
    Path.mkdir,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("loop-" + path.name),
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to(f"../../elsewhere/{path.name}"),
]


@pytest.mark.parametrize("make", [tiny_values, deep, infinite, twice, large])
def test_a_manifest_that_is_a_bomb(steps: Path, make: Callable[[Path], None]) -> None:
    make(steps / NEW)
    assert_older(steps)


@pytest.mark.parametrize("name", [MANIFEST, "rank-00000.safetensors", "rank-00000.json"])
@pytest.mark.parametrize("make", ODD, ids=["fifo", "directory", "zero", "dangling", "loop", "link"])
def test_a_file_that_is_no_file(steps: Path, make: Callable[[Path], None], name: str) -> None:
    """A link is refused even if it leads to the right bytes: what it leads to may change."""
    shutil.copytree(steps / NEW, steps.parent / "elsewhere")
    replaced(make, name)(steps / NEW)
    assert_older(steps)


def test_a_state_that_is_no_json(steps: Path) -> None:
    """The digest is right and the content is not: reading it is an error, not a crash."""
    for text in (b"[" * 100_000, b"\xff", b"[]", b"NaN"):
        path = steps / NEW / "rank-00000.json"
        path.write_bytes(text)
        content = content_of(steps / NEW)
        content["files"][path.name] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        seal(steps / NEW, content)
        with pytest.raises(CheckpointError):
            open_checkpoint(steps / NEW).rank_state(0)


@pytest.mark.parametrize(
    "lie", [{}, {"counters": 3}, {"counters": {"step": 10**9, "tokens": 0}}, {"data": {"position": -1}}]
)
def test_a_state_that_the_trainer_cannot_restore(steps: Path, lie: dict[str, Any]) -> None:
    """A resealed state without a position, or of another step: the trainer takes the older one."""
    for step in (1, 2):
        good = {
            "schedule": {"last_epoch": step},
            "data": {"position": 8},
            "counters": {"step": step, "tokens": 9},
        }
        saved = good if step == 1 else {**good, **lie} if lie else {}
        directory = steps / f"step-{step:08d}"
        seal(directory, changed(content_of(directory), ("run_state",), saved))
    assert newest(steps).step == 2  # type: ignore[union-attr]
    found = Store(steps, log=lambda line: None).latest(partial(trainer_state.check, rank=0))
    assert found is not None
    assert found.step == 1


# --- directories ---


def test_names_that_are_no_steps(steps: Path) -> None:
    for name in ("step-٠٠٠٠٠٠٠٣", "step-000000003", "step-99999999999999999999", "step-00000003\n"):
        (steps / name).mkdir()
    (steps / "step-00000004").symlink_to(steps / NEW)
    (steps / "step-00000005").write_text("a file")
    assert committed_steps(steps) == [1, 2]
    store = Store(steps, log=lambda line: None)
    for step in (4, 5):  # what holds a step's name is moved aside
        put(store, step)
    found = store.latest()
    assert found is not None
    assert_holds(found, 5)
    assert [path.is_symlink() for path in steps.glob("step-00000004*")] == [False], "a link is not kept as evidence"


def test_nothing_outside_is_touched(steps: Path) -> None:
    """Links in the directory are removed or renamed; what they lead to stays."""
    outside = steps.parent / "outside"
    outside.mkdir()
    (outside / MANIFEST).write_text("mine")
    for name in ("step-00000007.aa.tmp", "step-00000007.aa.deleting", "step-00000000.bad", "LATEST.aa.tmp"):
        (steps / name).symlink_to(outside)
    (steps / f"{NEW}.bad").symlink_to("nowhere")
    (steps / "step-00000008.aa.tmp").mkdir()
    os.mkfifo(steps / "step-00000008.aa.tmp" / MANIFEST)
    (steps / NEW / MANIFEST).write_text("{}")
    assert_older(steps)
    for step in (3, 4):
        put(Store(steps, log=lambda line: None), step)
    assert (outside / MANIFEST).read_text() == "mine"
    assert [path.name for path in steps.iterdir() if path.is_symlink()] == []
    assert not list(steps.glob("*.tmp")) + list(steps.glob("*.deleting"))


# --- signatures ---


def forge(directory: Path) -> None:
    """Other weights with the right digests: everything that a writer without the key can do."""
    path = directory / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + b"\x01" * 8)
    content = content_of(directory)
    content["files"][path.name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    seal(directory, content)


def test_rewritten_weights(steps: Path, tmp_path: Path, give: Callable[..., None]) -> None:
    forge(steps / NEW)
    control = Store(steps).latest()
    assert control is not None
    assert control.step == 2, "without a key, digests alone decide"
    give(KEY)
    signed = filled(tmp_path / "signed")
    forge(signed / NEW)
    told = assert_older(signed)
    assert "is not signed with this job's key" in told[0]
    assert (signed / NEW).is_dir(), "the key may be the wrong one, so that nothing is moved"


def drop(signed: Path, other: Path) -> None:
    (signed / NEW / SIGNATURE).unlink()


def of_other_run(signed: Path, other: Path) -> None:
    shutil.rmtree(signed / NEW)
    shutil.copytree(other / NEW, signed / NEW)


def renamed(signed: Path, other: Path) -> None:
    of_other_run(signed, other)
    text = (signed / NEW / SIGNATURE).read_text()
    (signed / NEW / SIGNATURE).write_text(text.replace('"other"', '"signed"'))


def of_other_step(signed: Path, other: Path) -> None:
    shutil.rmtree(signed / NEW)
    shutil.copytree(signed / OLD, signed / NEW)


def only_signature(signed: Path, other: Path) -> None:
    shutil.copy(signed / OLD / SIGNATURE, signed / NEW / SIGNATURE)


def nonsense(signed: Path, other: Path) -> None:
    (signed / NEW / SIGNATURE).write_bytes(b'{"run":"signed","signature":"\xc3\xa9"}')


def fifo(signed: Path, other: Path) -> None:
    replaced(os.mkfifo, SIGNATURE)(signed / NEW)


@pytest.mark.parametrize("attack", [drop, of_other_run, renamed, of_other_step, only_signature, nonsense, fifo])
def test_a_signature_is_for_one_run_and_one_step(
    attack: Callable[[Path, Path], None], tmp_path: Path, give: Callable[..., None]
) -> None:
    give(KEY)
    signed, other = filled(tmp_path / "signed"), filled(tmp_path / "other")
    attack(signed, other)
    assert_older(signed)


def test_only_unsigned_checkpoints_end_the_run(steps: Path, give: Callable[..., None]) -> None:
    """A start from scratch beside them would hide a lost key, or an attack."""
    give(KEY)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no checkpoint is signed with this job's key for run job"):
            Store(steps, log=lambda line: None).latest()
    assert committed_steps(steps) == [1, 2]


def test_keys_are_replaced_one_by_one(tmp_path: Path, give: Callable[..., None]) -> None:
    give(KEY)
    signed = filled(tmp_path / "signed")
    give(OTHER, KEY)
    put(Store(signed), 3)
    assert open_checkpoint(signed / NEW).step == 2
    give(OTHER)
    assert open_checkpoint(signed / "step-00000003").step == 3
    with pytest.raises(CheckpointError, match="not signed with this job's key"):
        open_checkpoint(signed / NEW)
    give()
    assert open_checkpoint(signed / NEW).step == 2


def test_a_signature_serves_one_purpose() -> None:
    signature = signing.sign(KEY, "a", b"data")
    assert signing.verify((OTHER, KEY), "a", b"data", signature)
    assert not signing.verify((KEY,), "b", b"data", signature)
    assert not signing.verify((KEY,), "a", b"datum", signature)
    assert not signing.verify((), "a", b"data", signature)
    assert KEY.hex() not in signature


@pytest.mark.parametrize("content", [None, b"", b"secret", b"\n", b"s" * 32 + b"\nsecret", b"secret" * 1000])
def test_an_unusable_key_file(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(signing.KEY_FILE, str(path))
    with pytest.raises(signing.SigningError) as error:
        Store(tmp_path / "job" / "checkpoints")
    assert str(path) in str(error.value)
    assert "secret" not in str(error.value)


# --- commands ---


def test_commands_end_in_one_line(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lies: dict[str, Any] = {"world_size": 10**9, "run_state": {"counters": []}, "meta": {"versions": 3}}
    for key, lie in lies.items():
        seal(steps / NEW, changed(content_of(steps / OLD), (key,), lie) | {"step": 2})
        for what in ("list", "show", "verify"):
            code = 0
            try:
                checkpoints.main([what, f"--run={steps.parent}"])
            except SystemExit as ended:
                code = int(ended.code or 0)
            printed = capsys.readouterr()
            assert (printed.err, printed.out.count("\n")) == ("", 1)
            assert (code == 2) == ("error" in json.loads(printed.out))


def test_verify_says_who_signed(tmp_path: Path, capsys: pytest.CaptureFixture[str], give: Callable[..., None]) -> None:
    give(KEY)
    run = filled(tmp_path / "signed").parent
    checkpoints.main(["verify", f"--run={run}"])
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [each["signed_by"] for each in found] == [signing.key_id(KEY)] * 2
    give()
    checkpoints.main(["verify", f"--run={run}"])
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["signed_by"] is None


# --- files of a run ---


def deeply(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def nested(path: Path) -> None:
    path.write_bytes(b"{" + b'"a":' * 100_000)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


RECORDS: list[Callable[[Path], None]] = [
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
    deeply,
    nested,
    sparse,
]


@pytest.mark.parametrize("make", RECORDS, ids=["fifo", "zero", "deep", "nested", "large"])
def test_hostile_records(tmp_path: Path, make: Callable[[Path], None]) -> None:
    run = RunDir(tmp_path)
    run.heartbeat.mkdir()
    run.failures.mkdir()
    beat, failed = heartbeat.path_of(run.heartbeat, 0), run.failures / "99999-rank-00000.json"
    for path in (beat, failed, run.metrics, run.end):
        make(path)
    assert heartbeat.read(beat) is None
    assert failure.since(run, 0) == []
    assert run.last_record() == {}
    with pytest.raises((OSError, ValueError)):
        read_json(run.end)


@pytest.mark.parametrize("pid", [-1, 0, 1, "7", 1.5, None, True])
def test_a_heartbeat_names_a_process(tmp_path: Path, pid: Any) -> None:
    heartbeat.begin(tmp_path, 0)
    path = heartbeat.path_of(tmp_path, 0)
    assert heartbeat.read(path) is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": pid}))
    assert heartbeat.read(path) is None


def test_a_heartbeat_kills_no_foreign_process() -> None:
    """A forged heartbeat names another process of this machine; the hang detector leaves it alone."""
    command = ["sh", "-c", "sleep 60 >/dev/null & echo $!"]
    foreign = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    with subprocess.Popen(["sleep", "60"]) as own:
        hang_detector.kill(own.pid)
        hang_detector.kill(foreign)
    assert own.returncode == -signal.SIGKILL
    os.kill(foreign, 0)  # it lives
    os.kill(foreign, signal.SIGTERM)


# --- published weights ---


def safetensors(header: Any, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * 64


def tensor(first: Any, end: Any, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        safetensors({}, 2**63),
        safetensors({}, 2**64 - 1),
        safetensors(b"[" * 100_000),
        safetensors(b"[" + b"[]," * 2_000_000 + b"[]]"),
        safetensors({"a": tensor(0, 8), "b": tensor(4, 12)}),
        safetensors({"a": tensor(0, 2**62, shape=[2**60])}),
        safetensors({"a": tensor(-8, 0)}),
        safetensors({"a": tensor(0, 8, dtype=["F32"])}),
        safetensors({"a": tensor(0, 8, shape=[2.0])}),
        safetensors({"a": tensor(0, 8, shape="12")}),
        safetensors({"a": tensor("0", 8)}),
        safetensors({"a": tensor(0, 8, shape=[2**32, 2**32])}),
    ],
)
def test_hostile_weights(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    tracemalloc.start()
    with pytest.raises((CheckpointError, WeightsError)):
        SafetensorsDirectory(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < LIMIT_BYTES
    tracemalloc.stop()
    (tmp_path / "model.safetensors").write_bytes(save({"a": torch.zeros(2)}))
    assert list(SafetensorsDirectory(tmp_path).kinds) == ["a"]


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a\0b", "a\nb", "", "..", 7])
def test_a_hostile_index(tmp_path: Path, file: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(WeightsError):
        SafetensorsDirectory(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("make", ODD[:4], ids=["fifo", "directory", "zero", "dangling"])
def test_weights_that_are_no_file(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    make(tmp_path / name)
    with pytest.raises((CheckpointError, WeightsError)):
        SafetensorsDirectory(tmp_path)
