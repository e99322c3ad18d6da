"""The planted defects are found and healthy scripts are not blamed: a sample of what `make prove-bench` measures."""

from __future__ import annotations

import ast

import pytest

from tests.prove import planted
from tools.prove.observed import TABLE

SCRIPTS = planted.load()
DEFECTS = {f"{one.script}/{one.name}": one for script in SCRIPTS.values() for one in script.defects}
ALONE = {"world", "rescale"}  # claims that say little about one process


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_patch_fits_once_and_gives_a_script(name: str) -> None:
    """Except for a defect of the command alone, the script is another one."""
    healthy = SCRIPTS[name]
    for defect in healthy.defects:
        ast.parse(defect.text())
        assert defect.text() != healthy.text() or defect.command != healthy.command


def test_each_claim_has_defects_in_each_script() -> None:
    known = {f"{claim}/{name}" for claim, row in TABLE["claims"].items() for name in row["findings"]}
    assert {one.finding for one in DEFECTS.values()} <= known
    assert {name for script in SCRIPTS.values() for name in script.expected} <= known
    for script in SCRIPTS.values():
        claims = {one.claim for one in script.defects}
        missing = set(TABLE["claims"]) - claims - {name.partition("/")[0] for name in script.expected}
        assert missing <= (ALONE if script.name == "no_framework" else set()), script.name


def test_a_patch_that_does_not_fit_is_refused() -> None:
    defect = DEFECTS["ddp/no-sampler"]
    defect = planted.Defect(**{**vars(defect), "patches": [planted.Patch("no such text", "")]})
    with pytest.raises(ValueError, match="found 0 times"):
        defect.text()
