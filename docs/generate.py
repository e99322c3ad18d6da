"""Write the generated parts of the documentation, check its links, build the site.

python docs/generate.py           write the reference pages and the generated blocks
python docs/generate.py --check   exit 1 if one is out of date, a link is broken or no page links to a page
python docs/generate.py --site    check, then build the site in build/site
python docs/generate.py --serve   build it after each change and serve it on localhost:8000
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import website  # noqa: E402
from docs.generated import cells, commands, configuration, measured, repairs, rules  # noqa: E402
from docs.links import DOCS, FENCE, README, pages, problems  # noqa: E402
from tests.job import pages as job_outputs  # noqa: E402

COMMANDS, CONFIGURATION = f"{DOCS}/reference/commands.md", f"{DOCS}/reference/configuration.md"
CELLS, REPAIRS = f"{DOCS}/reference/cells.md", f"{DOCS}/reference/repairs.md"
PREFLIGHT, IMAGES, PERFORMANCE = f"{DOCS}/preflight.md", f"{DOCS}/images.md", f"{DOCS}/performance.md"
RECOVERY = f"{DOCS}/recovery.md"


def outputs(root: Path) -> dict[str, str]:
    """Return every file that holds generated text, path to the text it should have."""
    rendered = job_outputs.rendered()
    texts = {page: (root / page).read_text(encoding="utf-8") for page in (README, IMAGES, RECOVERY)}
    texts[README] = with_block(texts[README], "cells", cells.table(root))
    texts[README] = with_block(texts[README], "picture", picture(root))
    texts[IMAGES] = with_block(texts[IMAGES], "image-rules", rules.image_rules())
    texts[IMAGES] = with_block(texts[IMAGES], "torch-releases", rules.torch_table())
    texts[RECOVERY] = with_block(texts[RECOVERY], "faults", measured.faults_table())
    for page in pages(root):
        text = texts.get(page) or (root / page).read_text(encoding="utf-8")
        if "<!-- situation: " in text:
            texts[page] = job_outputs.written(text, rendered)
    references = {COMMANDS: commands.page(), CONFIGURATION: configuration.page(), PREFLIGHT: rules.preflight_page()}
    return (
        texts
        | references
        | {CELLS: cells.page(root), REPAIRS: repairs.page(), PERFORMANCE: measured.performance_page()}
    )


def with_block(text: str, name: str, content: str) -> str:
    """Replace what stands between the markers of the generated block `name`."""
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise SystemExit(f"one block with the markers of {name} is needed")
    return pattern.sub(lambda found: f"{found[1]}{content}{found[2]}", text)


def picture(root: Path) -> str:
    """Return the picture of where a cell runs, which is drawn in docs/architecture.md."""
    text = (root / DOCS / "architecture.md").read_text(encoding="utf-8")
    return next(fence[0] for fence in FENCE.finditer(text) if fence[0].startswith("```mermaid")) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_mutually_exclusive_group()
    for name in ("check", "site", "serve"):
        modes.add_argument(f"--{name}", action="store_true")
    mode = parser.parse_args(arguments)
    if mode.serve:
        website.serve_site(ROOT)
        return 0
    wanted = outputs(ROOT)
    changed = [
        name
        for name, text in wanted.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    ]
    if mode.check or mode.site:
        found = [f"{name}: out of date; run: python docs/generate.py" for name in changed] + problems(ROOT)
        print("\n".join(found) or "the documentation is up to date", file=sys.stderr if found else sys.stdout)
        return 1 if found else website.build_site(ROOT) if mode.site else 0
    for name in changed:
        website.write(ROOT / name, wanted[name])
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
