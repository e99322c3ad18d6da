"""`yard image fix`: the smallest change, in a copy, and findings that it cannot repair."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.cli import invoke
from tools.image.fix import fix
from tools.image.repair_user import HOME_OF_ROOT
from tools.image.repairs import REPAIRS
from tools.image.rules.evaluate import Target

CORPUS = Path(__file__).parent / "corpus"
EXPECTED = re.compile(r"# (?:finds|warns): ([\w-]+)@")
BAD = sorted((CORPUS / "bad").glob("*.Dockerfile"))
# Why these are left.
LEFT = {
    "cuda-11-under-torch-2.6": "either the base can have CUDA 12.4, or the wheel can be that for CUDA 11.8",
    "cuda-13-under-cuda-12-wheel": "either the base can have CUDA 12.8, or the wheel",
    "entrypoint-script-without-exec": "the program that is meant is not in the Dockerfile",
    "git-branch": "no version or commit is written down",
    "index-never-built": "more than one build of torch 2.9.0 is possible",
    "no-user": "it starts in /, where only root writes",
    "ofi-nccl-old-libfabric": "only another release",
    "ofi-nccl-old-nccl": "only another release",
    "plugin-cloned-for-newer-libfabric": "only another release",
    "root": "it starts in /",
    "stopsignal-kill": "the program that is meant is not in the Dockerfile",
    "unpinned": "no lock in the context has a version of it",
    "unpinned-in-file": "no lock",
    "unpinned-in-heredoc": "no lock",
    "user-only-in-the-build-stage": "it starts in /",
}
REPAIRABLE = [
    path
    for path in BAD
    if EXPECTED.match(path.read_text())[1] in REPAIRS and path.name.split(".Dockerfile")[0] not in LEFT  # type: ignore[index]
]


@pytest.mark.parametrize("path", REPAIRABLE, ids=lambda path: path.stem)
def test_a_repair_removes_its_finding_and_changes_one_line(path: Path) -> None:
    before = path.read_text()
    fixed = fix(Target(path, CORPUS / "context"))
    assert [one for one in fixed.left if one.details["rule"] != "advisory"] == []
    assert len(fixed.done) == 1
    changed = [line for line in fixed.diff.splitlines() if re.match(r"[-+](?![-+])", line)]
    assert 1 <= len(changed) <= 3, fixed.diff
    assert path.read_text() == before, "nothing is written"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cuda-too-old", "+FROM nvidia/cuda:12.6.3-cudnn-devel-ubuntu22.04"),
        ("torchvision-one-behind", "+      torchvision==0.21.0"),
        ("torchvision-patch-decides", "+RUN pip install --no-cache-dir torch==2.15.0 torchvision==0.29.2"),
        ("entrypoint-shell-form", '+ENTRYPOINT ["torchrun", "--nproc-per-node=8", "train.py"]'),
        ("entrypoint-broken-json", '+ENTRYPOINT ["python", "train.py"]'),
        ("entrypoint-sh-c", '+ENTRYPOINT ["/bin/sh", "-c", ". /env && exec torchrun train.py"]'),
        ("root-again-at-the-end", "+USER 1000"),
        ("efa-kernel-module", "efa_installer.sh --skip-kmod -y"),
        ("apt-lists", "+    && rm -rf /var/lib/apt/lists/*"),
        ("conda-cache", "+    && conda clean -afy"),
        ("script-not-executable", "+COPY --chmod=755 <<'END' /run.sh"),
        ("pip-cache", "+RUN pip install --no-cache-dir numpy==2.3.0"),
    ],
)
def test_the_repaired_line(name: str, line: str) -> None:
    diff = fix(Target(CORPUS / f"bad/{name}.Dockerfile", CORPUS / "context")).diff.splitlines()
    assert [one for one in diff if one.startswith("+") and one.endswith(line)]


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
        ("ARG CUDA=11.7.1\nFROM nvidia/cuda:${CUDA}-devel-ubuntu22.04", "ARG CUDA=12.4.1"),
        (
            "ARG CUDA=11.7.1\nFROM nvidia/cuda:${CUDA}-cudnn8-devel-ubuntu22.04",
            "FROM nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04",
        ),
        ("FROM nvidia/cuda:13.0.0-devel-ubuntu24.04", "FROM nvidia/cuda:12.6.3-devel-ubuntu24.04"),
    ],
)
def test_a_base_is_changed_in_its_argument_or_in_from(before: str, line: str, tmp_path: Path) -> None:
    """If the system has no image with the wheel's CUDA, the next minor release is taken."""
    (tmp_path / "Dockerfile").write_text(f"{before}\nRUN pip install --no-cache-dir torch==2.6.0\nUSER 1000\n")
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    assert [one[1:] for one in fixed.diff.splitlines() if re.match(r"\+(?!\+)", one)] == [line]
    assert {one.details["rule"] for one in fixed.left} <= {"advisory"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("COPY run.sh /run.sh", "COPY --chmod=755 run.sh /run.sh"),
        ("COPY --chown=1:1 --chmod=644 run.sh /run.sh", "COPY --chown=1:1 --chmod=755 run.sh /run.sh"),
        ("COPY . /", None),
        ("COPY run.sh other /", None),
    ],
)
def test_only_a_line_that_copies_one_file_gets_the_mode(before: str, after: str | None, tmp_path: Path) -> None:
    for name in ("run.sh", "other"):
        (tmp_path / name).write_text("#!/bin/sh\nexec python train.py\n")
    (tmp_path / "Dockerfile").write_text(f'FROM python:3.12\n{before}\nUSER 1000\nENTRYPOINT ["/run.sh"]\n')
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    added = [line[1:] for line in fixed.diff.splitlines() if re.match(r"\+(?!\+)", line)]
    assert added == ([after] if after else [])
    assert [one.remedy for one in fixed.left] == ([] if after else ["RUN chmod 755 /run.sh, after this line"])


def test_root_stays_for_the_commands_that_need_it(tmp_path: Path) -> None:
    """The user that the Dockerfile had before is used again."""
    (tmp_path / "Dockerfile").write_text("FROM python:3.12\nUSER 1\nUSER root\nRUN touch /x\nCMD []\n")
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    text = fixed.after[tmp_path / "Dockerfile"]
    assert text == "FROM python:3.12\nUSER 1\nUSER root\nRUN touch /x\nUSER 1\nCMD []\n"


def test_other_findings_are_left_with_the_reason() -> None:
    for path in BAD:
        if path not in REPAIRABLE:
            fixed = fix(Target(path, CORPUS / "context"))
            assert fixed.diff == ""
            said = [one.details for one in fixed.left if one.details["rule"] != "advisory"]
            assert [one["rule"] for one in said] == [EXPECTED.match(path.read_text())[1]]  # type: ignore[index]
            assert LEFT.get(path.name.split(".Dockerfile")[0], "") in said[0].get("why_left", ""), said


def test_several_faults_are_repaired_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    """The one package without an evident version is left."""
    (tmp_path / "requirements.txt").write_text("torch==2.10.0\ntorchvision==0.19.0\nnumpy\nrich\n")
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "numpy"\nversion = "2.3.0"\n')
    (tmp_path / "Dockerfile").write_text(
        "FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04\n"
        "RUN apt-get update && apt-get install -y python3-pip;\nWORKDIR /app\nCOPY requirements.txt .\n"
        "ENV HF_HOME=/cache/hf\nRUN pip install -r requirements.txt\nCMD python train.py --note 'a b'\n"
    )
    assert invoke(["image", "fix", str(tmp_path), "--write"]) == 0
    assert (tmp_path / "requirements.txt").read_text() == ("torch==2.10.0\ntorchvision==0.25.0\nnumpy==2.3.0\nrich\n")
    assert (tmp_path / "Dockerfile").read_text().splitlines() == [
        "FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04",
        "RUN apt-get update && apt-get install -y python3-pip \\",
        "    && rm -rf /var/lib/apt/lists/*",
        "WORKDIR /app",
        "COPY requirements.txt .",
        "ENV HF_HOME=/cache/hf",
        "RUN pip install --no-cache-dir -r requirements.txt",
        "# A user with a home, who owns what the image writes at run time",
        "RUN (getent passwd 1000 || useradd --uid 1000 --create-home --shell /bin/bash trainer) \\",
        "    && mkdir -p /app /cache/hf \\",
        "    && chown -R 1000:1000 /app /cache/hf",
        "USER 1000:1000",
        'CMD ["python", "train.py", "--note", "a b"]',
    ]
    again = fix(Target(tmp_path / "Dockerfile", tmp_path))
    assert again.diff == ""
    assert [one.summary for one in again.left] == ["no exact version: rich"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("RUN pip install --no-cache-dir --user rich==14.0.0", "--user"),
        (f"COPY --from=ghcr.io/a/b:1 {HOME_OF_ROOT}/.local /x", HOME_OF_ROOT),
        (f"ENV HOME={HOME_OF_ROOT}", HOME_OF_ROOT),
        ("RUN curl -LsSf https://astral.sh/uv/install.sh | sh", "astral.sh/uv/install"),
        ("RUN python -c 'from m import M; M.from_pretrained(1)'", "from_pretrained"),
        (
            "RUN apt-get update && apt-get install -y openssh-server && rm -rf /var/lib/apt/lists/*",
            "SSH server",
        ),
        ("EXPOSE 80", "port below 1024"),
        ("VOLUME /app", "VOLUME"),
        ('CMD ["service", "ssh", "start"]', "service"),
        ('ENTRYPOINT ["/none/start.sh"]', "is not in the context"),
        ('COPY start.sh /app/\nENTRYPOINT ["./start.sh"]', "apt-get"),
        ("ENV HF_HOME=/usr/share/hf", "a cache is in /usr/share/hf"),
        ("WORKDIR /usr/src", "it starts in /usr/src"),
        ('SHELL ["powershell", "-c"]', "powershell"),
        ("RUN uv venv /venv", "UV_PYTHON_INSTALL_DIR"),
    ],
)
def test_an_image_that_may_need_root_keeps_it(lines: str, reason: str, tmp_path: Path) -> None:
    """Control: without the lines, a user is added."""
    (tmp_path / "start.sh").write_text("#!/bin/sh\napt-get install -y git\nexec python train.py\n")
    before = "FROM nvidia/cuda:12.8.1-devel-ubuntu24.04\nWORKDIR /app\n"
    (tmp_path / "Dockerfile").write_text(before)
    assert "+USER 1000:1000" in fix(Target(tmp_path / "Dockerfile", tmp_path)).diff
    (tmp_path / "Dockerfile").write_text(f"{before}{lines}\n")
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    assert "+USER" not in fixed.diff
    (why,) = [one.details["why_left"] for one in fixed.left if one.details["rule"] == "user"]
    assert reason in why


@pytest.mark.parametrize("base", ["python:3.12-alpine", "scratch", "registry.example.com/team/base:1", "alpine:3.20"])
def test_a_base_that_may_have_no_useradd_keeps_its_user(base: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nWORKDIR /app\n")
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    assert fixed.diff == ""
    assert "useradd" in fixed.left[0].details["why_left"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("RUN apt-get update\nRUN apt-get install -y git", "line 3 may install packages"),
        ("RUN apt-get update && apt-get install -y git\nRUN ./more.sh", "line 3 may install packages"),
        ("RUN <<EOF\napt-get update\napt-get install -y git\nEOF", "here-document"),
        ('RUN ["apt-get", "update"]', "JSON list"),
        ("RUN apt-get update && apt-get install -y git # for pip", "comment"),
        ("RUN apt-get update && apt-get install -y git && exit 0", "ends its shell"),
        ("RUN pip --quiet install rich==14.0.0", "its options behind it"),
    ],
)
def test_a_cache_stays_where_its_removal_could_break_the_build(lines: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.12\n{lines}\nUSER 1000\n")
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    assert fixed.diff == ""
    assert reason in next(one.details["why_left"] for one in fixed.left if one.details["rule"] == "caches")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('CMD ["--lr", "1"]\nENTRYPOINT python train.py', "would get it as arguments"),
        ('ENTRYPOINT ["/run"]\nCMD python train.py', "gets the shell form"),
        ("CMD ulimit -l unlimited", "its shell has to stay"),
    ],
)
def test_a_first_process_is_left_where_the_exec_form_does_something_else(
    text: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.12\nUSER 1000\n{text}\n")
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path))
    assert fixed.diff == ""
    (found,) = [one.details for one in fixed.left if one.details["rule"] == "DL3025"]
    assert reason in found["why_left"]


TEXT = "FROM ubuntu:24.04\nRUN apt-get update && \\\n# for pip\n    apt-get install -y git\n\n# the end\nCMD a b"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("text", [TEXT, TEXT + "\n", TEXT.replace("\n\n", "\n \t\n\n") + "\n"])
@pytest.mark.parametrize("place", ["Dockerfile", "docker/a b.Dockerfile"])
def test_git_applies_the_printed_diff(
    text: str,
    end: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Printed in a directory of the repository, applied at its root: the same as --write."""
    text = text.replace("\n", end)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    monkeypatch.chdir(path.parent)
    assert invoke(["image", "fix", path.name]) == 0
    diff = capfdbinary.readouterr().out
    assert b"rm -rf /var/lib/apt" in diff
    assert b'+CMD ["a", "b"]' in diff
    subprocess.run(["git", "-C", str(tmp_path), "apply"], input=diff, check=True)
    applied = path.read_bytes()
    assert applied != text.encode()
    path.write_bytes(text.encode())
    assert invoke(["image", "fix", path.name, "--write"]) == 0
    assert path.read_bytes() == applied
    assert applied.endswith(b"\n") == text.endswith("\n")


def test_a_missing_package_is_installed_with_the_version_of_the_lock(tmp_path: Path) -> None:
    text = "FROM python:3.12\nRUN pip install --no-cache-dir \\\n      numpy==2.3.0\nUSER 1000\n"
    (tmp_path / "Dockerfile").write_text(text)
    fixed = fix(Target(tmp_path / "Dockerfile", tmp_path), missing=("datasets", "yaml", "requests", "no_such_module"))
    assert re.search(
        r"^\+      numpy==2.3.0 pyyaml==[\d.]+ datasets==[\d.]+$|^\+      numpy==2.3.0 .*==", fixed.diff, re.M
    )
    assert [fixed.diff.count(f"{name}==") for name in ("datasets", "pyyaml", "requests")] == [1, 1, 1]
    assert [one.summary for one in fixed.left] == [
        "no_such_module cannot be imported, and requirements-dev.lock has no no-such-module"
    ]


def test_the_command_writes_only_with_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(CORPUS / "bad/pip-cache.Dockerfile", tmp_path / "Dockerfile")
    before = (tmp_path / "Dockerfile").read_text()
    assert invoke(["image", "fix", str(tmp_path)]) == 0
    assert "nothing was written" in capsys.readouterr().err
    assert (tmp_path / "Dockerfile").read_text() == before
    assert invoke(["image", "fix", str(tmp_path), "--write"]) == 0
    assert "--no-cache-dir" in (tmp_path / "Dockerfile").read_text()
    capsys.readouterr()
    assert invoke(["image", "fix", str(tmp_path)]) == 0
    assert "nothing to repair" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_lines_keep_their_ends(end: str, tmp_path: Path) -> None:
    """In a file with both line ends, each line keeps its own."""
    lines = ["FROM python:3.12", "# first", "ENTRYPOINT python train.py"]
    path = tmp_path / "Dockerfile"
    path.write_bytes(end.join([*lines, ""]).encode())
    fix(Target(path, tmp_path)).write()
    fixed = path.read_bytes().decode()
    assert 'ENTRYPOINT ["python", "train.py"]' in fixed
    assert fixed.count(end) == fixed.count("\n") == 3
    path.write_bytes(f"{lines[0]}\n{lines[1]}\r\n{lines[2]}\n".encode())
    fix(Target(path, tmp_path)).write()
    assert f"{lines[1]}\r\n" in path.read_bytes().decode()
    assert path.read_bytes().count(b"\r") == 1
