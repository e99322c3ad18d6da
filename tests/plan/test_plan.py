"""The planner: its error on published runs, its arithmetic, its commands."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.plan import error
from tools import cli
from tools.cells import hardware, matrix
from tools.cells.memory import plan_of, room_of, room_on
from tools.cli.plan import _shown
from tools.core import repo
from tools.facts.instances import INSTANCES
from tools.plan import calibrate, search, speed
from tools.plan.layout import CARDS, FITTED, Layout, Machine, Shape, card_of
from tools.plan.outlook import KEYS, Plan, Run, on_instance
from training.device.peaks import card_peak

ROOT = repo.root()
ROWS = error.read()
LLAMA = Shape(4096, 14336, 32, 32, 8, 128256)
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
"""
H100 = Machine(CARDS["H100"], 400e9, "EFA")


def run(name: str = "p5/llama-3-1-8b", **changes: object) -> Run:
    """Return the run of a cell, with changes of its layout."""
    cell = next(one for one in matrix.read(ROOT).cells if one.name == name)
    assert cell.instance is not None
    found = Run.of(name, matrix.configuration(ROOT, cell), cell.nodes, room_on(cell.instance), cell.instance)
    return replace(found, layout=replace(found.layout, **changes))  # type: ignore[arg-type]


def test_published_runs_are_explained_by_the_stored_constants() -> None:
    errors = [abs(row.error(FITTED)) for row in ROWS]
    assert statistics.median(errors) <= 0.05
    assert sum(one <= 0.2 for one in errors) >= 0.95 * len(errors)


@pytest.mark.long
def test_a_source_that_was_left_out_is_predicted_by_the_others() -> None:
    found = [size for source in dict.fromkeys(row.source for row in ROWS) for _, size in error.left_out(ROWS, source)]
    sizes = sorted(abs(one) for one in found if one is not None)
    assert len(sizes) >= 0.98 * len(found)
    assert statistics.median(sizes) <= 0.1
    assert sum(one <= 0.2 for one in sizes) >= 0.9 * len(sizes)


@pytest.mark.long
def test_the_stored_constants_are_fitted_to_the_rows() -> None:
    assert {name: FITTED[name] for name in error.PRIOR} == pytest.approx(error.fit(ROWS), rel=0.01)


def test_a_kind_without_another_source_is_not_predicted() -> None:
    (pair,) = [one for one in error.left_out(ROWS, "torchao", rounds=1) if one[0].facts["precision"] == "fp8-rowwise"]
    assert pair[1] is None


@pytest.mark.parametrize("name", sorted(CARDS))
def test_peaks_are_those_of_the_trainer(name: str) -> None:
    assert card_peak(name.partition("-")[0])[0] == pytest.approx(CARDS[name].peak, rel=1e-3)


def test_parameters_are_counted_as_the_trainer_counts_them() -> None:
    counted = run().shape
    assert replace(counted, counted=None).parameters == counted.parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("change", "slower"),
    [
        ({"recompute": "full"}, True), ({"kernels": "eager"}, True), ({"precision": "fp8"}, False),
        ({"length": 16384, "micro": 1}, True), ({"attention": "flash3"}, False), ({"tensor": 2, "shard": 4}, True),
    ],
)  # fmt: skip
def test_what_makes_a_step_slower(change: dict[str, object], slower: bool) -> None:
    """The same tokens of a step, in another layout."""
    layout = Layout(8192, 2, gpus=8, shard=8)
    other = replace(layout, **change)  # type: ignore[arg-type]
    before, after = (speed.seconds(LLAMA, one, H100, FITTED) / one.step_tokens for one in (layout, other))
    assert (after > before) == slower


def test_a_slow_network_is_exposed() -> None:
    layout = Layout(8192, 1, gpus=64, shard=64)
    slow = Machine(CARDS["H100"], 12.5e9, "TCP")
    fast, tcp = ({one.name: one.seconds for one in speed.terms(LLAMA, layout, it, FITTED)} for it in (H100, slow))
    name = "exchange of weights and gradients"
    assert tcp[name] > 10 * fast[name]
    assert tcp["MLP products"] == fast["MLP products"]


@pytest.mark.parametrize("change", [{}, {"shard": 8}, {"shard": 16, "tensor": 4}, {"gpus": 8, "shard": 8}])
def test_the_network_that_is_needed_hides_the_exchange(change: dict[str, int]) -> None:
    """With less the exchange is exposed, with more it only shares the card."""
    layout = replace(Layout(8192, 1, gpus=64, shard=64), **change)  # type: ignore[arg-type]
    needed = speed.network_needed(LLAMA, layout, H100, FITTED)
    if layout.gpus == 8:
        assert needed == 0
        return

    def exchange(network: float) -> float:
        terms = speed.terms(LLAMA, layout, Machine(CARDS["H100"], network, "EFA"), FITTED)
        return next(one.seconds for one in terms if one.name == "exchange of weights and gradients")

    assert exchange(0.7 * needed) > 1.5 * exchange(needed)
    assert exchange(1.4 * needed) > exchange(needed) / 1.6


def flop(how: str) -> float:
    """Multiply the numbers of an explanation: `2 x 16,384 tokens x [4096x6144, 4096x4096] x (1 + 2 + 0 again)`."""
    text = re.sub(r"[a-z]{2,}", "", re.split("[:;]", how)[0])
    factors = [factor.strip("[]() ").split(" + ") for factor in re.sub(r",(?=\d{3} )", "", text).split(" x ")]
    sums = [[part for term in terms for part in term.split(", ")] for terms in factors]
    return math.prod(sum(math.prod(map(float, term.split("x"))) for term in terms) for terms in sums)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("adapters", [{}, {"rank": 512, "targets": 81920, "trained": 41_943_040}])
def test_an_explanation_multiplies_to_its_seconds(recompute: str, adapters: dict[str, int]) -> None:
    """What a term multiplies takes as long as it says at the fitted rate; its reads make a product slower."""
    layout = replace(Layout(8192, 2, gpus=8, shard=8, recompute=recompute), **adapters)  # type: ignore[arg-type]
    found = [one for one in speed.terms(LLAMA, layout, H100, FITTED) if "matmul H100" in one.constants]
    rates = {one.name: flop(one.how) / one.seconds / H100.card.peak / FITTED["matmul H100"] for one in found}
    assert len(rates) == (4 if adapters else 3)
    assert all(0.7 < rate < 1 for rate in rates.values()), rates
    (attention,) = (one for one in speed.terms(LLAMA, layout, H100, FITTED) if one.name == "attention")
    rate = H100.card.peak * FITTED["flash2 H100"] / (1 + FITTED["short rows"] / 8192)
    assert flop(attention.how) / rate == pytest.approx(attention.seconds)


def test_each_term_is_documented() -> None:
    """`--explain` prints no term that the tables of the documentation do not have."""
    planning, extending = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("planning.md", "extending.md")
    )
    first = [
        line.split("|")[1].strip().split(", ") for line in (planning + extending).splitlines() if line.startswith("| ")
    ]
    documented = {name for names in first for name in names}
    cells = [cell for cell in matrix.read(ROOT).cells if not cell.script]
    plans = [plan_of(ROOT, cell) for cell in cells]
    names = {term.name for plan in plans for term in (*plan.memory.terms, *plan.memory.left_out)}
    names |= {step.name for plan in plans for step in plan.steps}
    assert names - documented == set()
    assert len(names) > 20


def test_young_and_daly() -> None:
    """A save of 80 s on 32 GPUs: Daly's interval is Young's, somewhat less the save itself."""
    plan = Plan(run())
    mean = 3600 / (1.97e-5 * 32)
    assert plan.between_failures_s == pytest.approx(mean)
    assert plan.best_interval_s == pytest.approx((2 * plan.stall_s * mean) ** 0.5, rel=0.02)
    assert plan.ettr is not None
    best = replace(plan.run, save_every=round((plan.best_interval_s or 0) / (plan.step_s or 1)))
    assert (Plan(best).ettr or 0) > plan.ettr


def test_the_front_is_what_brute_force_finds() -> None:
    """Every combination is planned here once more: the front is those that no other beats in time or cost."""
    machines = [(INSTANCES[name], room_on(INSTANCES[name])) for name in ("p5.48xlarge", "p4d.24xlarge")]
    base, tried = run(), product(machines, search.NODES, search.MICRO, search.RECOMPUTE, ("all", "node", "none"))
    pairs = set()
    for (instance, room), nodes, micro, recompute, which in tried:
        with contextlib.suppress(ValueError):  # the ranks cannot share the batch
            shard = {"all": 8 * nodes, "node": 8, "none": 1}[which]
            other = on_instance(base, instance, nodes, room, micro=micro, recompute=recompute, shard=shard)
            every = round((Plan(other).best_interval_s or 3600) / (Plan(other).step_s or 1))
            plan = Plan(replace(other, save_every=min(max(1, every), other.steps)))
            if plan.memory.fits and plan.hours and plan.cheapest:
                pairs.add((plan.hours[0], plan.cheapest))
    best = {one for one in pairs if not any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in pairs)}
    plans = search.front(base, machines)
    assert [(plan.hours[0], plan.cheapest) for plan in plans if plan.hours] == sorted(best)
    assert len(best) > 1


def test_a_found_plan_is_a_cell_of_the_same_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines for overlays/matrix.yaml are read, written as a cell, rendered and judged."""
    assert cli.invoke(["plan", "search", "mixtral-8x7b", "--gpus", "p5,p5e", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    shutil.copytree(ROOT / "overlays", tmp_path / "overlays")
    shutil.copytree(ROOT / "base", tmp_path / "base")
    path = tmp_path / "overlays/matrix.yaml"
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    for one in found:
        ((hardware, models),) = yaml.safe_load(one["cell"]).items()
        table["cells"].setdefault(hardware, {}).update(models)
        path.write_text(yaml.safe_dump(table, sort_keys=False), encoding="utf-8")
        cell = next(cell for cell in matrix.read(tmp_path).cells if cell.name == f"{hardware}/mixtral-8x7b")
        room, plan = room_of(tmp_path, cell), plan_of(tmp_path, cell)
        assert plan.step_s == pytest.approx(one["step_s"])
        assert plan.memory.needed == one["memory"]["needed"] <= room.nbytes
    matrix.sync(tmp_path)
    assert cli.invoke(["preflight", str(tmp_path / "overlays" / hardware / "mixtral-8x7b")]) == 0
    assert "will it train: PASS" in capsys.readouterr().out


def test_a_submission_asks_on_a_terminal(tmp_path: Path) -> None:
    """A real terminal: the plan is one small table, and `no` submits nothing."""
    outer, inner = os.openpty()
    words = [str(Path(sys.executable).with_name("yard")), "job", "submit", "p5/llama-3-1-8b"]
    (tmp_path / "config").write_text(KUBECONFIG, encoding="utf-8")
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "config")}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdin=inner, stderr=subprocess.PIPE, text=True) as running:
        os.write(outer, b"no\n")
        _, said = running.communicate(timeout=300)
    assert running.returncode == 2
    heads, row = said.splitlines()[:2]
    assert heads.split() == ["job", *" ".join(_shown.HEADS).split()]
    assert row.startswith("p5-llama-3-1-8b-train  4 x p5en.48xlarge  32 ")
    assert "submit it? yes/no" in said
    assert "nothing was submitted" in said


@pytest.mark.parametrize("card", ["H100", "new"])
def test_calibration_explains_the_run_and_is_kept(card: str, tmp_path: Path) -> None:
    """The constants that are kept, and no others, make the planned step as long as the measured one."""
    machine = replace(H100, card=replace(CARDS["H100"], efficiency=card))
    plan = Plan(replace(run(), machine=machine))
    step_s = 1.2 * speed.seconds(plan.run.shape, plan.run.layout, H100, FITTED)
    constants = calibrate.fitted(plan, step_s)
    assert list(constants) == [f"matmul {card}", f"flash2 {card}"]
    calibrate.keep(tmp_path / "facts.yaml", plan, constants, "a run")
    kept = yaml.safe_load((tmp_path / "facts.yaml").read_text(encoding="utf-8"))
    again = speed.seconds(plan.run.shape, plan.run.layout, machine, {**FITTED, **kept["fitted"]})
    assert again == pytest.approx(step_s, rel=0.01)
    assert kept["sources"] == dict.fromkeys(constants, "a run")


BAR = " {n}%|##        | {n}/60 [00:{n}<02:35,  2.10s/it]"
LOGS = {  # as a real run of transformers 5 prints them, and torchtitan
    "hf.log": BAR + "\r" + BAR + "{{'loss': '7.684', 'grad_norm': '1.759', 'epoch': '0.{n}'}}",
    "titan.log": "[titan] 2026-11-25 10:00:{n},000 - root - INFO - step: {n}  loss: 8.1  tps: 7,802  mfu: 38.5%",
}


@pytest.mark.parametrize(("name", "more"), [("hf.log", []), ("titan.log", ["--per-device"])])
def test_calibrates_from_the_logs_of_others(
    name: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("\n".join(LOGS[name].format(n=n) for n in range(10, 30)), encoding="utf-8")
    assert cli.invoke(["plan", "calibrate", str(tmp_path / name), "p5/llama-3-1-8b", "--dry-run", *more]) == 0
    assert "15 steps of 2.1 s" in capsys.readouterr().out


STEP = '{{"step": {n}, "loss": 8.0, "step_s": {step_s}}}'


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        (LOGS["titan.log"], [], "--per-device"),
        (STEP.replace("{step_s}", "-2"), [], "0 timed steps"),
        (STEP.replace("{step_s}", "Infinity"), [], "0 timed steps"),
        ("{{'loss': 7.684, 'learning_rate': 1e-4, 'epoch': 0.{n}}}", [], "0 timed steps"),
        (STEP.replace("{step_s}", "2.1"), ["--set", "device.precision=fp32"], "no formula was fitted for fp32"),
        (STEP.replace("{step_s}", "2.1"), ["--nodes", "1"], "its run is not the planned one: accumulation 1"),
    ],
)
def test_what_no_card_is_fitted_to(
    line: str, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = next(one for one in matrix.read(ROOT).cells if one.name == "p5/llama-3-1-8b")
    config = matrix.configuration(ROOT, cell).model_dump(mode="json")
    if "--nodes" in words:
        (tmp_path / "run.json").write_text(json.dumps({"config": config, "world_size": 32}), encoding="utf-8")
    lines = (line.format(n=n) for n in range(10, 30))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert cli.invoke(["plan", "calibrate", str(tmp_path), "p5/llama-3-1-8b", "--dry-run", *words]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert not shown.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "p5/llama-3-1-8b"], 0, "tokens/s"),
        (["show", "p5/llama-3-1-8b", "--explain"], 0, "as H100: nothing was published"),
        (["show", "cpu/llama-tiny"], 3, "unknown: no accelerator"),
        (["show", "p4d/llama-3-1-8b", "--set", "device.float8=rowwise"], 3, "A100-40, which has no unit for it"),
        (["show", "g6e/llama-3-1-8b", "--set", "device.float8=rowwise"], 3, "L40S, which has no unit for it"),
        (["show", "g6e/llama-3-1-8b", "--set", "device.float8=tensorwise"], 0, "tokens/s"),
        (["search", "llama-tiny", "--gpus", "p5"], 0, " s ("),
        (["search", "llama-3-1-8b", "--gpus", "p5,,g5"], 2, "--gpus '': not a family"),
        (["show", "p6-b200/llama-3-1-8b"], 3, "unknown: B200"),
        (["show", "p5/llama-3-1-8b", "--set", "device.precision=fp32"], 1, "the planner has no formula for its time"),
        (["show", "p5/llama-9"], 2, "no such cell"),
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
        (["diff", "no-such-revision"], 2, "no such commit"),
    ],
)
def test_commands(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["plan", *words]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


@pytest.mark.parametrize("words", [["plan", "show"], ["run", "--dry-run"]])
def test_bounds_that_the_batch_does_not_fit_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke([*words, "cpu/llama-tiny", "--set", "nodes={min: 2, max: 200}"]) == 2
    assert "nodes.max is 200, but 5 nodes cannot train" in (said := capsys.readouterr().err)
    assert "nearest value: 4" in said


def test_an_elastic_job_fits_at_its_fewest_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """Three machines share 32 micro batches in two passes, and one holds what three divided."""

    found = []
    for words in (["--nodes", "1"], ["--nodes", "3", "--set", "nodes={min: 1, max: 3}"]):
        assert cli.invoke(["plan", "show", "p5/llama-3-1-8b", *words, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    alone, bounded = found
    assert bounded["memory"]["needed"] == alone["memory"]["needed"]
    assert bounded["nodes"] == 3
    assert bounded["tokens"] == alone["tokens"]


def test_a_gpu_of_an_unnamed_machine_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An H20 or an MI300X on premises: the pods' host memory is not the card's."""
    assert cli.invoke(["render", "p5/llama-3-1-8b"]) == 0
    path, text = tmp_path / "job.yaml", capsys.readouterr().out
    path.write_text(
        text.replace("p5en.48xlarge", "own-machine").replace("nvidia.com/gpu", "amd.com/gpu"), encoding="utf-8"
    )
    assert cli.invoke(["plan", "show", "-f", str(path)]) == 3
    shown = capsys.readouterr().out
    assert "of unknown GiB a GPU\n" in shown
    assert "unknown: own-machine, a type of machine that tools/facts/instances.yaml does not have" in shown


def test_json_has_every_term(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["plan", "show", "p5/llama-3-1-8b", "--nodes", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["gpus"] == 16
    assert told["step_s"] == pytest.approx(sum(one["seconds"] for one in told["step"]))
    assert told["memory"]["needed"] == sum(one["bytes"] for one in told["memory"]["terms"])
    assert told["usd"]["reservation"] is None
    assert told["hours"][1] < told["hours"][0] < told["hours"][2]


PODS = yaml.safe_load("""
spec:
  nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge}
  containers: [{name: a, image: b, command: [python, train.py], resources: {limits: {nvidia.com/gpu: 8}}}]
""")
RANKS = copy.deepcopy(PODS)
RANKS["spec"]["containers"][0]["command"] = ["torchrun", "train.py"]
LAUNCHER = {"spec": {"containers": [{"name": "l", "image": "b", "command": ["mpirun", "python", "train.py"]}]}}
MPI = {"Launcher": {"replicas": 1, "template": LAUNCHER}, "Worker": {"replicas": 4, "template": PODS}}
GROUP = {"size": 2, "leaderTemplate": PODS, "workerTemplate": PODS}
JOB = {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": RANKS}
KINDS = {
    "kubeflow.org/v1 PyTorchJob": {"pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": RANKS}}},
    "batch/v1 Job": JOB,
    "jobset.x-k8s.io/v1alpha2 JobSet": {"replicatedJobs": [{"name": "w", "template": {"spec": JOB}}]},
    "batch.volcano.sh/v1alpha1 Job": {"tasks": [{"name": "w", "replicas": 4, "template": RANKS}]},
    "kubeflow.org/v2beta1 MPIJob": {"mpiReplicaSpecs": MPI},
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": {"replicas": 2, "leaderWorkerTemplate": GROUP},
    "ray.io/v1 RayJob": {"rayClusterSpec": {"workerGroupSpecs": [{"replicas": 4, "template": PODS}]}},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_can_be_said_of_a_job_without_a_known_model(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four machines of any kind of job: their number, GPUs, price, network; the rest is unknown, with what to do."""
    version, _, name = kind.partition(" ")
    item = {"apiVersion": version, "kind": name, "metadata": {"name": "own"}, "spec": KINDS[kind]}
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(path)]) == 3
    shown = capsys.readouterr().out
    assert "4 x p5.48xlarge, 32 GPUs" in shown
    assert "unknown of 80.0 GiB a GPU" in shown
    assert "an hour (2026-07)" in shown
    assert "EFA, 3,200 Gbit/s a node" in shown
    assert "yard job metrics" in shown
    assert cli.invoke(["plan", "show", "-f", str(path), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert tuple(told) == KEYS
    assert (told["gpus"], told["memory"]["needed"], told["hours"]) == (32, None, None)
    assert told["usd_per_hour"]["on demand"] > 0


MIG, SLICE = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"nvidia.com/gpu": 4}, 3, "4 x p5.48xlarge, 16 GPUs, 4 of the 8 of each"),
        ({"nvidia.com/gpu": 16}, 1, "a pod asks for 16 nvidia.com/gpu, and p5.48xlarge has 8"),
        ({"amd.com/gpu": 8}, 1, "a pod asks for 8 amd.com/gpu, and p5.48xlarge has 0"),
        ({"nvidia.com/gpu": "0.5"}, 2, "nvidia.com/gpu: '0.5' is not a number of devices"),
        ({"nvidia.com/gpu": -8}, 2, "nvidia.com/gpu: -8 is not a number of devices"),
        ({MIG: 2}, 3, f"unknown: {MIG} is a part of a card"),
        ({SLICE: 2}, 3, f"unknown: {SLICE} is a part of a card"),
        ({}, 3, "unknown: its pods ask for no H100 of p5.48xlarge"),
    ],
)
def test_devices_that_are_not_whole_machines(
    asked: dict[str, object], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = copy.deepcopy(JOB)
    spec["template"]["spec"]["containers"][0]["resources"]["limits"] = asked
    item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "own"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(tmp_path / "job.yaml")]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


def test_pods_of_different_size_are_not_planned_as_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = copy.deepcopy(RANKS)
    small["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 4}
    replicas = {"Master": {"replicas": 1, "template": small}, "Worker": {"replicas": 1, "template": RANKS}}
    item = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "own"}}
    item["spec"] = {"pytorchReplicaSpecs": replicas}
    (tmp_path / "job.yaml").write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(tmp_path / "job.yaml")]) == 3
    assert "its pods ask for 4 and 8 devices, and equal pods are planned" in capsys.readouterr().out


def test_a_trainjob_without_its_runtime_says_what_it_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = {"numNodes": 2, "command": ["torchrun", "a.py"], "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    item: dict[str, object] = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}
    item["metadata"] = {"name": "own"}
    item["spec"] = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    (tmp_path / "job.yaml").write_text(json.dumps(item), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(tmp_path / "job.yaml"), "--nodes", "3"]) == 3
    shown = capsys.readouterr().out
    assert "3 x pod, 24 GPUs" in shown
    assert "its pods come from a runtime that is not in the file" in shown


def test_pods_of_several_machines_are_not_planned_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["render", "p5/llama-3-1-8b"]) == 0
    path, text = tmp_path / "job.yaml", capsys.readouterr().out
    path.write_text(text.replace("ml.p5en.48xlarge", "p4d.24xlarge"), encoding="utf-8")
    assert cli.invoke(["plan", "show", "-f", str(path)]) in (1, 3)
    shown = capsys.readouterr().out
    assert "its pods may take p4d.24xlarge, p5en.48xlarge, and the slowest sets the pace" in shown
    cli.invoke(["preflight", "-f", str(path)])
    assert "81.8 GiB a GPU needed, 40.0 there" in capsys.readouterr().out
    assert "81.8 of 40.0 GiB a GPU, does not fit" in shown


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100"), ("NVIDIA-A100-SXM4-40GB", "A100-40"), ("NVIDIA L40S", "L40S"),
        ("NVIDIA-H100-PCIe", None), ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", None), ("NVIDIA-L40", None), ("MI300X", None),
    ],
)  # fmt: skip
def test_cards_as_nodes_name_them(name: str, card: str | None) -> None:
    found = card_of(name, 40_960)
    assert (found.name if found else None) == card


def test_a_node_of_your_own_without_a_known_network(tmp_path: Path) -> None:
    node = {"labels": {"pool": "a"}, "cpus": "64", "memory": "500Gi", "devices": {"nvidia.com/gpu": 8}}
    node |= {"device": "NVIDIA-H100-80GB-HBM3", "device_memory": "80Gi"}
    for more, known in (({}, False), ({"network_mbps": 400_000, "price_usd_per_hour": 20.0}, True)):
        machine = hardware.machine("lab", {"node": {**node, **more}})
        plan = Plan(on_instance(run(), machine, 4, room_on(machine)))
        assert (plan.step_s is not None) is known
        assert ("network_mbps" in plan.why_unknown) is not known
        assert plan.prices["on demand"] == (80.0 if known else None)
        assert Plan(on_instance(run(), machine, 1, room_on(machine))).step_s  # one node needs no network


def test_a_published_config_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8, **sizes}
    config |= {"vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert cli.invoke(["plan", "search", str(tmp_path), "--gpus", "p5"]) == 0
    assert "first: yard new model NAME --from" in capsys.readouterr().out
    assert cli.invoke(["plan", "search", str(tmp_path / "nothing")]) == 2


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a branch `main` that holds overlays/, in the place of this checkout."""
    shutil.copytree(ROOT / "overlays", tmp_path / "overlays")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-qm", "before")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(repo, "root", lambda: tmp_path)
    return tmp_path / "overlays/matrix.yaml"


def test_what_a_changed_matrix_costs(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = yaml.safe_load(clone.read_text(encoding="utf-8"))
    cells = table["cells"]["p5"]
    cells["llama-3-1-8b"]["nodes"] = 8
    cells["llama-3-1-8b"]["parallel"]["micro_batch_size"] = 1
    del cells["llama-3-1-70b"]
    cells["llama-3-2-1b"]["checkpoint"]["keep"] = 7
    cells["own"] = {"nodes": 2}
    (clone.parent / "model/own").mkdir()
    (clone.parent / "model/own/kustomization.yaml").write_text("kind: Component\n", encoding="utf-8")
    clone.write_text(yaml.safe_dump(table, sort_keys=False), encoding="utf-8")
    assert cli.invoke(["plan", "diff", "main"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in shown[1:9:2]] == [
        ["p5/llama-3-1-70b", "before", "8"],
        ["p5/llama-3-1-8b", "before", "4"],
        ["p5/llama-3-2-1b", "before", "1"],
        ["p5/own", "before", "-"],
    ]
    assert shown[4][1:5] == ["now", "8", "x", "p5en.48xlarge"]
    assert shown[5][2:-2] == shown[6][2:-2]
    assert float(shown[6][-2]) > 2 * float(shown[5][-2])
    assert " ".join(shown[8][1:8]) == "now 2 x p5.48xlarge 16 unknown of"
    assert shown[-1][0] == "together:"
    assert "without 1 plan of unknown cost" in " ".join(shown[-1])
    assert cli.invoke(["plan", "diff", "main", "--json"]) == 0
    before, now = json.loads(capsys.readouterr().out)["p5/llama-3-1-8b"]
    assert (before["nodes"], now["nodes"]) == (4, 8)
    assert now["hours"][0] < before["hours"][0]


@pytest.mark.parametrize("broken", ["now", "before"])
def test_a_matrix_that_cannot_be_read_is_named(broken: str, clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = clone.read_text(encoding="utf-8")
    clone.write_text("cells: [\n", encoding="utf-8")
    if broken == "before":
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qam", "broken"]
        subprocess.run(words, cwd=clone.parent, check=True)
        clone.write_text(whole, encoding="utf-8")
    assert cli.invoke(["plan", "diff", "main"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {'at main: ' if broken == 'before' else ''}overlays/matrix.yaml:2: not valid YAML")
