"""`yard image check` on Dockerfiles with one fault each, and on good ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tools.cli import invoke
from tools.core.verdict import State, Verdict
from tools.facts.instances import instance
from tools.image.dockerfile import parse
from tools.image.fix import fix
from tools.image.rules import hadolint
from tools.image.rules.evaluate import Target, evaluate, subject, verdicts
from tools.image.rules.rule import rule as rules

CORPUS = Path(__file__).parent / "corpus"
BAD, GOOD = (sorted((CORPUS / kind).glob("*.Dockerfile")) for kind in ("bad", "good"))
CASES: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(CORPUS / "cases.yaml")
EXPECTED = re.compile(r"# (finds|warns): ([\w-]+)@(?:(\S+):)?(\d+)")
STATES = {"finds": State.FAIL, "fails": State.FAIL, "warns": State.WARN, "unclear": State.CANNOT_TELL}


def found(path: Path, text: str | None = None) -> list[Verdict]:
    """Return what is not a PASS in a Dockerfile of the corpus, but advisories."""
    read = subject(Target(path, CORPUS / "context"))
    if text is not None:
        read = type(read)(path.name, parse.parse(text, path.name), read.context, read.ignore)
    return findings(verdicts(read))


def findings(every: list[Verdict]) -> list[Verdict]:
    return [one for one in every if one.state is not State.PASS and one.details["rule"] != "advisory"]


def by_rule(root: Path, text: str, machine: str | None = None, **options: Any) -> dict[str, list[Verdict]]:
    """Return the verdicts on a Dockerfile with this text, by rule."""
    (root / "Dockerfile").write_text(text)
    kind = instance(machine) if machine else None
    result: dict[str, list[Verdict]] = {}
    for one in verdicts(subject(Target(root / "Dockerfile", root), machine=kind, **options)):
        result.setdefault(str(one.details["rule"]), []).append(one)
    return result


def states(verdicts: list[Verdict]) -> list[State]:
    return [one.state for one in verdicts]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_fault_is_the_only_finding_and_has_its_line(path: Path) -> None:
    """Also two lines below comments, with instructions in lower case."""
    match = EXPECTED.match(path.read_text())
    assert match is not None
    said = found(path)
    assert [(one.state, one.details["rule"], one.details["line"]) for one in said] == [
        (STATES[match[1]], match[2], int(match[4]))
    ], said
    assert Path(str(said[0].details["file"])).name == (match[3] or path.name)
    assert said[0].remedy
    lines = path.read_text().splitlines()
    low = [re.sub(r"^[A-Z]{3,}(?= )", lambda match: match[0].lower(), line) for line in lines]
    (below,) = found(path, "\n".join(["# a comment", "", *low]) + "\n")
    shift = 0 if match[3] else 2
    assert (below.details["rule"], below.details["line"]) == (match[2], int(match[4]) + shift)


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_dockerfile_has_no_finding(path: Path) -> None:
    assert found(path) == []


def test_what_a_secret_is_called_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The masking of printed lines takes a word behind `secrets:` for a value."""
    (tmp_path / ".netrc").write_text("")
    file = tmp_path / "Dockerfile"
    key = "WANDB_API" + "_KEY"  # in two parts, so that a scan of this repository for secrets does not find it
    file.write_text(f"FROM python:3.11\nARG HF_TOKEN\nENV {key}=abcdefgh12\nCOPY .netrc /srv/\n")
    assert invoke(["image", "check", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "secrets: the value of ARG HF_TOKEN stays" in shown
    assert f"{file}:2: ARG HF_TOKEN\n" in shown
    assert f"{file}:3: ENV WANDB_API_KEY=***\n" in shown
    assert "a file that holds credentials is copied into a layer: .netrc" in shown


def test_every_rule_has_a_case() -> None:
    """`driver` and `gpu` depend on --driver and --for, `advisory` only warns. They have their own tests."""
    shown = {match[2] for path in BAD if (match := EXPECTED.match(path.read_text()))}
    kinds = ("fails", "warns")
    shown |= {case[kind] for case in CASES for kind in kinds if kind in case} - {"driver", "gpu"}
    assert set(rules.all) - shown == {"driver", "gpu", "advisory"}
    assert len(BAD) >= 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_case_has_at_most_one_finding_and_a_second_fix_changes_nothing(case: dict[str, Any], tmp_path: Path) -> None:
    for name, text in {"train.py": "", **case.get("files", {}), "Dockerfile": case["dockerfile"]}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755 if text.startswith("#!") else 0o644)
    place = Target(tmp_path / "Dockerfile", tmp_path)
    machine = instance(case["machine"]) if "machine" in case else None
    every = verdicts(subject(place, machine=machine, driver=case.get("driver")))
    expected = {(STATES[kind], case[kind]) for kind in STATES if kind in case}
    assert {(one.state, one.details["rule"]) for one in findings(every)} == expected, every
    fixed = fix(place)
    for path in fixed.write():
        assert path.read_text() == fixed.after[path]
    again = fix(place)
    assert again.diff == ""
    assert [one.summary for one in again.left] == [one.summary for one in fixed.left]


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("RUN export AWS_SECRET_ACCESS_KEY=", "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"),
        ("RUN aws configure set aws_secret_access_key ", "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"),
        (r"RUN printf '[default]\naws_secret_access_key=", "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"),
        ("RUN wandb login ", "0123456789abcdef0123456789abcdef01234567"),
        ("LABEL token=gh", "p_abcdefghijklmnopqrstuvwxyz0123456789"),
        ("ENV KEYDATA=LS0tLS1CRUdJ", "TiBSU0EgUFJJVkFURSBLRVktLS0tLQo"),
        ("ENV DB_PASSWORD ", "correct-horse-battery"),
        ("ENV G=AIz", "aSyA1234567890abcdefghijklmnopqrstuv"),
        ("ENV S=xox", "b-123456789012-abcdefghijkl"),
        ("ENV A=sk-", "ant-api03-abcdefghijklmnopqrstuvwx"),
        ("ENV N=nva", "pi-abcdefghijklmnopqrstuvwxyz012345"),
        ("ENV P=pyp", "i-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDA"),
        ("ONBUILD ENV V=hf", "_abcdefghijklmnopqrstuvwxyz"),
    ],
)
def test_a_secret_is_found_and_not_printed(line: str, secret: str, tmp_path: Path) -> None:
    """Each is in two parts, so that a scan of this repository for secrets does not find it."""
    said = by_rule(tmp_path, f"FROM python:3.12\n{line}{secret}\nUSER 1000\n")["secrets"]
    assert [(one.state, one.details["line"]) for one in said] == [(State.FAIL, 2)]
    assert secret not in json.dumps([one.as_dict() for one in said])


def test_other_rules_and_hadolint_print_no_secret_either(tmp_path: Path) -> None:
    """The lines of `pins`, of hadolint's errors and of unknown instructions."""
    secret = "glpat" + "-AbCdEfGhIjKlMnOpQrSt"
    lines = [f"RUN git clone https://x:{secret}@gitlab.example/a/b", f"WORKDIR app-{secret}"]
    for last in ("USER 1000", f"NONSENSE {secret}"):
        said = by_rule(tmp_path, "\n".join(["FROM python:3.12", *lines, last]) + "\n")
        text = json.dumps([one.as_dict() for verdicts in said.values() for one in verdicts])
        assert secret not in text
        assert State.WARN in states(said["pins"])
        assert State.FAIL in states(said["secrets"])


def test_no_secret_of_the_corpus_is_printed() -> None:
    said = json.dumps([one.as_dict() for path in BAD for one in found(path)])
    for secret in ("hf_AbCdEf", "hunter2", "0123456789012345678901234567890123456789", "changeit"):
        assert secret not in said


@pytest.mark.parametrize("mark", ["\ufeff", "\r\n"])
def test_the_files_of_windows_are_read(mark: str, tmp_path: Path) -> None:
    """A byte order mark and CRLF do not change the findings."""
    text = "FROM python:3.12\nUSER root\n"
    text = mark + text if mark == "\ufeff" else text.replace("\n", mark)
    (tmp_path / "Dockerfile").write_bytes(text.encode())
    said = verdicts(subject(Target(tmp_path / "Dockerfile", tmp_path)))
    assert [one.details["rule"] for one in said if one.state is State.WARN] == ["user"]


KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "Zm9vYmFyQkFaMTIzNDU2Nzg5MEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZX\n" * 3


@pytest.mark.parametrize(
    ("name", "before", "token", "line"),
    [
        ("src/conf.py", "\nAK", "IAQ3EGWXYZ7RTNPLMK", 2),
        ("src/a/run.sh", "#!/bin/sh\nexport T=hf", "_qWmZrTnKpLxVbHsJdGfYcUaEoIq", 2),
        (
            "conf.cfg",
            "[default]\r\nregion = x\r\naws_secret_access_key = ",
            "kR7vXz/2LmQp9TnWbYs4HdFgJcUaEo+IqZxNvB3M",
            3,
        ),
        ("deploy/gitlab", "", KEY, 1),
        ("a.json", '{"private_key": "', KEY.replace("\n", "\\n") + '"}', 1),
        ("app.toml", 'url = "postgresql://ml:Xk93nd', '72kq@db7.prod.internal/x"', 1),
        ("notes.ipynb", '{"source": ["wandb_key = ', "'8c1f0e9b7a6d5c4e3f2a1b0c9d8e7f6a5b4c3d2e'\"]}", 1),
    ],
)
def test_a_token_in_a_copied_file_is_found_by_file_and_line(
    name: str, before: str, token: str, line: int, tmp_path: Path
) -> None:
    """Controls: the file is excluded, is named a sample, or is not copied."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes((before + token).encode())
    text = "FROM python:3.12\nUSER 1000\nCOPY . /app\n"
    said = [one for one in by_rule(tmp_path, text)["secrets"] if one.state is State.FAIL]
    assert [(one.details["file"], one.details["line"]) for one in said] == [(name, line)]
    assert "line 3" in said[0].summary
    assert token.strip("\"'}]")[:30] not in json.dumps([one.as_dict() for one in said])
    (tmp_path / ".dockerignore").write_text(name)
    assert states(by_rule(tmp_path, text)["secrets"]) == [State.PASS]
    (tmp_path / ".dockerignore").unlink()
    (tmp_path / name).rename(tmp_path / f"{name}.sample")
    assert states(by_rule(tmp_path, text)["secrets"]) == [State.PASS]
    (tmp_path / f"{name}.sample").rename(tmp_path / name)
    (tmp_path / "other").mkdir()
    assert states(by_rule(tmp_path, text.replace("COPY .", "COPY other"))["secrets"]) == [State.PASS]


@pytest.mark.parametrize("line", ["COPY company.pem /etc/ssl/", "COPY . /app"])
def test_a_certificate_without_its_key_is_no_secret(line: str, tmp_path: Path) -> None:
    certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n"
    for content, state in ((certificate, State.PASS), (certificate + KEY, State.FAIL), ("", State.FAIL)):
        (tmp_path / "company.pem").write_text(content)
        assert states(by_rule(tmp_path, f"FROM python:3.12\n{line}\n")["secrets"]) == [state]


@pytest.mark.parametrize(
    ("rule", "text", "options", "state"),
    [
        ("driver", "FROM python:3.12\nRUN pip install torch==2.9.1", {"driver": 570}, State.PASS),
        ("driver", "FROM python:3.12\nRUN pip install torch==2.11.0", {"driver": 570}, State.FAIL),
        ("driver", "FROM python:3.12\nRUN pip install torch==2.11.0", {"driver": 580}, State.PASS),
        ("driver", "FROM python:3.12\nRUN pip install torch==2.11.0", {}, State.PASS),
        # CUDA 11.7 has no code for Hopper
        ("gpu", "FROM python:3.10\nRUN pip install torch==2.0.1", {"machine": "p5.48xlarge"}, State.FAIL),
        ("gpu", "FROM python:3.10\nRUN pip install torch==2.0.1", {"machine": "g5.xlarge"}, State.PASS),
        ("gpu", "FROM python:3.10\nRUN pip install torch==2.7.1", {"machine": "p5en.48xlarge"}, State.PASS),
        ("gpu", 'FROM a:1\nENV TORCH_CUDA_ARCH_LIST="8.0;8.6"', {"machine": "p5.48xlarge"}, State.FAIL),
        ("gpu", 'FROM a:1\nENV TORCH_CUDA_ARCH_LIST="8.0 9.0"', {"machine": "p5.48xlarge"}, State.PASS),
        ("gpu", 'FROM a:1\nENV TORCH_CUDA_ARCH_LIST="sm_90"', {"machine": "p5.48xlarge"}, State.FAIL),
        ("base", "ARG BASE\nFROM ${BASE}", {}, State.CANNOT_TELL),
        ("base", "ARG BASE\nFROM ${BASE}", {"given": {"BASE": "python:3.12"}}, State.PASS),
    ],
)
def test_driver_machine_and_build_arguments_decide(
    rule: str, text: str, options: dict[str, Any], state: State, tmp_path: Path
) -> None:
    assert states(by_rule(tmp_path, text + "\n", **options)[rule]) == [state]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no FROM"),
        ("# nothing\n", "has no FROM"),
        ("RUN true\nFROM a\n", "before the first FROM"),
        ("FROM a b\n", "not `FROM image`"),
        ("FROM a\nRUN <<EOF\ntrue\n", "is not closed"),
    ],
)
def test_other_text_is_one_error(tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    assert invoke(["image", "check", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


def test_the_command_prints_the_verdicts_and_exits_with_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Warnings are about good practice, and count with --strict."""
    (tmp_path / "Dockerfile").write_text("FROM python:3.12\nENTRYPOINT python\nUSER 1000\n")
    assert invoke(["image", "check", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "will it build and train: PASS; good practice: WARN (1 warning)" in out
    assert "WARN DL3025" in out
    assert "Dockerfile:2: ENTRYPOINT python" in out
    assert 'fix: ENTRYPOINT ["python"]' in out
    assert invoke(["image", "check", str(tmp_path), "--strict", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "WARN"
    assert data["answers"] == {"will it build and train": "PASS", "good practice": "WARN"}
    assert [note["code"] for note in data["hadolint"]] == ["DL3025"]
    (tmp_path / "Dockerfile").write_text('FROM python:3.12\nUSER 1000\nCOPY none /\nENTRYPOINT ["python"]\n')
    assert invoke(["image", "check", str(tmp_path)]) == 1
    assert "will it build and train: FAIL (1 fault); good practice: PASS" in capsys.readouterr().out
    (tmp_path / "Dockerfile").write_text('FROM python:3.12\nUSER 1000\nENTRYPOINT ["python"]\n')
    assert invoke(["image", "check", str(tmp_path), "--strict"]) == 0
    assert invoke(["image", "check", str(tmp_path / "none")]) == 2
    assert invoke(["image", "check", str(tmp_path), "--build-arg", "nonsense"]) == 2


def test_hadolints_errors_count_and_its_remarks_repeat_no_finding(tmp_path: Path) -> None:
    """DL3042 and DL3002 are the faults of `caches` and `user`. DL3059 is a remark."""
    text = "FROM python:3.12\nUSER root\nWORKDIR app\nRUN pip install numpy==2.3.0\nRUN true\n"
    (tmp_path / "Dockerfile").write_text(text)
    result = evaluate(subject(Target(tmp_path / "Dockerfile", tmp_path)))
    warned = [(one.details["rule"], one.details.get("code")) for one in result.of(State.WARN)]
    assert warned == [("user", None), ("hadolint", "DL3000"), ("caches", None)]
    assert result.of(State.FAIL) == []
    assert {one.code for one in result.notes or []} >= {"DL3000", "DL3002", "DL3042", "DL3059"}
    assert {one.code for one in result.remarks} & {"DL3000", "DL3002", "DL3042", "DL3059"} == {"DL3059"}


def test_without_hadolint_the_verdict_is_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`yard image fix` does not call the file good either."""
    (tmp_path / "Dockerfile").write_text("FROM python:3.12\nUSER 1000\nENTRYPOINT python\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoke(["image", "check", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert "CANNOT TELL hadolint: hadolint does not run, so DL1000 and its errors" in out
    assert "fix: make setup" in out
    assert invoke(["image", "fix", str(tmp_path)]) == 3
    assert "left CANNOT TELL hadolint" in capsys.readouterr().err


def test_rules_have_one_order_whatever_was_imported_first() -> None:
    code = "import tools.image.rules.efa; from tools.image.rules.rule import rule; print(*rule.all)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = [rules.all[name].check.__module__.rpartition(".")[2] for name in done.stdout.split()]
    order = [one.check.__module__.rpartition(".")[2] for one in rules.all.values()]
    assert modules == order
    assert order[0] == "runtime"
    assert "efa" in modules[1:]


def test_a_missing_file_is_one_finding_and_a_wildcard_only_a_warning(tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(tmp_path.parent)
    lines = ["COPY a.py b.py /x/", "COPY c.py /x/", "COPY none*.py /x/", "COPY other/d.py /x/"]
    said = by_rule(tmp_path, "\n".join(["FROM python:3.12", *lines, "USER 1000"]) + "\n")["copy"]
    (tmp_path.parent / "d.py").write_text("")
    behind = by_rule(tmp_path, f"FROM python:3.12\n{lines[3]}\nUSER 1000\n")["copy"]
    assert [(one.state, one.summary, len(one.evidence)) for one in said] == [
        (State.FAIL, f"a.py, b.py, c.py, other/d.py are not in the context {tmp_path.name}/", 3),
        (State.WARN, f"none*.py is not in the context {tmp_path.name}/", 1),
    ]
    assert [one.summary for one in behind] == ["other/d.py is behind a link, which is sent without its target"]


def test_the_context_is_the_directory_with_the_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only up to that of .git, and not if --context is given."""
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/docker").mkdir()
    (tmp_path / "repo/train.py").write_text("")
    (tmp_path / "up.py").write_text("")
    path = tmp_path / "repo/docker/Dockerfile"
    path.write_text("FROM python:3.12\nCOPY train.py /x/\nUSER 1000\n")
    assert invoke(["image", "check", str(path)]) == 0
    assert "context: " in capsys.readouterr().out
    assert invoke(["image", "check", str(path), "--context", str(path.parent)]) == 1
    assert "context: " not in capsys.readouterr().out
    path.write_text("FROM python:3.12\nCOPY up.py /x/\nUSER 1000\n")
    assert invoke(["image", "check", str(path)]) == 1


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ('COPY run.sh /run.sh\nCMD ["/run.sh"]', State.FAIL),
        ("COPY run.sh /run.sh\nCMD /run.sh --lr 1", State.FAIL),
        ("COPY run.sh /run.sh\nENTRYPOINT exec /run.sh", State.FAIL),
        ('COPY --chmod=644 x.sh /run.sh\nCMD ["/run.sh"]', State.FAIL),
        ('COPY run.sh /usr/local/bin/\nENTRYPOINT ["tini", "--", "run.sh"]', State.FAIL),
        ('WORKDIR /app\nCOPY . .\nRUN pip install -e . && chmod +x /app/other\nCMD ["./run.sh"]', State.FAIL),
        ('COPY run.sh /run.sh\nCOPY --from=a /venv /venv\nCMD ["/run.sh"]', State.FAIL),
        ('COPY run.sh /run.sh\nRUN chown -R 1000 / && chmod -R a+rX /opt\nCMD ["/run.sh"]', State.FAIL),
        ('COPY x.sh /run.sh\nCMD ["/run.sh"]', State.PASS),
        ('COPY --chmod=0755 run.sh /run.sh\nCMD ["/run.sh"]', State.PASS),
        ('COPY --chmod=+x run.sh /run.sh\nCMD ["/run.sh"]', State.PASS),
        ('COPY run.sh /run.sh\nRUN apt-get update; chmod 755 /run.sh\nCMD ["/run.sh"]', State.PASS),
        ('WORKDIR /app\nCOPY . .\nRUN chmod a+rx run.sh\nCMD ["./run.sh"]', State.PASS),
        # These may change the mode, or it is not needed.
        ('COPY --chmod=$MODE run.sh /run.sh\nCMD ["/run.sh"]', None),
        ('COPY --chmod=go-w run.sh /run.sh\nCMD ["/run.sh"]', None),
        ('COPY run.sh /run.sh\nRUN install -m 755 /run.sh /run.sh\nCMD ["/run.sh"]', None),
        ('COPY run.sh /run.sh\nRUN chmod $MODE /run.sh\nCMD ["/run.sh"]', None),
        ('COPY run.sh /app/run.sh\nRUN chmod -R a+x /app\nCMD ["/app/run.sh"]', None),
        ('COPY run.sh /app/run.sh\nRUN cd /app && chmod +x *\nCMD ["/app/run.sh"]', None),
        ('COPY run.sh /run.sh\nRUN ./setup.sh\nCMD ["/run.sh"]', None),
        ('COPY run.sh /run.sh\nRUN python -c "import os; os.chmod(1)"\nCMD ["/run.sh"]', None),
        ('COPY run.sh /run.sh\nRUN <<END python\nimport os\nEND\nCMD ["/run.sh"]', None),
        ('COPY run.sh /run.sh\nCOPY --from=a / /\nCMD ["/run.sh"]', None),
        ('COPY run.sh /run.sh\nCMD ["bash", "/run.sh"]', None),
        ('COPY run.sh /opt/\nCMD ["run.sh"]', None),
        ('CMD ["/run.sh"]', None),
        ('COPY link.sh /run.sh\nCMD ["/run.sh"]', None),
    ],
)
def test_a_first_script_needs_the_mode_to_execute_it(lines: str, state: State | None, tmp_path: Path) -> None:
    """Of a base that is not known, an ENTRYPOINT may be a shell that only reads the script."""
    for name, mode in (("run.sh", 0o644), ("x.sh", 0o755)):
        (tmp_path / name).write_text("#!/bin/sh\nexec python train.py\n")
        (tmp_path / name).chmod(mode)
    (tmp_path / "link.sh").symlink_to("run.sh")
    said = by_rule(tmp_path, f"FROM python:3.12 AS a\nFROM python:3.12\n{lines}\n").get("executable", [])
    assert states(said) == ([] if state is None else [state]), said
    private = by_rule(tmp_path, f"FROM python:3.12 AS a\nFROM registry.example.com/team/a:1\n{lines}\n")
    unknown = State.CANNOT_TELL if state is State.FAIL and "ENTRYPOINT" not in lines else state
    assert states(private.get("executable", [])) == ([] if unknown is None else [unknown])


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ('COPY run.sh /run.sh\nRUN chmod u+x /run.sh\nUSER 1000\nCMD ["/run.sh"]', State.FAIL),
        ('COPY --chmod=700 run.sh /run.sh\nUSER trainer\nCMD ["/run.sh"]', State.FAIL),
        ('COPY run.sh /run.sh\nRUN chmod u+x /run.sh\nCMD ["/run.sh"]', State.PASS),
        ('COPY run.sh /run.sh\nRUN chmod u+x /run.sh\nUSER root\nCMD ["/run.sh"]', State.PASS),
        ('COPY --chown=1000 run.sh /run.sh\nRUN chmod u+x /run.sh\nUSER 1000\nCMD ["/run.sh"]', State.PASS),
        ('COPY run.sh /run.sh\nRUN chmod 700 /run.sh && chown 1000 /run.sh\nUSER 1000\nCMD ["/run.sh"]', State.PASS),
        ('COPY run.sh /run.sh\nRUN chmod ug+x /run.sh\nUSER 1000\nCMD ["/run.sh"]', State.PASS),
        ('COPY run.sh /run.sh\nRUN chmod +x /run.sh\nUSER 1000\nCMD ["/run.sh"]', State.PASS),
        ('COPY run.sh /run.sh\nRUN chmod u+x,o+rx /run.sh\nUSER 1000\nCMD ["/run.sh"]', State.PASS),
    ],
)
def test_a_mode_for_the_owner_alone_is_roots(lines: str, state: State, tmp_path: Path) -> None:
    """A user without a group of its own is in that of root, so a mode for the group may do."""
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec python train.py\n")
    (tmp_path / "run.sh").chmod(0o644)
    assert states(by_rule(tmp_path, f"FROM python:3.12\n{lines}\n")["executable"]) == [state]


ALPINE = "FROM alpine:3.20.3@sha256:" + "a" * 64
TORCHRUN = 'ENTRYPOINT ["torchrun", "train.py"]'


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("FROM scratch", State.FAIL),
        (f"FROM scratch AS a\nFROM a\n{TORCHRUN}", State.FAIL),
        (f"{ALPINE}\n{TORCHRUN}", State.FAIL),
        (f"{ALPINE}\nRUN apk add --no-cache bash && adduser -D trainer\n{TORCHRUN}", State.FAIL),
        (f"{ALPINE}\nCOPY train.py /app/\n{TORCHRUN}", State.FAIL),
        ('FROM docker.io/library/ubuntu:24.04\nCMD ["python3", "train.py"]', State.FAIL),
        ("FROM debian:12\nCMD exec torchrun train.py", State.FAIL),
        (f"FROM python:3.12\n{TORCHRUN}", State.FAIL),
        ('FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04\nENTRYPOINT ["tini", "--", "accelerate", "launch"]', State.FAIL),
        (ALPINE, State.CANNOT_TELL),
        (f'{ALPINE}\nENTRYPOINT ["/volume/bin/torchrun"]', State.CANNOT_TELL),
        # Each of these may bring torch.
        (f"{ALPINE}\nENV PATH=/volume/bin:$PATH\nRUN true\n{TORCHRUN}", None),
        (f"{ALPINE}\nRUN apk add py3-torch\n{TORCHRUN}", None),
        (f"FROM ubuntu:24.04\nRUN apt-get install -y $PACKAGES\n{TORCHRUN}", None),
        (f"FROM python:3.12\nRUN pip install torch==2.11.0\n{TORCHRUN}", None),
        (f"FROM ubuntu:24.04\nRUN ./install.sh\n{TORCHRUN}", None),
        (f"FROM ubuntu:24.04\nRUN <<END python\nimport os\nEND\n{TORCHRUN}", None),
        (f"{ALPINE}\nWORKDIR /app\nCOPY . .\n{TORCHRUN}", State.FAIL),
        (f'{ALPINE}\nCOPY . /app\nCMD ["python3", "/app/train.py"]', State.FAIL),
        (f"FROM python:3.12 AS a\nFROM ubuntu:24.04\nCOPY --from=a /venv /venv\n{TORCHRUN}", None),
        ("FROM ubuntu:24.04\nADD https://a.example/root.tar /\nCMD train", None),
        ("FROM scratch\nADD root.tar /", None),
        ('FROM scratch\nCOPY train.py /app/\nCMD ["/app/train.py"]', None),
        (f"FROM ubuntu:24.04\nCOPY . /\n{TORCHRUN}", None),
        (f"FROM ubuntu:24.04\nWORKDIR /usr\nCOPY . local/\n{TORCHRUN}", None),
        (f"FROM ubuntu:24.04\nENV PATH=/app/bin:$PATH\nCOPY . /app\n{TORCHRUN}", None),
        ('FROM ubuntu:24.04\nCOPY . /app\nCMD ["/app/bin/python", "/app/train.py"]', None),
        ('FROM python:3.12\nCMD ["python", "/volume/train.py"]', None),
        (f"FROM ubuntu:24.04 AS a\nRUN pip install torch\nFROM a\n{TORCHRUN}", None),
        (f"FROM registry.example.com/team/alpine:1\n{TORCHRUN}", None),
        (f"FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime\n{TORCHRUN}", None),
    ],
)
def test_an_image_in_which_nothing_can_train_does_not_pass(text: str, state: State | None, tmp_path: Path) -> None:
    for name in ("train.py", "torch.whl"):
        (tmp_path / name).write_text("")
    said = by_rule(tmp_path, f"{text}\nUSER 1000:1000\n").get("torch", [])
    assert states(said) == ([] if state is None else [state]), said


def test_a_file_that_is_not_sent_is_not_the_script(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    lines = 'FROM python:3.12\nWORKDIR /app\nCOPY . .\nENTRYPOINT ["./run.sh"]\n'
    assert states(by_rule(tmp_path, lines)["executable"]) == [State.FAIL]
    (tmp_path / ".dockerignore").write_text("*.sh\n")
    assert "executable" not in by_rule(tmp_path, lines)


# One of each shape, in two parts, so that a scan of this repository does not find them.
TOKENS = (
    ("hf", "_qWmZrTnKpLxVbHsJdGfYcUaEoIq"),
    ("AK", "IAQ3EGWXYZ7RTNPLMK"),
    ("gh", "p_" + "aB3dE5gH7jK9" * 3),
    ("github_", "pat_11ABCDEFG0aBcDeFgHiJkLm"),
    ("glp", "at-AbCdEfGhIjKlMnOpQrSt"),
    ("sk-", "ant-api03-aB3dE5gH7jK9mN1p"),
    ("AIz", "aSyA1234567890abcdefghijklmnopqrstuv"),
    ("xox", "b-123456789012-abcdefghijkl"),
    ("nva", "pi-abcdefghijklmnopqrstuvwxyz012345"),
    ("pyp", "i-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDA"),
    ("npm", "_" + "aB3dE5gH7jK9" * 3),
    ("dck", "r_pat_aB3dE5gH7jK9mN1pQ3rS5t"),
    ("GOC", "SPX-aB3dE5gH7jK9mN1pQ3rS5t"),
    ("hv", "s.aB3dE5gH7jK9mN1pQ3rS5tU7vW"),
    ("eyJ", "hbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"),
    ("sk_", "live_aB3dE5gH7jK9mN1pQ3rS"),
)
# Places whose text findings, errors and repairs repeat.
PLACES = (
    "FROM registry.example.com/{}:latest",
    "FROM {} {}",
    "FROM python:3.12\nUSER {}",
    "FROM python:3.12\n{} x\n{}: y",
    "FROM python:3.12\nCOPY {} /x",
    "FROM python:3.12\nRUN pip install {}\nRUN pip install x@git+https://a.b/{}",
    "FROM python:3.12\nENTRYPOINT ['{}']",
    "FROM python:3.12\nCMD python a.py {}",
    "FROM python:3.12\nWORKDIR {}",
    "FROM python:3.12\nRUN curl http://a.example/{}\nADD http://a.example/{} /x",
    'FROM a:1\nENV TORCH_CUDA_ARCH_LIST="{}"',
    "FROM --platform=linux/{} a:1",
    "FROM python:3.12\nARG V=v1\nRUN git clone -b v$V https://a.example/{}",
    "FROM python:3.12\nRUN pip install -r {}.txt",
    "FROM python:3.12\nRUN <<{}\n",
    "FROM python:3.12\nEXPOSE 99999/{}",
    "FROM python:3.12\nRUN apt-get update && apt-get install -y {}\nWORKDIR /{}\nCMD {} | tee a",
)


def test_no_finding_repair_or_error_prints_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shape at each place; hadolint is stood in for by a message with the line, to keep this short."""

    def noted(program: str, text: str) -> list[hadolint.Note]:
        lines = text.splitlines()
        return [hadolint.Note("DL3000", "error", n, f"bad: {line}") for n, line in enumerate(lines, 1)]

    monkeypatch.setattr(hadolint, "_run", noted)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "Dockerfile"
    for number, place in enumerate(PLACES):
        for parts in TOKENS:
            token = "".join(parts)
            path.write_text(place.replace("{}", token) + "\n")
            invoke(["image", "check", ".", "-v", "--for", "p5.48xlarge"])
            if number % len(TOKENS) == TOKENS.index(parts):
                invoke(["image", "check", ".", "--json"])
                invoke(["image", "fix", ".", "--json"])
                invoke(["image", "check", f"./{token}", "--build-arg", token])
            invoke(["image", "fix", "."])
            said = capsys.readouterr()
            assert said.out or said.err
            assert token not in said.out + said.err, place
            assert token.upper() not in said.out + said.err, place
