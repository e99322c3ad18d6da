"""`yard image fix`: the smallest change, in a copy, and findings that it cannot repair."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tools.cli import invoke
from tools.image.fix import REPAIRS, fix
from tools.image.rules.evaluate import Target

CORPUS = Path(__file__).parent / "corpus"
EXPECTED = re.compile(r"# finds: ([\w-]+)@")
BAD = sorted((CORPUS / "bad").glob("*.Dockerfile"))
# The program that a script should start, and the signal that was meant, are unknown.
BEYOND = {"entrypoint-script-without-exec", "stopsignal-kill"}
REPAIRABLE = [
    path
    for path in BAD
    if EXPECTED.match(path.read_text())[1] in REPAIRS and path.name.split(".")[0] not in BEYOND  # type: ignore[index]
]


@pytest.mark.parametrize("path", REPAIRABLE, ids=lambda path: path.stem)
def test_a_repair_removes_its_finding_and_changes_one_line(path: Path) -> None:
    before = path.read_text()
    fixed = fix(Target(path, CORPUS / "context"))
    assert fixed.left == []
    assert len(fixed.done) == 1
    changed = [line for line in fixed.diff.splitlines() if re.match(r"[-+](?![-+])", line)]
    assert 1 <= len(changed) <= 2, fixed.diff
    assert path.read_text() == before, "nothing is written"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cuda-too-old", "+FROM nvidia/cuda:12.6.3-cudnn-devel-ubuntu22.04"),
        ("torchvision-one-behind", "+      torchvision==0.21.0"),
        ("torchvision-patch-decides", "+RUN pip install --no-cache-dir torch==2.15.0 torchvision==0.29.2"),
        ("entrypoint-shell-form", '+ENTRYPOINT ["torchrun", "--nproc-per-node=8", "train.py"]'),
        ("entrypoint-broken-json", '+ENTRYPOINT ["python", "train.py"]'),
        ("root-again-at-the-end", "+USER 1000:1000"),
        ("entrypoint-sh-c", '+ENTRYPOINT ["/bin/bash", "-c", "source /env && exec torchrun train.py"]'),
        (
            "index-never-built",
            "+RUN pip install --no-cache-dir --index-url https://wheels.example/whl/cu128 torch==2.9.0",
        ),
    ],
)
def test_the_repaired_line(name: str, line: str) -> None:
    assert line in fix(Target(CORPUS / f"bad/{name}.Dockerfile", CORPUS / "context")).diff.splitlines()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("CMD cd /app && python a.py", 'CMD ["/bin/sh", "-c", "cd /app && exec python a.py"]'),
        ("CMD A=1 python a.py", 'CMD ["env", "A=1", "python", "a.py"]'),
        ("ENV A=1\nCMD python a.py $A", 'CMD ["/bin/sh", "-c", "exec python a.py $A"]'),
        (
            'SHELL ["/bin/bash", "-c"]\nCMD . /e && python a.py',
            'CMD ["/bin/bash", "-c", ". /e && exec python a.py"]',
        ),
        ('CMD python -c "a; b"', 'CMD ["/bin/sh", "-c", "exec python -c \\"a; b\\""]'),
        ("CMD python a.py | tee log", None),
        ("CMD python a.py || sleep 9", None),
        ("CMD python a.py & wait", None),
    ],
)
def test_a_shell_form_keeps_what_it_does(before: str, after: str | None, tmp_path: Path) -> None:
    """`exec` comes before the last command. If that would change what runs, nothing is changed."""
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.12\nUSER 1000\n{before}\n")
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    added = [line[1:] for line in fixed.diff.splitlines() if re.match(r"\+(?!\+)", line)]
    assert added == ([after] if after else [])
    assert bool(fixed.left) == (after is None)


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("ARG CUDA=11.8.0\nFROM nvidia/cuda:${CUDA}-devel-ubuntu22.04", "ARG CUDA=12.4.1"),
        (
            "ARG CUDA=11.8.0\nFROM nvidia/cuda:${CUDA}-cudnn8-devel-ubuntu22.04",
            "FROM nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04",
        ),
        ("FROM nvidia/cuda:13.0.0-devel-ubuntu24.04", "FROM nvidia/cuda:12.6.3-devel-ubuntu24.04"),
    ],
)
def test_a_base_is_changed_in_its_argument_or_in_from(before: str, line: str, tmp_path: Path) -> None:
    """If the system has no image with the wheel's CUDA, the next minor release is taken."""
    (tmp_path / "Dockerfile").write_text(
        f"{before}\nRUN pip install --no-cache-dir torch==2.6.0\nUSER 1000\n"
    )
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    assert [one[1:] for one in fixed.diff.splitlines() if re.match(r"\+(?!\+)", one)] == [line]
    assert fixed.left == []


def test_root_stays_for_the_commands_that_need_it(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.12\nUSER 1\nUSER root\nRUN touch /x\nCMD []\n")
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    text = fixed.after[tmp_path / "Dockerfile"]
    assert text == "FROM python:3.12\nUSER 1\nUSER root\nRUN touch /x\nUSER 1000:1000\nCMD []\n"


def test_other_findings_are_left() -> None:
    for path in BAD:
        if path not in REPAIRABLE:
            fixed = fix(Target(path, CORPUS / "context"))
            assert fixed.diff == ""
            assert [one.details["rule"] for one in fixed.left] == [EXPECTED.match(path.read_text())[1]]  # type: ignore[index]


def test_several_faults_are_repaired_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\ntorchvision==0.19.0\n")
    (tmp_path / "Dockerfile").write_text(
        "FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04\nCOPY requirements.txt /r.txt\n"
        "RUN pip install --no-cache-dir -r /r.txt\nCMD python train.py --note 'a b'\n"
    )
    assert invoke(["image", "fix", str(tmp_path), "--write"]) == 0
    assert (tmp_path / "requirements.txt").read_text() == "torch==2.6.0\ntorchvision==0.21.0\n"
    assert (tmp_path / "Dockerfile").read_text().splitlines() == [
        "FROM nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04",
        "COPY requirements.txt /r.txt",
        "RUN pip install --no-cache-dir -r /r.txt",
        "USER 1000:1000",
        'CMD ["python", "train.py", "--note", "a b"]',
    ]
    assert invoke(["image", "check", str(tmp_path)]) == 0
    assert fix(Target(tmp_path / "Dockerfile", tmp_path)).diff == ""


def test_a_missing_package_is_installed_with_the_version_of_the_lock(tmp_path: Path) -> None:
    text = "FROM python:3.12\nRUN pip install --no-cache-dir \\\n      numpy==2.3.0\nUSER 1000\n"
    (tmp_path / "Dockerfile").write_text(text)
    fixed = fix(
        Target(tmp_path / "Dockerfile", tmp_path), missing=("datasets", "yaml", "requests", "no_such_module")
    )
    assert re.search(
        r"^\+      numpy==2.3.0 pyyaml==[\d.]+ datasets==[\d.]+$|^\+      numpy==2.3.0 .*==", fixed.diff, re.M
    )
    assert [fixed.diff.count(f"{name}==") for name in ("datasets", "pyyaml", "requests")] == [1, 1, 1]
    assert [one.summary for one in fixed.left] == [
        "no_such_module cannot be imported, and requirements-dev.lock has no no-such-module"
    ]


def test_the_command_writes_only_with_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(CORPUS / "bad/root.Dockerfile", tmp_path / "Dockerfile")
    assert invoke(["image", "fix", str(tmp_path)]) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert "USER root" in (tmp_path / "Dockerfile").read_text()
    assert invoke(["image", "fix", str(tmp_path), "--write"]) == 0
    assert "USER root" not in (tmp_path / "Dockerfile").read_text()
    assert invoke(["image", "fix", str(tmp_path)]) == 0
    assert "nothing to repair" in capsys.readouterr().out


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_lines_keep_their_ends(end: str, tmp_path: Path) -> None:
    """In a file with both line ends, each line keeps its own."""
    lines = ["FROM python:3.12", "# first", "ENTRYPOINT python train.py"]
    path = tmp_path / "Dockerfile"
    path.write_bytes(end.join([*lines, ""]).encode())
    fix(Target(path, tmp_path)).write()
    fixed = path.read_bytes().decode()
    assert 'ENTRYPOINT ["python", "train.py"]' in fixed
    assert "USER" in fixed
    assert fixed.count(end) == fixed.count("\n") == 4
    path.write_bytes(f"{lines[0]}\n{lines[1]}\r\n{lines[2]}\n".encode())
    fix(Target(path, tmp_path)).write()
    assert f"{lines[1]}\r\n" in path.read_bytes().decode()
    assert path.read_bytes().count(b"\r") == 1
