"""`yard report`: one page that loads nothing and escapes everything, with the figures of the run directory."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.job.conftest import Yard
from tests.training.checkpoint.ranks import put
from tests.training.test_ledger import LIFE, write
from tools.cli import invoke
from tools.job import charts, report, runs
from tools.job.charts import Curve
from training.checkpoint.store import Store
from training.checkpoint.tier import Directory
from training.checkpoints import listed
from training.run.directory import RunDir, write_json

ATTACK = '</td><script>alert("x")</script><img src=http://evil.example/a onerror=a()>\x1b[31m\u202e'
VOID = {"meta", "br"}


class Page(HTMLParser):
    """The tags of a page; each that opens must close, and none may load or run anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.opened == ["html"] or self.opened == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "iframe", "object", "link", "base", "form", "a"), tag
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href", "srcset")]
        self.tags.append(tag)
        self.opened += [] if tag in VOID or self._is_empty(tag) else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += [data.strip()] if data.strip() else []

    def _is_empty(self, tag: str) -> bool:
        return (self.get_starttag_text() or "").endswith("/>")


def a_run(tmp_path: Path, rate: float = 0.1, text: str = "a sample", steps: int = 20, ranks: int = 2) -> RunDir:
    """A run of some steps with a failure, a checkpoint and a sample."""
    run = write(tmp_path, [("a", LIFE)], {"a": (150, "killed")}, failures=[(145, "killed")])
    config = {"train": {"steps": steps, "learning_rate": rate}, "model": {"name": text}}
    write_json(run.run, {"config": config, "commit": text, "versions": {"torch": text}, "world_size": ranks})
    rows = [
        {"step": step, "loss": 9 - step / steps, "lr": rate, "grad_norm": 1.0, "tokens_per_s": 100.0, "mfu": 0.4,
         "memory_gib": 2.0, "step_s": 1.0, "data_wait_s": 0.1, "time": 1_750_000_040 + step,
         "rank_step_s": [0.5 + rank / ranks / 3 for rank in range(ranks)]}
        for step in range(1, steps + 1)
    ]  # fmt: skip
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"step": 9')
    run.heldout.write_text('{"step": 0, "loss": 9.5}\n{"step": 5, "loss": 4.25}\n')
    write_json(run.report, {"samples": [{"prompt": "import ", "text": text}, "not a sample"]})
    write_json(run.end, {"class": "killed"})
    (run.checkpoints / "step-00000005").mkdir(parents=True)
    (run.checkpoints / "step-00000005/MANIFEST.json").write_text("{}")
    return run


def written(path: Path, yard: Yard, *words: str) -> str:
    assert invoke(["report", *words, "--to", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def test_a_page_has_what_the_run_tells(tmp_path: Path, yard: Yard) -> None:
    text = written(tmp_path / "page.html", yard, str(a_run(tmp_path).path), "--instance", "p5.48xlarge")
    page = Page(text)
    for word in (
        "state", "killed", "20 of 20", "4.25 after step 5", "100", "40.0%", "2.00 GiB", "lost to redo",
        "import a sample", "Held-out loss", "Gradient norm",
        "Wait for the slowest rank: 0 s (light) to 0.167 s (dark)",
    ):  # fmt: skip
        assert word in page.words, word
    assert page.tags.count("polyline") == 9, "seven curves of the steps, the loss and the held-out loss"
    assert page.tags.count("details") == page.tags.count("summary") == 2
    assert re.search(r"<td>sum</td><td>300</td><td></td><td>2\.29</td>", text), "2 ranks of one host, 150 s"
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert all('tabindex="0"' in one for one in re.findall(r'<div class="wide"[^>]*role[^>]*>', text))


def test_runs_are_laid_over_each_other_with_what_differs(tmp_path: Path, yard: Yard) -> None:
    laid = [str(a_run(tmp_path / name, rate).path) for name, rate in (("one", 0.1), ("two", 0.2))]
    text = written(tmp_path / "page.html", yard, *laid)
    differences = text[text.index('aria-label="Differences"') :]
    differences = differences[: differences.index("</table>")]
    assert "<tr><td>train.learning_rate</td><td>0.1</td><td>0.2</td></tr>" in differences
    assert "train.steps" not in differences
    loss = re.search(r"<figcaption>Loss</figcaption>.*?</figure>", text)
    assert loss is not None
    assert [re.findall(r"<polyline", group) for group in loss[0].split("<g ")[1:]] == [["<polyline"]] * 2


def test_nothing_of_a_hostile_run_is_markup(tmp_path: Path, yard: Yard) -> None:
    run = a_run(tmp_path, text=ATTACK)
    run = RunDir(run.path.rename(tmp_path / "<b onload=a()>"))
    write_json(run.end, {"class": ATTACK})
    text = written(tmp_path / "page.html", yard, str(run.path))
    Page(text)
    assert "&lt;script&gt;" in text
    assert not {"\x1b", "\u202e"} & set(text)
    for part, value in ((run.run, {"config": [1], "versions": "x"}), (run.report, {"samples": "x"}), (run.end, {})):
        write_json(part, value)
    Page(written(tmp_path / "page.html", yard, str(run.path)))


def test_a_run_without_phases_or_steps_has_a_page_that_says_so(tmp_path: Path, yard: Yard) -> None:
    (tmp_path / "run/heartbeat").mkdir(parents=True)
    text = written(tmp_path / "page.html", yard, str(tmp_path / "run"))
    assert "CANNOT TELL: run has no phases of any rank" in text
    assert "No times of ranks were logged." in text


def test_what_is_damaged_is_not_told_as_absent(tmp_path: Path, yard: Yard) -> None:
    run = a_run(tmp_path)
    store = Store(run.checkpoints)
    for step in (10, 20):
        put(store, step, sharded=False)
    good, bad = (one for one in listed(Directory(run.checkpoints))["checkpoints"] if one["step"] > 5)
    (run.checkpoints / "step-00000020/rank-00000.safetensors").unlink()
    (run.failures / "1750000146000-rank-00001.json").write_text("")
    run.run.write_bytes(b"\xff" * 100)
    text = written(tmp_path / "page.html", yard, str(run.path))
    assert f"<td>{good['nbytes']:,}</td><td></td></tr>" in text, "the figure of yard checkpoint list"
    assert f"<td>{bad['nbytes']:,}</td><td>step-00000020/rank-00000.safetensors: No such file or directory</td>" in text
    assert "CANNOT TELL: 1 record cannot be read." in text
    assert "CANNOT TELL: run.json" in text


def test_a_name_is_a_directory_here_a_run_of_this_checkout_or_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("tiny/run.json", "several/one/run.json", "empty/notes.txt"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("{}")
    assert runs.local("tiny") == [Path("tiny")]
    assert runs.local("several") == [Path("several/one")]
    assert runs.local("empty") is None, "a directory without a run hides no job of its name"
    assert (runs.local("./empty"), runs.local("./several/")) == ([], [Path("several/one")])
    for name in ("tiny", "several", "empty", "other"):
        assert runs.local(name, by_name=False) is None, "a namespace says that a name is a job"
    assert runs.local("./tiny", by_name=False) == [Path("tiny")]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["missing/run"], 2, "missing/run"),
        (["./none"], 2, "./none: no such directory"),
        ([], 2, "RUN"),
        (["run", "--to", "/proc/none/page.html"], 2, "--to /proc/none/page.html"),
        (["run", "--instance", "p9"], 2, "unknown instance type p9"),
        (["."] , 2, "7 runs: a page shows 6 at most"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    words: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write(tmp_path, [("a", LIFE)])
    for name in "bcdefg":
        (tmp_path / name / "heartbeat").mkdir(parents=True)
    assert invoke(["report", *words]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_page_of_large_runs_is_small(tmp_path: Path, yard: Yard) -> None:
    """Six runs of 1,024 ranks: the heat maps have cells for groups of ranks and of steps."""
    run = a_run(tmp_path, steps=300, ranks=1024)
    paths = [str(run.path)]
    for number in range(5):
        (tmp_path / f"r{number}").symlink_to(run.path)
        paths.append(str(tmp_path / f"r{number}"))
    assert len(written(tmp_path / "page.html", yard, *paths)) < report.LARGEST


def test_a_falling_curve_falls_and_one_point_is_a_dot() -> None:
    text = charts.curves(
        "Loss", [Curve("a<b", [(step, 9.0 - step) for step in range(5)], [2.0]), Curve("b", [(1, 5.0)])]
    )
    (points,) = re.findall(r'points="([^"]*)"', text)
    heights = [float(point.partition(",")[2]) for point in points.split()]
    assert heights == sorted(heights)
    assert (text.count("<circle"), text.count('class="restart"'), "a&lt;b: 5 at the end" in text) == (1, 1, True)
    assert charts.curves("Loss", [Curve("a", [])]) == ""


def test_the_larger_the_darker_in_a_heat_map() -> None:
    text = charts.heat("Time", [[1.0, 1.0], [1.0, 9.0]], 1, 2)
    (pale, dark) = re.findall(r'fill-opacity="([\d.]+)" d="([^"]*)"', text)
    assert (float(pale[0]), pale[1].count("M"), float(dark[0]), dark[1]) == (0.12, 3, 1.0, "M5 5h5v5h-5z")
    assert charts.waits([[1.0, 3.0], [2.0, 1.0]]) == [[1.0, 0.0], [0.0, 2.0]]
