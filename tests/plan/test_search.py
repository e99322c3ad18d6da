"""`yard plan search`: the front, its cells, what it refuses."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.plan.runs import ROOT, run
from tools import cli
from tools.cells import matrix
from tools.cells.memory import plan_of, room_of, room_on
from tools.facts.instances import INSTANCES
from tools.plan import search
from tools.plan.outlook import Plan, on_instance


def test_the_front_is_what_brute_force_finds() -> None:
    """Every combination is planned here once more: the front is those that no other beats in time or cost."""
    machines = [(INSTANCES[name], room_on(INSTANCES[name])) for name in ("p5.48xlarge", "p4d.24xlarge")]
    base, sizes, ways = run(), (1, 2, 8), ("all", "node", "none")
    tried = product(machines, search.NODES, search.MICRO, search.RECOMPUTE, sizes, ways)
    pairs = set()
    for (instance, room), nodes, micro, recompute, tensor, which in tried:
        shard = {"all": 8 * nodes // tensor, "node": 8 // tensor, "none": 1}[which]
        if tensor > 1 and shard == 1:
            continue  # the trainer has no such layout
        with contextlib.suppress(ValueError):  # the ranks cannot share the batch
            changes = {"micro": micro, "recompute": recompute, "tensor": tensor, "shard": shard}
            other = on_instance(base, instance, nodes, room, **changes)
            every = round((Plan(other).best_interval_s or 3600) / (Plan(other).step_s or 1))
            plan = Plan(replace(other, save_every=min(max(1, every), other.steps)))
            if plan.memory.fits and plan.hours and plan.cheapest:
                pairs.add((plan.hours[0], plan.cheapest))
    best = {one for one in pairs if not any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in pairs)}
    plans = search.front(base, machines, sizes)
    assert [(plan.hours[0], plan.cheapest) for plan in plans if plan.hours] == sorted(best)
    assert {plan.run.layout.tensor for plan in plans} == {1, 2, 8}


@pytest.mark.parametrize(
    ("cell", "sizes"),
    [("p5/llama-3-1-8b", [1, 2, 4, 8]), ("p5/llama-3-2-1b", [1]), ("p5/llama-3-1-8b-lora", [1])],
)
def test_only_what_the_trainer_divides_is_tried(cell: str, sizes: list[int]) -> None:
    """A head that is the table of tokens, and adapters, are not divided."""
    found = next(one for one in matrix.read(ROOT).cells if one.name == cell)
    assert search.tensors(matrix.configuration(ROOT, found)) == sizes


@pytest.mark.parametrize(("model", "most"), [("mixtral-8x7b", 1), ("llama-3-1-8b", 8)])
def test_a_found_plan_is_a_cell_of_the_same_plan(
    model: str, most: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines for overlays/matrix.yaml are read, written as a cell, rendered and judged."""
    assert cli.invoke(["plan", "search", model, "--gpus", "p5,p5e", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert max(one["parallel"]["tensor"] for one in found) == most
    shutil.copytree(ROOT / "overlays", tmp_path / "overlays")
    shutil.copytree(ROOT / "base", tmp_path / "base")
    path = tmp_path / "overlays/matrix.yaml"
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    for one in found:
        ((hardware, models),) = yaml.safe_load(one["cell"]).items()
        table["cells"].setdefault(hardware, {}).update(models)
        path.write_text(yaml.safe_dump(table, sort_keys=False), encoding="utf-8")
        cell = next(cell for cell in matrix.read(tmp_path).cells if cell.name == f"{hardware}/{model}")
        room, plan = room_of(tmp_path, cell), plan_of(tmp_path, cell)
        assert plan.step_s == pytest.approx(one["step_s"])
        assert plan.memory.needed == one["memory"]["needed"] <= room.nbytes
    matrix.sync(tmp_path)
    assert cli.invoke(["preflight", str(tmp_path / "overlays" / hardware / model)]) == 0
    assert "will it train: PASS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["search", "llama-tiny", "--gpus", "p5"], 0, " s ("),
        (["search", "llama-3-1-8b", "--gpus", "p5,,g5"], 2, "--gpus '': not a family"),
        (["search", "llama-3-1-8b", "--gpus", "p5", "--budget", "1"], 1, "the fastest and the cheapest are"),
        (["search", "llama-3-1-8b", "--gpus", "p9"], 2, "known: a100, a10g, g5"),
        (
            ["search", "llama-3-1-8b", "--gpus", "p6-b200"],
            2,
            "B200 is a card that tools/facts/cards.yaml does not have",
        ),
        (["search", "llama-3-1-8b", "--gpus", "l40s, H200", "--deadline", "1d12h"], 0, "p5e.48xlarge"),
        *(
            (["search", "llama-3-1-8b", "--deadline", text], 2, "--deadline 7d")
            for text in ("soon", "0d", "7 d", "-1h", "")
        ),
        *((["search", "llama-3-1-8b", "--budget", text], 2, "--budget") for text in ("0", "-5", "nan", "inf")),
        (["search", "p5/llama-3-1-8b"], 2, "its model: llama-3-1-8b"),
        (["search", "overlays/model/llama-3-1-8b/", "--gpus", "p5"], 0, "p5.48xlarge"),
        (["search", "llama-3-1-9b"], 2, "did you mean llama-3-1-8b?"),
    ],
)
def test_what_search_answers(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["plan", *words]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


def test_a_machine_without_a_price_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not "nothing fits": the search compares prices."""
    lab = replace(INSTANCES["p5.48xlarge"], name="lab", price_usd_per_hour=None)
    monkeypatch.setattr("tools.cli.plan.search._machines", lambda gpus, found: [lab])
    assert cli.invoke(["plan", "search", "llama-3-1-8b", "--gpus", "lab"]) == 2
    assert "no price is known of lab" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "code", "said"),
    [
        (6, 1, "train.global_batch_size is 64, which nodes of 6 ranks cannot share; nearest value: 66"),
        (5, 1, "train.global_batch_size is 64, which nodes of 5 ranks cannot share; nearest value: 65"),
        (4, 0, "the first as a cell"),
    ],
)
def test_an_odd_number_of_gpus_is_not_called_too_small(
    gpus: int, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks that compute a product together are of one node: 5 GPUs are not two pairs."""
    lab = replace(INSTANCES["p5.48xlarge"], name="lab", accelerators=gpus)
    monkeypatch.setattr("tools.cli.plan.search._machines", lambda *_: [lab])
    assert cli.invoke(["plan", "search", "llama-3-1-8b", "--gpus", "lab"]) == code
    assert said in capsys.readouterr().out


def test_a_published_config_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8, **sizes}
    config |= {"vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert cli.invoke(["plan", "search", str(tmp_path), "--gpus", "p5"]) == 0
    assert "first: yard new model NAME --from" in capsys.readouterr().out
    assert cli.invoke(["plan", "search", str(tmp_path / "nothing")]) == 2
