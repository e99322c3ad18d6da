"""Names, texts and files of others stay data: in command lines, on the terminal, on the disk."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pty
import random
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.job.world import World
from tools.core import command_line, foreign_files, output, repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job.diagnosis.explain import explain
from tools.job.snapshot import run_answer
from tools.job.snapshot.snapshot import Snapshot, load
from tools.job.status import Status
from tools.kube import kubectl
from tools.kube.kubectl import OPTIONS, Kubectl
from tools.kube.manifests import Manifests, Object
from tools.preflight.evaluate import evaluate
from training.remote import file_sender

JOB = "cpu-llama-tiny-train"
# Each is an option of kubectl, a path, several words, or a line of its own.
HOSTILE = (
    "--server=https://evil", "--filename=https://evil/x", "--namespace=evil", "--raw=/evil", "-oevil", "-",
    "--", "../evil", "/etc/evil", "a/evil", "evil\n--server=x", "evil%2f..", "evil,b", "evil b", "Evil",
    "a=evil,b in (c)", "evil\0", "\u202eevil", ".evil", "evil.", "", "e" * 254,
)  # fmt: skip


@pytest.fixture
def asked(cluster: Cluster, tmp_path: Path) -> Callable[[World], Callable[[], list[list[str]]]]:
    """A function that makes a world the cluster; it returns a function that returns kubectl's arguments."""

    def play(world: World) -> Callable[[], list[list[str]]]:
        cluster(world)
        program, real = tmp_path / "bin/kubectl", tmp_path / "bin/answers"
        program.rename(real)
        program.write_text(
            f"#!{os.path.realpath(sys.executable)} -IS\nimport json, os, sys\n"
            f"open({str(tmp_path / 'argv')!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
            f"os.execv({str(real)!r}, sys.argv)\n"
        )
        program.chmod(0o755)
        return lambda: [json.loads(line) for line in (tmp_path / "argv").read_text().splitlines()]

    return play


def test_no_name_is_an_option_or_a_path() -> None:
    """Also random ones: a name is refused, or is valid and stands behind every option."""
    made = random.Random(1)
    letters = "ab-./=, \n%\0\x1bA_1:@"
    names = [*HOSTILE, *("".join(made.choices(letters, k=made.randint(1, 9))) for _ in range(5000))]
    allowed = 0
    for name in names:
        try:
            words = Kubectl("context", "team-a").words("get", "pod", "--output=json", names=[name])
            in_pod = Kubectl().words("exec", "--stdin", names=[name], command=["ls"])
        except UserError:
            continue
        allowed += 1
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)
        assert words[-2:] == ["--", name]
        assert in_pod == ["kubectl", "exec", "--stdin", name, "--", "ls"]
        assert command_line.selector("key", name) == f"--selector=key={name}"
    assert allowed > 100, "control: valid names pass"
    for name in HOSTILE:
        with pytest.raises(UserError):
            Kubectl(namespace=name).words("get", "pods") if name else command_line.object_name(name)
    with pytest.raises(UserError, match="does not use"):
        Kubectl().words("get", "pods", "--server=https://evil")


@pytest.mark.parametrize("place", ["pod", "job", "reference"])
def test_no_command_hands_a_hostile_name_to_kubectl(
    place: str, world: NewWorld, asked: Callable[[World], Callable[[], list[list[str]]]], capsys: object,
    yard: Yard, tmp_path: Path,
) -> None:  # fmt: skip
    made = world()
    made.crash_looping(1, 1, "boom")
    spec = made.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    commands: list[tuple[str, ...]] = [("why",), ("debug",)]
    if place == "pod":
        for index, pod in enumerate(made.pods):
            pod["metadata"]["name"] = HOSTILE[index]
            pod["metadata"]["labels"]["training.kubeflow.org/replica-index"] = "-evil"
        commands += [("logs", "-f"), ("exec", "ls"), ("cp", "."), ("metrics",)]
    elif place == "job":
        made.job["metadata"]["name"] = "--filename=https://evil"
        commands = [("why",), ("stop",), ("tensorboard",), ("retry",)]
    else:
        for holder in (spec, *(pod["spec"] for pod in made.pods)):
            refer = [{"configMapRef": {"name": name}} for name in HOSTILE if name]
            refer += [{"secretRef": {"name": name}} for name in HOSTILE if name]
            holder["containers"][0]["envFrom"] = refer
            holder["serviceAccountName"] = "--as=evil"
            holder["nodeName"] = "--evil"
            holder["containers"][0]["env"].insert(0, {"name": "PET_RDZV_ENDPOINT", "value": "x,evil in (b):1"})
            holder["volumes"] = [{"name": "a", "persistentVolumeClaim": {"claimName": "../evil"}}]
        for pod in made.pods:
            pod["metadata"]["labels"]["evil"] = "--evil"
        made.event("Pod", "--evil", "Failed", "--evil")
        commands += [("retry",)]
    argv = asked(made)
    from tools.cli import invoke

    for words in commands:
        job = [] if place == "job" else [JOB]
        target = [str(tmp_path / "out")] if words[0] == "cp" else []
        as_json = ["--json"] if words[0] == "why" else []
        invoke(["job", words[0], *job, *words[1:], *target, *as_json])
    seen = argv()
    assert seen, "control: kubectl was asked"
    for argument in seen:
        ours = argument[: argument.index("--")] if "--" in argument else argument
        assert all(word.partition("=")[0] in {*OPTIONS, "--context"} for word in ours if word[:1] == "-"), ours
        sent = ours if "exec" in ours else argument
        assert not any("evil" in word.lower() for word in sent), argument
    assert not (tmp_path / "evil").exists()


def test_preflight_fails_names_that_no_object_can_have(rendered: dict[str, Manifests]) -> None:
    cell = rendered["cpu/llama-tiny"]
    for name in ("--server=https://evil", "../x", "A"):
        found = json.loads(json.dumps(cell.objects))
        job = next(item for item in found if item["kind"] == "PyTorchJob")
        spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        spec["containers"][0].setdefault("envFrom", []).append({"configMapRef": {"name": name}})
        spec["serviceAccountName"] = name
        failed = {one.details["rule"] for one in evaluate(Manifests("x", found)).of(State.FAIL)}
        assert {"references", "names"} <= failed
    failed = {one.details["rule"] for one in evaluate(cell).of(State.FAIL)}
    assert not {"references", "names"} & failed, "control"


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "a\nb", ".", "a//b", "link/x", "link/new/x"])
def test_a_file_of_others_stays_below_its_directory(name: str, tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "link").symlink_to(outside)
    with pytest.raises(UserError), foreign_files.writing(target, name) as file:
        file.write(b"evil")
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "target"]
    (target / "old").symlink_to(outside / "victim")
    with foreign_files.writing(target, "old") as file:  # the control: a link is replaced, not followed
        file.write(b"good")
    assert (target / "old").read_bytes() == b"good"
    assert not (outside / "victim").exists()


def test_cp_tells_the_pod_nothing_of_this_machine(
    world: NewWorld, cluster: Cluster, tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: an intact file of an earlier copy is not sent again."""
    home, out = cluster(world()), tmp_path / "out"
    out.mkdir()
    (out / "private-name").write_text("private")
    (home / "volume/report.json").write_text("{}")
    sent = tmp_path / "sent.py"
    text = Path(file_sender.__file__).read_text()
    record = f"open({str(tmp_path / 'calls')!r}, 'a').write(repr((base, wanted, known)) + '\\n')"
    sent.write_text(text.replace('    """Send to standard output', f'    {record}\n    """Send to standard output'))
    monkeypatch.setattr(file_sender, "__file__", str(sent))
    assert "1 copied" in yard.out("cp", JOB, ".", str(out))
    assert "0 copied" in yard.out("cp", JOB, ".", str(out))
    calls = (tmp_path / "calls").read_text()
    assert calls.count("report.json") == 1
    assert "private" not in calls
    assert hashlib.sha256(b"{}").hexdigest() not in calls


def test_a_pod_cannot_make_cp_write_without_end(
    world: NewWorld, cluster: Cluster, tmp_path: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(world())
    for answer in (
        '{"name": "a", "size": 1}\n1000000000000\n',
        '{"name": "a", "size": 1}\n9\n123456789',
        "[" * 60000,
    ):
        sender = tmp_path / "sender.py"
        sender.write_text(f"import sys\ndef main(*words):\n    print({answer!r})\n")
        monkeypatch.setattr(file_sender, "__file__", str(sender))
        yard.err("cp", JOB, ".", str(tmp_path / "out"), code=1)
        assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_answers_of_programs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\nexec yes 0123456789\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UserError, match="the answer has more than 256 MiB") as found:
        Kubectl().run("get", "pods")
    assert found.value.code == kubectl.CANNOT_SEE
    assert command_line.captured(["head", "-c", "99999", "/dev/zero"]).stdout == bytes(99999), "control"
    with pytest.raises(subprocess.TimeoutExpired):
        command_line.captured(["sh", "-c", "sleep 60 & sleep 60"], seconds=0.2)


def test_a_pods_answer_of_another_form_is_no_traceback(world: NewWorld, tmp_path: Path, yard: Yard) -> None:
    """Each part of a run directory with values of other types, as an image may answer."""
    made, made_up = world(), random.Random(3)
    made.crash_looping(1, 1, "RuntimeError: boom")
    values = [5, -1, 1e300, float("nan"), "x", [], {}, [[]], {"a": 5}, {"a": {"rank": "x"}}, True, [{}]]
    for _ in range(60):
        made.run = {name: made_up.choice(values) for name in run_answer.SHAPE}
        found = run_answer.checked(made.run)
        assert found is not None
        made.run = found
        seen = made.snapshot()
        explain(seen.shareable())
        Status(seen).as_dict()
    assert run_answer.checked({"now": 5.0, "steps": None, "new": 1}) == {"now": 5.0, "steps": None}, "control"
    assert run_answer.checked([]) is None


CONTROL = re.compile(
    "[\0-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
EVIL_TEXT = "boom \x1b]52;c;aGk=\x07\x1bc\x1bP1q\x1b\\\x9b31m\x8d\b\r\u202etxt\u2066\u200b\u2028\ufeff\x7f"
EVIL_TEXT += "\nCAUSE forged: line"


# What a terminal is sent on purpose: colours, the cursor away and back, and a line painted over.
OWN = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)|\r")


def _on_a_terminal(*words: str, painted: bool = False) -> str:
    """What a program sends to a terminal, with the line ends that the terminal adds taken off.

    Of one that is painted, OWN is taken off too.
    """
    main, end = pty.openpty()
    own = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    variables = own | ({"TERM": "xterm-256color"} if painted else {"NO_COLOR": "1"})
    process = subprocess.Popen(
        [sys.executable, *words], stdin=end, stdout=end, stderr=end, cwd=repo.root(), env=variables
    )
    os.close(end)
    found = bytearray()
    try:
        while chunk := os.read(main, 65536):
            found += chunk
    except OSError:  # the end of a terminal
        pass
    process.wait()
    os.close(main)
    shown = found.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    return OWN.sub("", shown) if painted else shown


@pytest.mark.parametrize("painted", [False, True])
def test_every_way_to_print_shows_control_characters(painted: bool) -> None:
    made = random.Random(2)
    text = "".join(chr(made.choice((made.randrange(0x100), made.randrange(0x2100), 0xD800))) for _ in range(4000))
    text = text.replace("\n", "")
    program = (
        "import json, sys; from tools.core import output as o; from tools.core.verdict import State, Verdict;"
        "t = json.loads(sys.stdin.readline() if False else sys.argv[1]);"
        "v = Verdict(State.FAIL, t, [t], t, {'rule': t});"
        "[f(t) for f in (o.line, o.note, o.notes, o.error, o.block, o.data)];"
        "o.error(t, t); o.verdict(v); o.table([[t], [t]], head=True);"
        "a = o.activity(t); n = a.__enter__(); n.at(t, 1, 2); n._show(); o.line(t); a.__exit__(None, None, None);"
        "p = o.repainted(); q = p.__enter__(); q.show(lambda: o.line(t)); o.note(t); p.__exit__(None, None, None);"
        " o.verdict(v, True); o.rule_verdict(v, t); o.table([[t, t]]);"
        "o.data([t], indent=None); sys.excepthook = o.exception; raise ValueError(t)"
    )
    shown = _on_a_terminal("-c", program, json.dumps(text + EVIL_TEXT), painted=painted)
    assert CONTROL.findall(shown.replace("\t", "")) == [], "a block of text keeps its tabs"
    assert "\\x1b]52" in shown
    assert "\\u202e" in shown
    assert output.visible("日本 é ⣿ 🙂") == "日本 é ⣿ 🙂", "control: text stays"


@pytest.mark.parametrize("painted", [False, True])
def test_why_shows_hostile_texts_on_one_line_each(world: NewWorld, tmp_path: Path, painted: bool) -> None:
    made = world()
    made.crash_looping(1, 1, EVIL_TEXT, f"RuntimeError: {EVIL_TEXT}", message=EVIL_TEXT)
    made.event("Pod", made.name(1), "Failed", EVIL_TEXT)
    made.unseen["Secret"] = EVIL_TEXT
    made.job["metadata"]["uid"] = EVIL_TEXT
    made.snapshot().save(tmp_path / "kept")
    for words in (["-v"], ["--json"]):
        shown = _on_a_terminal(
            "-m", "tools.cli", "job", "why", "--from", str(tmp_path / "kept"), *words, painted=painted
        )
        assert "boom" in shown, "control"
        assert CONTROL.findall(shown) == []
        assert not [line for line in shown.splitlines() if line.startswith("CAUSE forged")]


ALLOWED = {
    "core/output.py": "the one place",
    "bootstrap.py": "runs before the environment exists, and shows its texts itself",
    "simulator/rank_probe.py": "runs in a rank",
    "simulator/probe_launcher.py": "runs in a rank",
}


def test_nothing_else_in_tools_prints() -> None:
    prints = {"print", "click.echo", "click.secho", "click.prompt", "click.confirm", "click.echo_via_pager"}
    prints |= {"sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write", "sys.stderr.buffer.write"}
    found = []
    for path in sorted((repo.root() / "tools").rglob("*.py")):
        name = path.relative_to(repo.root() / "tools").as_posix()
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        found += [f"{name}:{node.lineno}" for node in calls if ast.unparse(node.func) in prints]
    assert [one for one in found if one.partition(":")[0] not in ALLOWED] == []
    assert [one for one in found if one.startswith("core/output.py")], "control: the search finds calls"


CANARY = "c4n4ryXq{:02}zK"


def test_a_snapshot_has_no_secret_and_little_of_others(world: NewWorld, tmp_path: Path, yard: Yard) -> None:
    made = world()
    canary = [CANARY.format(number) for number in range(20)]
    container = made.container(0)
    container["env"] += [{"name": name, "value": canary[number]} for number, name in enumerate(
        ("WANDB_API_KEY", "DB_PASS", "PLAIN_NAME", "SLACK_WEBHOOK_URL"))]  # fmt: skip
    container["args"] = [f"--hf-token={canary[4]}", "--wandb-key", canary[5]]
    container["command"] = ["sh", "-c", f"export WANDB_API_KEY={canary[6]}; curl -u me:{canary[7]} https://x"]
    made.pods[0]["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"x": canary[8]}),
        "note": f"https://me:{canary[9]}@host/x and Authorization: Bearer {canary[10]}",
        "hook": f"https://hooks.slack.com/services/T0/B0/{canary[11]}{canary[11]}",
    }
    template = made.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    template["env"].append({"name": "SECRET_SAUCE", "value": canary[12]})
    made.crash_looping(1, 1, f"login failed: password={canary[13]}", "RuntimeError: boom")
    made.event("Pod", made.name(1), "Failed", f"token: {canary[14]}")
    made.others.append({
        "metadata": {"name": "theirs", "namespace": "team-b", "uid": "u", "labels": {"who": canary[15]},
                     "annotations": {"x": canary[16]}},
        "spec": {"nodeName": "node-0", "priority": 5, "volumes": [{"name": canary[17]}],
                 "containers": [{"name": "a", "image": canary[18], "args": [canary[19]],
                                 "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running"},
    })  # fmt: skip
    seen = made.snapshot()
    plain = json.dumps([seen.job, seen.objects, seen.others]) + "".join(log.text for log in seen.logs)
    assert all(one in plain for one in canary), "control: each was planted"
    seen.save(tmp_path / "kept")
    kept = "".join(path.read_text() for path in (tmp_path / "kept").iterdir())
    assert [one for one in canary if one in kept] == []
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "kept").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    (other,) = load(tmp_path / "kept").others
    assert other["spec"]["containers"] == [{"resources": {"requests": {"cpu": "1"}}}]
    first = yard.json("why", "--from", str(tmp_path / "kept"), "--save", str(tmp_path / "again"), code=1)
    assert yard.json("why", "--from", str(tmp_path / "again"), code=1) == first
    assert not [one for one in canary if one in json.dumps(first)]


def test_a_snapshot_of_others_is_read_with_bounds(world: NewWorld, tmp_path: Path, yard: Yard) -> None:
    seen: Snapshot = world().snapshot()
    seen.save(tmp_path / "kept")
    log = tmp_path / "kept/x.current.log"
    os.mkfifo(log)
    assert "not a regular file" in yard.err("why", "--from", str(tmp_path / "kept"), code=2)
    log.unlink()
    with log.open("wb") as file:
        file.truncate(2**40)
    assert "larger than 4 MiB" in yard.err("why", "--from", str(tmp_path / "kept"), code=2)
    log.unlink()
    file_ = tmp_path / "kept/snapshot.json"
    value = json.loads(file_.read_text())
    faults: tuple[Object, ...] = ({"job": 5}, {"objects": {"Pod": [5]}}, {"others": [{"metadata": {}}]})
    for fault in faults:
        file_.write_text(json.dumps(value | fault))
        assert "incomplete snapshot" in yard.err("why", "--from", str(tmp_path / "kept"), code=2)
    file_.write_text("[" * 100_000)
    assert "incomplete snapshot" in yard.err("why", "--from", str(tmp_path / "kept"), code=2)
