"""The documentation: links, orphans, generated text, and that every printed command is run by a test."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from ruamel.yaml import YAML

from docs import generate, links, website
from docs.generated import cells as generated_cells
from docs.generated import commands
from tests.house import printed
from tests.house.test_makefile import make, recipes
from tools import cli
from tools.cells import matrix
from tools.cli import invoke
from tools.core import repo
from tools.preflight.rule import rule as rules

ROOT = repo.root()
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(r"(?!.*\b[A-Z]\b)(?:base|clusters|docs|images|overlays|tests|tools|training)/[\w./-]*\w/?")


def test_generated_text_is_current() -> None:
    """The fix is `python docs/generate.py`."""
    wanted = generate.outputs(ROOT)
    assert [name for name, text in wanted.items() if (ROOT / name).read_text(encoding="utf-8") != text] == []


def test_links_lead_somewhere_and_no_page_is_an_orphan() -> None:
    assert links.problems(ROOT) == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages with the files that they link to."""
    for page in links.pages(ROOT):
        for link in ["", *links.links((ROOT / page).read_text(encoding="utf-8"))]:
            name = page if not link or links.is_external(link) else links.target(page, link)[0]
            if (ROOT / name).is_file():
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, tmp_path / name)
    for name in (links.SITE_CONFIG, f"{links.DOCS}/{website.STYLE}"):
        shutil.copy(ROOT / name, tmp_path / name)
    assert links.problems(tmp_path) == []
    return tmp_path


def test_planted_faults_are_found_and_nothing_else(copy: Path) -> None:
    planted = [
        ("docs/data.md", "[x](nowhere.md)"),
        ("docs/data.md", "[x](../../outside.md)"),
        ("docs/data.md", "[x](weights.md#nothing)"),
        ("docs/data.md", "`[x](not-a-link.md)`"),
        ("docs/data.md", "```text\n[x](not-a-link.md)\n```"),
        ("base/storage/README.md", "![x](x.png)"),
        ("docs/orphan.md", "# Orphan"),
        ("overlays/new/README.md", "# Orphan"),
    ]
    for page, added in planted:
        path = copy / page
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{added}\n")
    assert set(links.problems(copy)) == {
        "docs/data.md: nowhere.md leads to no file",
        "docs/data.md: ../../outside.md leads to no file",
        "docs/data.md: weights.md#nothing leads to no heading",
        "base/storage/README.md: x.png leads to no file",
        "docs/orphan.md: no link leads here from docs/index.md",
        "docs/index.md: has no link to docs/orphan.md",
        "zensical.toml: docs/orphan.md is not in nav",
        "overlays/new/README.md: no link leads here from docs/index.md",
    }


def test_links_of_the_site_stay_in_it(tmp_path: Path) -> None:
    """A page of another directory and a source file are pages of the site too."""
    website.write_site_pages(ROOT, tmp_path)
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert {"index.md", "base/plugins/index.md", "project/readme.md"} <= pages
    for page in pages:
        text = (tmp_path / page).read_text(encoding="utf-8")
        for link in filter(lambda link: not links.is_external(link), links.links(text)):
            assert links.target(page, link)[0] in pages, f"{page}: {link}"


def test_the_site_builds_without_a_warning(copy: Path) -> None:
    assert website.build_site(copy) == 0
    page = (copy / "build/site/architecture/index.html").read_text(encoding="utf-8")
    assert '<pre class="mermaid">' in page


def test_every_block_has_a_kind() -> None:
    kinds = {kind for page in links.pages(ROOT) for kind, _ in printed.fences(ROOT / page)}
    assert kinds <= printed.KINDS


def test_every_printed_command_has_one_test() -> None:
    """A new command goes into a table of tests/house/printed.yaml, beside the test that runs it."""
    listed = [
        *(line for lines in printed.AS_PRINTED.values() for line in lines),
        *(line for lines in printed.IN_OTHER_WORDS.values() for line in lines),
        *printed.NOT_RUN,
    ]
    assert [line for line, number in Counter(listed).items() if number > 1] == []
    there = {command.line: command.page for command in printed.printed()}
    assert {line: page for line, page in there.items() if line not in listed} == {}, "no test runs these"
    assert [line for line in listed if line not in there] == [], "no page prints these"


def test_the_tests_in_the_tables_run_what_they_say() -> None:
    for name in printed.AS_PRINTED:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "printed.run_by(" in text or "docs/extending.md" in text, name
    for name, lines in printed.IN_OTHER_WORDS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for line in lines:
            command = re.search(r"yard (?:job |image |cluster )?([a-z-]+)", line)
            assert command is None or command[1].replace("-", "_") in text.replace("-", "_"), f"{name}: {line}"


def _parse(words: list[str]) -> None:
    """Let click read a command line; raise what it would answer, without running anything."""
    command: click.Command = cli.yard
    context = click.Context(cli.yard, info_name="yard")
    while isinstance(command, click.Group):
        assert words, "a command is missing"
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"no command {name}"
        command, context = found, click.Context(found, info_name=name, parent=context)
    command.make_context(context.info_name, words, parent=context.parent)


def _words(line: str) -> list[str]:
    """Return the words behind `yard`, up to a pipe or redirection."""
    line = re.sub(r"<[^<>]*>", "X", line)  # a placeholder
    words = shlex.split(re.split(r" [|>] |; |&& ", line)[0])
    return words[next(index for index, word in enumerate(words) if word.endswith("yard")) + 1 :]


def test_every_yard_command_of_a_page_parses() -> None:
    """Blocks of commands: each command exists, with these options and arguments."""
    wrong = {}
    for page in links.pages(ROOT):
        for kind, text in printed.fences(ROOT / page):
            for line in printed.lines(text) if kind == "sh" else ():
                if re.match(r"(?:\.venv/bin/)?yard ", line):
                    try:
                        _parse(_words(line))
                    except (click.ClickException, AssertionError) as problem:
                        wrong[f"{page}: {line}"] = getattr(problem, "message", str(problem))
    assert wrong == {}


def _unknown(line: str) -> list[str]:
    """Return the command or the options that a mention such as `yard job stop X --delete` gets wrong."""
    command: click.Command = cli.yard
    words = re.split(r" \||\| | -- ", line)[0].split()[1:]
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z0-9-]+", words[0]):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return [words[0]]
        command = found
        del words[0]
    options = {name for parameter in command.params for name in parameter.opts} | {"--", "--help"}
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [] if isinstance(command, click.Group) else [name for name in names if name not in options]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("yard job submit CELL --resume", []),
        ("yard job submit CELL --nmae x", ["--nmae"]),
        ("yard jbo why", ["jbo"]),
        ("yard platform X | kubectl apply --server-side", []),
    ],
)
def test_control_an_unknown_command_or_option_is_found(line: str, wrong: list[str]) -> None:
    assert _unknown(line) == wrong


def test_every_command_and_option_named_in_a_sentence_exists() -> None:
    wrong = []
    targets = recipes()
    for page in links.pages(ROOT):
        for code in CODE.findall(links.FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))):
            if re.match(r"(?:\.venv/bin/)?yard [a-z]", code) and _unknown(code):
                wrong.append(f"{page}: {code}")
            target = re.match(r"make ([a-z0-9-]+)", code)
            if target and target[1] not in targets and not target[1].startswith("job-"):
                wrong.append(f"{page}: {code}")
    assert wrong == []


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines; what an f-string fills in is X."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values = [str(value.value) if isinstance(value, ast.Constant) else "X" for value in node.values]
            yield node.lineno, "".join(values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def test_messages_name_commands_options_and_pages_that_exist() -> None:
    """Every text in tools/ and training/: errors, hints, remedies, help texts and docstrings."""
    wrong = []
    for path in (file for top in ("tools", "training") for file in (ROOT / top).rglob("*.py")):
        for number, text in _strings(path):
            where = f"{path.relative_to(ROOT)}:{number}"
            for mark, line in re.findall(r"(^|  |`|/)(yard [a-z][^`'\";:,()\n]*)", text, re.MULTILINE):
                wrong += [f"{where}: {mark}{line}: {name}" for name in _unknown(line)]
            for page, anchor in re.findall(r"\b((?:docs|base|overlays|clusters)/[\w/-]+\.md)(?:#([\w-]+))?", text):
                there = (ROOT / page).read_text(encoding="utf-8") if (ROOT / page).is_file() else None
                if there is None or (anchor and anchor not in links.anchors(there)):
                    wrong.append(f"{where}: {page}#{anchor}")
    assert wrong == []


def test_every_path_named_in_a_sentence_exists() -> None:
    """Examples that a page tells to write are left out: blocks with that path make them."""
    wrong = []
    for page in links.pages(ROOT):
        text = (ROOT / page).read_text(encoding="utf-8")
        made = set(re.findall(r"^`([^`\n]+)`\n```", text, re.MULTILINE))
        for code in CODE.findall(links.FENCE.sub("", text)):
            there = PATH.fullmatch(code)
            if there and code not in made and not (ROOT / code).exists() and page != links.CHANGELOG:
                wrong.append(f"{page}: {code}")
    assert wrong == []


def test_make_starts_commands_that_parse() -> None:
    for line in printed.run_by("tests/house/test_docs.py"):
        if line.startswith("make "):
            shown = make("-n", *shlex.split(line)[1:])
            assert shown.code == 0, shown.stderr
            started = shown.stdout.splitlines()[-1]
            _parse(_words(started))


def test_the_example_of_a_job_of_your_own_renders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/tutorials/hyperpod.md: the file is written, and `yard render mine` prints the job."""
    page = (ROOT / "docs/tutorials/hyperpod.md").read_text(encoding="utf-8")
    found = re.search(r"^`mine/kustomization.yaml`\n```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    for name in ("base", "overlays"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kustomization.yaml").write_text(found[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert invoke(["render", str(tmp_path / "mine")]) == 0
    assert 'enable-job-auto-resume: "true"' in capsys.readouterr().out


def test_the_manifest_of_a_page_passes_preflight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/tutorials/any-cluster.md: the pod that copies files."""
    page = (ROOT / "docs/tutorials/any-cluster.md").read_text(encoding="utf-8")
    found = re.search(r"^`upload.yaml`\n```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    path = tmp_path / "upload.yaml"
    path.write_text(found[1], encoding="utf-8")
    assert invoke(["preflight", "-f", str(path)]) in (0, 3), capsys.readouterr()
    assert "FAIL" not in capsys.readouterr().out


def test_charts_are_installed_in_the_version_of_the_plugin() -> None:
    installed = re.findall(r"helm install ([\w-]+) .*--version (\S+)", "\n".join(c.line for c in printed.printed()))
    folders = {"aws-mountpoint-s3-csi-driver": "s3-csi"}
    assert len(installed) == 4
    for chart, version in installed:
        release = ROOT / "base/plugins" / folders.get(chart, chart) / "release.yaml"
        assert re.search(rf"\b{re.escape(version)}\b", release.read_text(encoding="utf-8")), chart


def test_tutorials_name_the_prices_of_the_fact_table() -> None:
    cells = {cell.name: cell for cell in matrix.load(ROOT)}
    for page, names in {
        "fine-tune": ("p5/llama-3-1-8b-lora", "g5/llama-3-1-8b-lora"),
        "hyperpod": ("p5/llama-3-1-8b",),
        "trainium": ("trn1/bert-large",),
    }.items():
        text = " ".join((ROOT / f"docs/tutorials/{page}.md").read_text(encoding="utf-8").split())
        for name in names:
            assert generated_cells.price(cells[name]) in text, name


def test_the_readme_counts_the_rules() -> None:
    counted = re.search(r"# (\d+) rules", (ROOT / links.README).read_text(encoding="utf-8"))
    assert counted is not None
    assert int(counted[1]) == len(rules.all)


def test_the_references_are_whole() -> None:
    page = (ROOT / generate.COMMANDS).read_text(encoding="utf-8")
    for entry in commands.entries():
        assert re.search(rf"^##+ {entry.path}$", page, re.MULTILINE), entry.path
    keys = (ROOT / generate.CONFIGURATION).read_text(encoding="utf-8")
    assert len(re.findall(r"^\| `[a-z0-9_.]+` \|", keys, re.MULTILINE)) > 60
    assert not re.search(r"^\| `[a-z0-9_.]+` \|.*\|\s*\|$", keys, re.MULTILINE), "a key without a sentence"


def test_completion_works_as_the_reference_says() -> None:
    environment = {"PATH": os.environ["PATH"], "_YARD_COMPLETE": "bash_source"}
    command = [sys.executable, "-c", "from tools.cli import main; main()"]
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    assert "complete -o nosort -F _yard_completion yard" in shown.stdout, shown.stderr


def test_forms_are_whole() -> None:
    """GitHub ignores a form with a mistake; the bug report asks for the snapshot of `why`."""
    yaml = YAML(typ="safe")
    forms = {path.stem: yaml.load(path) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert set(forms) == {"bug", "feature", "config"}
    for name in ("bug", "feature"):
        assert set(forms[name]) == {"name", "description", "labels", "body"}
        identities = [part["id"] for part in forms[name]["body"]]
        assert len(set(identities)) == len(identities)
    assert "yard job why --save" in str(forms["bug"])
    devcontainer = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    assert devcontainer["postCreateCommand"] == "make setup"
