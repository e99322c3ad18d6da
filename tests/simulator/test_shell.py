"""Shell scripts are followed as real bash and dash run them: process 1, signals, exit codes, variables."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tools.simulator import launch, shell
from tools.simulator.shell import LONGEST, Unreadable
from tools.simulator.torchrun import BadOptions

RUN = "torchrun a.py"
# Each of them starts the launcher once, and it ends at once.
SCRIPTS = (
    *("RUN", "RUN\n", "RUN\n\n", "RUN  \n", "RUN\n   ", "RUN # x", "RUN # x\n", "RUN\n# x\n"),
    *("# x\nRUN\n", "RUN;", "true; RUN", "true; RUN;", "true && RUN", "false || RUN", "true\nRUN\n"),
    *("true\ntrue\nRUN", "true\n\n\nRUN", "true && true && RUN", "true; true && RUN", "RUN; true"),
    *("RUN 2>/dev/null", "RUN </dev/null", "A=b RUN", "A=b; RUN", "true; exec RUN"),
    *("exec RUN 2>/dev/null", "RUN | cat", "{ RUN; }", "( RUN )", "(exec RUN)"),
    *("if true; then RUN; fi", "for i in 1; do RUN; done", "while true; do RUN; break; done"),
    *("case a in a) RUN;; esac", "f() { RUN; }; f", "f() {\nRUN\n}\nf", "f() { true; }\nf\nRUN"),
    *("! RUN", "trap : TERM; RUN", "trap : EXIT; RUN", "trap '' TERM; RUN", "trap : TERM\nRUN"),
    *("RUN & wait", "RUN &\nwait", "trap : TERM; trap - TERM; RUN", "set -e; RUN", "set -eu\nRUN\n"),
    *("export A=b && RUN", "cd / && RUN", "cat > /dev/null <<E\nx\nE\nRUN\n", "true && \\\n RUN"),
    *("true &&\n RUN", "RUN \\\n x", "RUN <<E\nx\nE\n", "if true; then true; fi\nRUN"),
    *("if true; then true; fi; RUN", "{ true; }; RUN", "false || true && RUN", "X=1\nRUN $X"),
    *("X=$(date); RUN", "true & RUN", "true &\nRUN", "(true) && RUN", "true | cat; RUN", "command RUN"),
    *("exec RUN | cat", "exec RUN & wait", "true; true\ntrue; RUN", "bash -c 'RUN'"),
    *("true && bash -c 'true; RUN'", "bash -c 'RUN; true'", "nohup RUN", "env A=b RUN", "unset A; RUN"),
    *("if false; then true; else RUN; fi", "true & wait; RUN", "while false; do true; done; RUN"),
    *(". /dev/null; RUN", "eval RUN", "eval 'true; RUN'", "set -- a b; RUN $1"),
    *("until RUN; do true; done", "nice -n 1 RUN", "[ a = a ] && RUN", "[ a = b ] || RUN"),
    *("cat > /dev/null <<'E' && RUN\n$(\nE\n", "RUN || true", "RUN && true"),
)  # fmt: skip
ONLY_BASH = (
    *("time RUN", "[[ a == a ]] && RUN", "set -o pipefail; RUN | cat", "A=(x y); RUN ${A[@]}"),
    *("(( 1 < 2 )) && RUN", "function f { RUN; }; f", "set -o pipefail\nRUN"),
)  # fmt: skip


def shells(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    return found


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torchrun that notes its parent process and ends with $CODE."""
    program = tmp_path / "bin" / "torchrun"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$PPID $# $*" >> "$NOTES"\nexit ${CODE:-0}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    return tmp_path / "notes"


@pytest.mark.parametrize("name", ["bash", "dash"])
def test_process_1_is_what_the_real_shell_makes_it(name: str, launcher: Path) -> None:
    program = shells(name)
    wrong, seen = [], set()
    for text in (*SCRIPTS, *(ONLY_BASH if name == "bash" else ())):
        script = text.replace("RUN", RUN)
        launcher.unlink(missing_ok=True)
        subprocess.run([program, "-c", script], capture_output=True, check=False, timeout=180)
        real = launcher.read_text().startswith(f"{os.getpid()} ")
        found = launch.read([name, "-c", script], {})
        seen.add(real)
        if found.unknown or (found.why == "it is process 1") != real:
            wrong.append((text, real, found.unknown or found.why))
    assert wrong == []
    assert seen == {True, False}, "the control: both answers occur"


def test_a_script_in_a_file_stays_above_its_last_command(launcher: Path, tmp_path: Path) -> None:
    for name in ("bash", "dash"):
        for text in (RUN, f"exec {RUN}"):
            (tmp_path / "run.sh").write_text(text + "\n")
            launcher.unlink(missing_ok=True)
            subprocess.run([shells(name), tmp_path / "run.sh"], check=False, timeout=180)
            found = launch.read([name, "/mnt/run.sh"], {}, {"/mnt/run.sh": text + "\n"})
            assert launcher.read_text().startswith(f"{os.getpid()} ") == (found.why == "it is process 1")


def test_sh_may_be_bash_or_dash() -> None:
    assert launch.read(["sh", "-c", RUN], {}).signalled is None
    assert launch.read(["sh", "-c", f"exec {RUN}"], {}).signalled is True
    assert launch.read(["sh", "-c", f"{RUN}; true"], {}).signalled is False


@pytest.mark.parametrize("name", ["bash", "dash"])
def test_a_failure_is_lost_where_the_real_shell_loses_it(
    name: str, launcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", "7")
    more = (
        *("RUN; rc=$?; echo x; exit $rc", "set -e; RUN; true", "RUN || exit 1", "set -e; RUN | cat; true"),
        *("RUN && true; true", "set -e; RUN && true; true", "if RUN; then true; else exit 4; fi"),
        *("RUN & PID=$!; wait $PID", "if ! RUN; then exit 3; fi", "set -e; RUN || true", "(RUN); exit $?"),
        *("f() { RUN; return 0; }; f", "trap 'exit 0' EXIT; true; RUN && true", "RUN & wait $!; true"),
    )  # fmt: skip
    wrong, seen = [], set()
    for text in (*SCRIPTS, *more, *(ONLY_BASH if name == "bash" else ())):
        if "until" in text or "EXIT" in text:
            continue  # it repeats until the launcher succeeds; what a trap at the exit does is not followed
        script = text.replace("RUN", RUN)
        done = subprocess.run([shells(name), "-c", script], capture_output=True, check=False, timeout=180)
        found = launch.read([name, "-c", script], {})
        seen.add(done.returncode == 0)
        if bool(found.lost) != (done.returncode == 0):
            wrong.append((text, done.returncode, found.lost or found.unknown))
    assert wrong == []
    assert seen == {True, False}


def wait_for(note: Path, *words: str) -> None:
    deadline = time.monotonic() + 60
    while not (note.exists() and {*words} & {*note.read_text().split()}):
        assert time.monotonic() < deadline, words
        time.sleep(0.01)


@pytest.mark.parametrize(
    "script",
    [
        "exec RUN",
        "true; RUN; true",
        "RUN | cat",
        "trap 'kill -TERM $PID' TERM; RUN & PID=$!; wait $PID",
        "stop() { kill $PID; }\ntrap stop TERM\nRUN &\nPID=$!\nwait",
        "trap 'kill $!' TERM\nRUN\n",
    ],
)
def test_sigterm_reaches_the_launcher_as_predicted(script: str, tmp_path: Path) -> None:
    program, note = tmp_path / "torchrun", tmp_path / "note"
    command = ["bash", "-c", script.replace("RUN", RUN)]
    predicted = launch.read(command, {}).signalled
    seconds = 60 if predicted else 0.7  # that it does not come is seen after some time only
    program.write_text(
        f"#!/bin/bash\ntrap 'echo got >> {note}; exit' TERM\necho up >> {note}\n"
        f"sleep {seconds} & wait\necho end >> {note}\n"
    )
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(command, env={"PATH": path}, start_new_session=True) as process:
        wait_for(note, "up")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=180)
    wait_for(note, "got", "end")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the sleep
    assert ("got" in note.read_text()) == predicted


ENVIRONMENT = {
    "RANK": "1",
    "WORLD_SIZE": "8",
    "HOSTNAME": "job-worker-3",
    "MASTER_ADDR": "job-master-0",
    "E": "",
}


@pytest.mark.parametrize(
    "script",
    [
        'torchrun $RANK \'$RANK\' "--y=${RANK}" a\\ b $E "$E" ${E:-d} ${E-d} ${RANK:+set} ${RANK:-9}',
        "M=' --a  --b'; torchrun a.py x$M$M y",
        "torchrun a.py ${HOSTNAME##*-} ${HOSTNAME%-*} ${HOSTNAME%%-*} ${HOSTNAME#*-} ${#HOSTNAME}",
        'N=$((WORLD_SIZE/2+RANK%3)); export M="$N,$N"; torchrun a.py $N $M $((-7 / 2)) $((2*(3+4)))',
        "f() { torchrun a.py \"$@\" $# $1; }; f 'a b' c",
        "set -- x 'y z'; torchrun a.py \"$@\" $2; true",
        'A=1\nif [ "$RANK" -gt 0 ] && [ -n "$HOSTNAME" ]; then A=2; else A=3; fi\ntorchrun a.py $A',
        "case $HOSTNAME in *-0) R=0;; job-*-3|x) R=3;; *) R=9;; esac; torchrun a.py $R",
        "torchrun a.py --nodes=$RANK \\\n  --more \\\n  a.py  # the end\n",
        "while [ $RANK = 2 ]; do A=7; done; for i in 5; do B=$i; done; torchrun a.py ${A:-none} $B",
        "cat > $T/run.sh <<EOF\necho\ntorchrun a.py \\$1 $RANK \"\\$2\"\nEOF\nbash $T/run.sh a 'b c'",
        "cat > $T/v.sh <<'EOF'\nX=\"$RANK 1\"\nEOF\n. $T/v.sh; torchrun a.py $X; true",
        "eval \"X='a b'\"; eval torchrun a.py '$X'",
        "X=1 Y=2; X=3 true; torchrun a.py $X $Y ${Z=4} $Z",
        'torchrun `echo a b` "$(echo c  d)" $(echo $RANK)',
        "torchrun a.py $(echo $HOSTNAME | awk -F- '{print $NF}') $(echo $HOSTNAME | awk -F '-' '{print $2}')",
        "torchrun a.py $(echo $HOSTNAME | cut -d- -f3) $(echo $HOSTNAME | cut -f 1 -d '-')",
        "torchrun a.py $(echo $HOSTNAME | sed 's/.*-//') $(echo $HOSTNAME | sed -E 's/.*-([0-9]+)$/\\1/')",
        "torchrun a.py $(echo $HOSTNAME | sed 's/[^0-9]*//g') $(echo $HOSTNAME | sed 's/.*\\([0-9]\\)/\\1/')",
        "torchrun a.py $(echo $HOSTNAME | grep -o '[0-9]*$') $(echo $HOSTNAME | grep -oE '[0-9]+$')",
        "torchrun a.py $(echo $HOSTNAME | rev | cut -d- -f1 | rev) $(printf %s $HOSTNAME | tr -dc 0-9)",
        'A=a; A="${A}b"; unset B; (A=c); torchrun a.py $A$B | cat',
    ],
)
@pytest.mark.parametrize("name", ["bash", "dash"])
def test_words_are_those_of_the_real_shell(name: str, script: str, launcher: Path, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "T": str(tmp_path)}
    subprocess.run([shells(name), "-c", script], env={**os.environ, **environment}, check=True, timeout=180)
    real = launcher.read_text().split(" ", 1)[1]
    words = launch.read([name, "-c", script], environment).words[1:]
    assert f"{len(words)} {' '.join(words)}\n" == real


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "A=(--x '1 2'); A+=(--y); torchrun a \"${A[@]}\" ${#A[@]} ${A[0]}",
            ["a", "--x", "1 2", "--y", "3", "--x"],
        ),
        ("X=abc; torchrun ${X^^} ${X:1} ${X:0:2} ${X/b/-} ${X//[a]/}", ["ABC", "bc", "ab", "a-c"]),
        ("[[ $RANK == [0-9] && -z $E ]] && torchrun a", ["a"]),
        ("bash <<E\ntorchrun $RANK\nE\n", ["1"]),
        ("torchrun $'a\\nb'", ["a\nb"]),
    ],
)
def test_words_of_bash(script: str, words: list[str]) -> None:
    assert launch.read(["bash", "-c", script], ENVIRONMENT).words[1 : len(words) + 1] == words


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("torchrun a.py )", "encountered `)`"),
        ("( " * 300 + RUN + " )" * 300, "nested too deeply"),
        ("torchrun " + "${A:-" * 300, "nested too deeply"),
        ("f() { f; f; }; f; torchrun a.py", "calls itself"),
        (
            "f() { " + "true; " * 50 + "}; g() { " + "f; " * 50 + "}; g; g; g; torchrun a.py",
            "more than 5,000 commands",
        ),
        ("A=x; " + "A=$A$A; " * 60 + RUN, "more than 2,097,152 characters"),
        (RUN + " x" * 70_000, "longer than"),
        ('bash -c "$(cat x)"', "is not known"),
    ],
)
def test_what_is_not_followed_is_said(script: str, reason: str) -> None:
    began = time.process_time()
    assert reason in launch.read(["bash", "-c", script], {}).unknown
    assert time.process_time() - began < 5  # bounded: the texts would take hours or all memory


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("torchrun 'a", "line 1: reached EOF without closing quote"),
        ("true\nif true; torchrun a.py; fi", "line 2: `fi` can only be used to end an `if`"),
    ],
)
def test_a_text_that_no_shell_takes_does_not_start(script: str, reason: str) -> None:
    with pytest.raises(BadOptions, match=re.escape(reason)):
        launch.read(["bash", "-c", script], {})
    assert subprocess.run(["bash", "-n", "-c", script], capture_output=True, check=False).returncode


def test_hostile_texts_take_bounded_time() -> None:
    began = time.process_time()
    for piece in (
        "(",
        "$(",
        "${a:-",
        "cat <<a ",
        "cat <<a\n",
        '"$("',
        "case x in ",
        "[[",
        "$((",
        "`",
        '<(`"',
        ";;",
        "a=(",
    ):
        script = piece * (LONGEST // len(piece))
        with contextlib.suppress(Unreadable):
            shell.parse(script)
    assert time.process_time() - began < 20
