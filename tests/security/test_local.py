"""Attacks on what runs here: manifests in `yard wiring`, neighbours of `yard run`, bases of a cell."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.cells import kustomize
from tools.core import processes, repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import Manifests
from tools.local import preconditions
from tools.simulator import wiring, wiring_proof
from tools.workload import kinds

Job = Callable[..., dict[str, Any]]

EVIL = "evil-7c1f"  # stands in every text that a hostile manifest holds
LISTENING = "0A"
OWN = {
    *("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "HOME", "TMPDIR", "HOSTNAME"),
    *("CUDA_VISIBLE_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    *("TRAINYARD_LOOPBACK", "WIRING_RECORDS", "WIRING_SECONDS", "WIRING_NAMESPACE"),
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
}
HOSTILE = re.findall(
    r"\w+",
    "LD_PRELOAD LD_AUDIT LD_LIBRARY_PATH LD_DEBUG_OUTPUT GCONV_PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP"
    " PYTHONWARNINGS PYTHONPYCACHEPREFIX PYTHONEXECUTABLE PYTHON_EXEC BROWSER BASH_ENV ENV PERL5OPT PATH HOME"
    " TMPDIR NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_CONF_FILE NCCL_TOPO_DUMP_FILE"
    " NCCL_DEBUG_FILE GLOO_SOCKET_IFNAME PET_LOGS_SPECS PET_EVENT_LOG_HANDLER PET_LOG_DIR PET_REDIRECTS"
    " PET_LOG_LINE_PREFIX_TEMPLATE TORCH_LOGS_OUT TORCHINDUCTOR_CACHE_DIR TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
    " TORCHELASTIC_ERROR_FILE HOSTNAME WIRING_RECORDS WIRING_NAMESPACE",
)


def analysed(job: dict[str, Any]) -> wiring.Analysis:
    """Return the analysis of the only job of a manifest."""
    (workload,) = kinds.find(Manifests("here", [job])).workloads
    return wiring.analyse(workload)


def words_of(manifest: dict[str, Any]) -> list[tuple[list[str], dict[str, str]]]:
    """Return the command line and the environment of each process that a proof of the job would start."""
    nodes = analysed(manifest).nodes
    size = wiring_proof.scale(nodes, None, None)
    started = []
    for index, node in enumerate(nodes):
        argv, variables = wiring_proof._command(node, size, "127.0.0.1", 4321, "id")
        started.append((argv, {**variables, **wiring_proof._environment(index, Path("/scratch"), 9.0)}))
    assert started
    return started


@pytest.mark.parametrize(
    "command",
    [
        ["python", f"/{EVIL}.py"],
        ["python", "-X", f"pycache_prefix=/{EVIL}", "-W", f"error:::{EVIL}", "-m", EVIL],
        ["torchrun", f"--log-dir=/{EVIL}", f"--logs-specs={EVIL}", f"--event-log-handler={EVIL}", EVIL],
        ["torchrun", "--no-python", f"/{EVIL}"],
        ["torchrun", "--run-path", f"/{EVIL}"],
        ["torchrun", "-m", EVIL, "--tee=3", "--redirects=3"],
        ["torchrun", f"--log-line-prefix-template={EVIL}", f"--role={EVIL}", f"--rdzv-id={EVIL}", EVIL],
        ["torchrun", f"--local-addr={EVIL}", f"--rdzv-conf=store_type=file,timeout={EVIL},x={EVIL}", EVIL],
        ["torchrun", "--rdzv-backend=static", f"--rdzv-conf=join_timeout=1{EVIL}", EVIL],
        ["bash", "-c", f"LD_PRELOAD=/{EVIL}.so PET_LOG_DIR=/{EVIL} exec torchrun {EVIL}"],
        [f"/{EVIL}/torchrun", f"--nume={EVIL}", EVIL],
        [f"/{EVIL}/python", "-m", "torch.distributed.launch", "--use-env", EVIL],
    ],
)
@pytest.mark.parametrize("master", [False, True])
def test_no_text_of_a_manifest_reaches_a_process(make_job: Job, command: list[str], master: bool) -> None:
    env = {name: f"/{EVIL}" for name in HOSTILE if not name.startswith("PET_LOCAL")}
    manifest = make_job(EVIL, pods=2, master=master, elastic=not master, command=command, env=env)
    if analysed(manifest).verdict.state is not State.PASS:
        return  # refused before anything starts
    for argv, variables in words_of(manifest):
        assert EVIL not in repr((argv, variables))
        assert set(variables) <= OWN
        assert argv[: len(wiring_proof.PYTHON)] == [sys.executable, "-I", "-W", "ignore", "-u"]


def test_some_of_these_manifests_are_proved(make_job: Job) -> None:
    """The control: without it, the test above could pass by refusing everything."""
    torchrun = ["torchrun", f"--log-dir=/{EVIL}", f"--rdzv-id={EVIL}", "--rdzv-conf=join_timeout=7,y=1", EVIL]
    (argv, _), _ = words_of(make_job(command=torchrun, env={"LD_PRELOAD": EVIL}))
    assert "--rdzv-conf=join_timeout=7" in argv
    assert any(word.startswith("--rdzv-endpoint=127.0.0.1:") for word in argv)


def test_wiring_runs_nothing_and_listens_on_loopback_only(
    make_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a namespace of its own, so that the guard alone keeps the launchers on loopback."""
    sentinel = tmp_path / "ran"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(sentinel)!r}, 'w')")
    env = {
        "PYTHONWARNINGS": "all:0:antigravity.x:0:0",
        "BROWSER": f"/bin/sh -c 'touch {sentinel}' %s",
        "PYTHONPATH": str(tmp_path),
        "LD_DEBUG": "libs",
        "LD_DEBUG_OUTPUT": str(sentinel),
    }
    subprocess.run([sys.executable, "-c", ""], env={**os.environ, **env}, check=True, capture_output=True)
    control = [*tmp_path.glob("ran*")]
    assert sentinel in control  # an unprotected child runs it
    assert len(control) > 1  # and writes where the loader was told to
    for path in control:
        path.unlink()
    monkeypatch.setattr(wiring_proof, "_network", lambda directory: None)
    monkeypatch.setattr(repo, "local", lambda: tmp_path / "local")
    seen: set[str] = set()
    over = wiring_proof._over

    def looked(started: list[subprocess.Popen[bytes]]) -> bool:
        seen.update(listening(process.pid for process in started))
        return over(started)

    monkeypatch.setattr(wiring_proof, "_over", looked)
    manifest = make_job(command=["torchrun", "-m", "trainer"], env=env)
    verdict = wiring_proof.prove(analysed(manifest), None, None, 120)
    assert verdict.state is State.PASS, verdict
    assert wiring_proof.NOT_ISOLATED in verdict.evidence
    assert [*tmp_path.glob("ran*")] == []
    assert seen
    assert all(ipaddress.ip_address(address).is_loopback for address in seen), seen


def test_a_namespace_has_loopback_only(tmp_path: Path) -> None:
    holder = wiring_proof._network(tmp_path)
    if holder is None:
        pytest.skip("this kernel gives no user and network namespaces to this account")
    try:
        script = (
            "import sys, socket; from tools.simulator import probe_launcher as p; p.join(sys.argv[1]);"
            "print([name for _, name in socket.if_nameindex()])"
        )
        argv = [sys.executable, "-c", script, str(holder)]
        done = subprocess.run(argv, cwd=repo.root(), capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "['lo']"
    finally:
        processes.kill_tree([], [holder])


def test_a_local_run_listens_on_loopback_only(checkout: Any, make_job: Job, wait_until: Callable[..., None]) -> None:
    """Also with a user's own script, which joins by env://."""
    with socket.socket() as control:
        control.bind(("", 0))
        control.listen()
        assert "0.0.0.0" in listening([os.getpid()])
    job = make_job("near", command=["torchrun", str(Path(__file__).with_name("listener.py"))])
    run = checkout.start("run", checkout.cell(job), TRAINYARD_LOOPBACK="", PYTHONPATH="")
    directory = checkout.run_directory("near")
    seen: set[str] = set()

    def up() -> bool:
        seen.update(listening([run.pid]))
        return all((directory / f"up-{rank}").exists() for rank in range(2)) or run.poll() is not None

    wait_until(up, "both ranks are up", seconds=120)
    seen.update(listening([run.pid]))
    (directory / "go").touch()
    _, errors = run.communicate(timeout=180)
    assert run.returncode == 0, errors
    assert seen
    assert all(ipaddress.ip_address(address).is_loopback for address in seen), seen
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_store_listens_on_loopback_and_its_state_runs_nothing(tmp_path: Path) -> None:
    """The control is the same program without the guard."""
    program = """if True:
        import os, pickle, sys
        from torch.distributed import TCPStore
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous as rendezvous
        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {sys.argv[1]}",)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        print(store.port, flush=True)
        own = rendezvous.pickle.loads(pickle.dumps(rendezvous._RendezvousState()))
        assert own.round == 0
        try:
            rendezvous.pickle.loads(pickle.dumps(Evil()))
        except pickle.UnpicklingError as refused:
            print(refused, flush=True)
        sys.stdin.read()
    """
    results = []
    for name, variables in (("plain", {"PYTHONPATH": ""}), ("fenced", {})):
        environment = {**os.environ, **variables}
        argv = [sys.executable, "-c", program, str(tmp_path / name)]
        with subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline().strip().isdigit()
            addresses = listening([process.pid])
            process.stdin.close()
            said = process.stdout.read()
        results.append((addresses, said, (tmp_path / name).exists()))
    (plain, _, ran), (fenced, said, ran_too) = results
    assert plain & {"::", "0.0.0.0"}
    assert ran
    assert fenced == {"127.0.0.1"}
    assert "the rendezvous state names posix.system" in said
    assert not ran_too


@pytest.mark.parametrize("ref", ["--upload-pack={0}", "%2D%2Dupload-pack={0}"])
def test_a_remote_base_runs_nothing(tmp_path: Path, ref: str, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = kustomize.find(repo.root())
    if renderer is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    base, cell, program = tmp_path / "base", tmp_path / "cell", tmp_path / "program"
    base.mkdir()
    cell.mkdir()
    (base / "kustomization.yaml").write_text("resources: []\n")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *arguments], cwd=base, check=True)
    program.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec git-upload-pack "$@"\n')
    program.chmod(0o755)
    reference = f"file://{base}?ref={ref.format(program)}"
    (cell / "kustomization.yaml").write_text(f"resources: ['{reference}']\n")
    monkeypatch.delenv("GIT_ALLOW_PROTOCOL", raising=False)
    with pytest.raises(UserError, match="transport 'file' not allowed"):
        renderer.build(cell)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")  # the control
    with contextlib.suppress(UserError):
        renderer.build(cell)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pods": 10**9}, "has 1,000,000,000 pods"),
        ({"pods": 4000, "env": {f"V{i}": "" for i in range(400)}}, "variables"),
        (
            {"env": {f"V{i}": "xx" if i == 0 else f"$(V{i - 1})$(V{i - 1})" for i in range(60)}},
            "the limit of",
        ),
        ({"env": {f"V{i}": "x" * 100_000 for i in range(30)}}, "the limit of Linux"),
        (
            {"command": ["bash", "-c", "torchrun " + "$A" * 100], "env": {"A": "x" * 100_000}},
            "more than 2,097,152",
        ),
    ],
)
def test_a_bomb_is_one_error(make_job: Job, change: dict[str, Any], message: str) -> None:
    manifest = make_job(**change)
    tracemalloc.start()
    try:
        text = analysed(manifest).verdict.summary
    except UserError as error:
        text = error.message
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message in text
    assert peak < 100_000_000


@pytest.mark.parametrize(
    "template",
    [{}, {"spec": 5}, {"spec": {"containers": [{"name": "pytorch", "command": ["torchrun", "a"], "env": [
        {"name": "A", "valueFrom": {"configMapKeyRef": 5}}]}]}}],
)  # fmt: skip
def test_a_malformed_job_is_one_verdict(make_job: Job, template: dict[str, Any]) -> None:
    manifest = make_job()
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = template
    volcano = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "v"},
        "spec": {"tasks": [{"replicas": "x", "template": template}]},
    }
    for job in (manifest, volcano):
        assert analysed(job).verdict.state is not State.PASS


def test_the_locks_of_ports_are_in_a_directory_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    locks, target = tmp_path / f"trainyard-{os.getuid()}", tmp_path / "target"
    with preconditions.own_port(39_017, asked=False) as port:
        assert (locks / str(port)).exists()
    (locks / str(port)).unlink()
    (locks / str(port)).symlink_to(target)
    with pytest.raises(UserError), preconditions.own_port(port, asked=False):
        pass
    assert not target.exists()
    locks.chmod(0o777)
    with (
        pytest.raises(UserError, match="must belong to this user alone"),
        preconditions.own_port(port, asked=False),
    ):
        pass
    locks.rename(tmp_path / "moved")
    locks.symlink_to(tmp_path / "moved")
    with pytest.raises(UserError), preconditions.own_port(port, asked=False):
        pass


def listening(pids: Any) -> set[str]:
    """Return the addresses on which processes and their descendants listen for TCP."""
    found = set()
    for pid in processes.descendants(pids):
        with contextlib.suppress(OSError):  # the process has ended
            own = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
            found |= {address for address, inode in _sockets(pid) if f"socket:[{inode}]" in own}
    return found


def _sockets(pid: int) -> Iterator[tuple[str, str]]:
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                words = bytes.fromhex(fields[1].partition(":")[0])
                count = len(words) // 4
                packed = struct.pack(f">{count}I", *struct.unpack(f"={count}I", words))
                yield str(ipaddress.ip_address(packed)), fields[9]
