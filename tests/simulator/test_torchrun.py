"""Launchers and their options, read from commands without running them."""

from __future__ import annotations

import pytest

from tools.simulator import launch, launchers, torchrun
from tools.simulator.torchrun import BadOptions


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nnodes=3", "-m", "a.b", "--nnodes=9"],
        ["/opt/conda/bin/torchrun", "--nnodes", "3", "a.py"],
        ["python3.11", "-u", "-X", "dev", "-m", "torch.distributed.run", "--nnodes=3", "a.py"],
        ["python", "-m", "torch.distributed.launch", "--use_env", "--nnodes=3", "a.py"],
        ["bash", "-euc", "exec torchrun --nnodes=3 a.py"],
        ["/bin/sh", "-c", "torchrun --nno=$THREE a.py"],
        ["torchrun", "--nnodes=3", "--", "a.py", "--run", "x"],
        ["bash", "-c", "tail -f log & while true; do test -e /x && break; sleep 9; done; torchrun --nnodes=3 a.py"],
        ["sh", "-c", "(while :; do nvidia-smi; sleep 9; done) & timeout 9 sleep infinity; torchrun --nnodes=3 a.py"],
    ],
)
def test_known_launchers(command: list[str]) -> None:
    found = launch.read(command, {"PET_NNODES": "1:2", "PET_MAX_RESTARTS": "5", "THREE": "3"})
    assert found.torchrun is not None
    assert found.torchrun.nodes() == (3, 3)  # the command line wins over PET_NNODES
    assert found.torchrun.values["max-restarts"] == "5"
    assert "a.py" not in found.torchrun.words


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["torchrun", "a.py", "--run", "x"], "whether torchrun takes --run behind the program depends on the image's"),
        (["bash", "-c", "if [ -e /x ]; then tail -f /dev/null; fi; torchrun a.py"], "only the pod knows: the script"),
        (["bash", "-c", "while true; do sleep 60; done; torchrun a.py"], "no program in it trains (sleep)"),
        (["bash", "-c", "sleep infinity; exec torchrun a.py"], "no program in it trains (sleep)"),
        (["./train"], "./train is neither torchrun nor python"),
        (["mpirun", "-np", "8", "python", "a.py"], "mpirun: MPI starts its ranks"),
        (["srun", "python", "a.py"], "srun: Slurm starts its ranks"),
        (["llamafactory-cli", "train", "x.yaml"], "llamafactory-cli: its options are not read here"),
        (["bash", "/app/start.sh"], "it runs /app/start.sh, a file of the image"),
        (["bash", "-c", "pip install x; sleep infinity"], "no program in it trains (pip, sleep)"),
        (
            ["bash", "-c", "torchrun $X a.py"],
            "the options in $X: neither the manifest nor the script sets it",
        ),
        (["bash", "-c", "if [ -e /x ]; then torchrun a.py; fi"], "only the pod knows: `[ -e /x ]`"),
        (
            ["bash", "-c", "torchrun a.py; torchrun --nnodes=2 b.py"],
            "several launchers with different options",
        ),
        (["deepspeed", "--hostfile", "/h", "a.py"], "deepspeed starts the other pods of /h by ssh"),
        (
            ["accelerate", "launch", "--config_file", "/c.yaml", "a.py"],
            "/c.yaml, which is not in the manifest",
        ),
    ],
)
def test_unknown_launchers_say_what_was_looked_at(command: list[str], reason: str) -> None:
    found = launch.read(command, {})
    assert reason in found.unknown
    assert found.shown == " ".join(command)


@pytest.mark.parametrize(
    ("count", "processes", "unknown"),
    [
        ("$(nvidia-smi -L | wc -l)", "gpu", False),
        ("$(python -c 'import torch; print(torch.cuda.device_count())')", "gpu", False),
        ("$(nproc)", None, True),
        ("$NPROC", None, True),
    ],
)
def test_a_count_of_the_pods_gpus_is_torchruns_own(count: str, processes: str | None, unknown: bool) -> None:
    found = launch.read(["bash", "-c", f"torchrun --nproc_per_node={count} a.py"], {}).torchrun
    assert found is not None
    assert found.values["nproc-per-node"] == processes
    assert ("nproc-per-node" in found.unknown, found.processes()) == (unknown, None)


def test_plain_python_is_no_launcher() -> None:
    for command in (
        ["python", "train.py"],
        ["python", "-m", "pkg.train"],
        ["bash", "-c", "exec python train.py"],
    ):
        found = launch.read(command, {})
        assert (found.torchrun, found.unknown) == (None, "")


CONFIG = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nmain_process_ip: h\nmain_process_port: 5\n"


@pytest.mark.parametrize(
    ("command", "nodes", "processes", "endpoint", "rank"),
    [
        (["torchrun", "--nnodes=2", "--nproc-per-node=4", "a.py"], (2, 2), 4, "", "0"),
        (
            ["accelerate", "launch", "--config_file", "/c.yaml", "--machine_rank=1", "a.py"],
            (2, 2),
            8,
            "h:5",
            "1",
        ),
        (
            [
                "accelerate",
                "launch",
                "--multi_gpu",
                "--num_machines=4",
                "--num_processes",
                "32",
                "--machine_rank",
                "3",
                "--main_process_ip",
                "m",
                "--mixed_precision",
                "bf16",
                "a.py",
                "--num_machines",
                "9",
            ],
            *((4, 4), 8, "m:29500", "3"),
        ),
        (
            ["deepspeed", "-H", "/h", "--no_ssh", "--node_rank=1", "--master_addr=m", "a.py"],
            (2, 2),
            8,
            "",
            "1",
        ),
        (["python", "-m", "accelerate.commands.launch", "a.py"], (1, 1), 8, "", "0"),
        (["deepspeed", "--num_gpus", "4", "a.py", "--deepspeed"], (1, 1), 4, "", "0"),
        (
            ["hyperpodrun", "--nnodes=2", "--nproc_per_node=8", "--server-port", "1", "a.py"],
            (2, 2),
            8,
            "",
            "0",
        ),
        (
            ["tune", "run", "--nnodes", "2", "--nproc_per_node", "8", "recipe", "--config", "x"],
            (2, 2),
            8,
            "",
            "0",
        ),
        (["conda", "run", "-n", "python", "torchrun", "--nnodes=2", "a.py"], (2, 2), 1, "", "0"),
        (
            ["numactl", "-m", "0", "tini", "-g", "--", "nice", "-n", "5", "torchrun", "a.py"],
            (1, 1),
            1,
            "",
            "0",
        ),
        (["env", "PET_NNODES=3", "-u", "X", "torchrun", "a.py"], (3, 3), 1, "", "0"),
        (["nsys", "profile", "-o", "x", "python", "-m", "torch.distributed.run", "a.py"], (1, 1), 1, "", "0"),
    ],
)
def test_launchers_in_the_terms_of_torchrun(
    command: list[str], nodes: tuple[int, int], processes: int, endpoint: str, rank: str
) -> None:
    files = {"/c.yaml": CONFIG, "/h": "a slots=8\n# b\nc slots=8\n"}
    found = launch.read(command, {}, files, devices=8).torchrun
    assert found is not None
    assert (found.nodes(), found.processes()) == (nodes, processes)
    assert (found.values["rdzv-endpoint"], found.values["node-rank"]) == (endpoint, rank)


@pytest.mark.parametrize(
    ("directory", "variables"),
    [
        ("/hf/accelerate", {"HF_HOME": "/hf"}),
        ("/c/huggingface/accelerate", {"XDG_CACHE_HOME": "/c", "HOME": "/home/user"}),
        ("/home/user/.cache/huggingface/accelerate", {"HOME": "/home/user"}),
        ("/home/other/.cache/huggingface/accelerate", {}),
    ],
)
def test_accelerate_reads_its_default_file(directory: str, variables: dict[str, str]) -> None:
    files = {f"{directory}/default_config.yaml": CONFIG}
    with pytest.raises(BadOptions, match="needs --machine_rank"):
        launch.read(["accelerate", "launch", "a.py"], variables, files, devices=8)
    command = ["accelerate", "launch", "--machine_rank=1", "a.py"]
    read = launch.read(command, variables, files, devices=8).torchrun
    assert read is not None
    assert (read.nodes(), read.processes(), read.values["node-rank"]) == ((2, 2), 8, "1")
    other = launch.read(command, {**variables, "HF_HOME": "/elsewhere"}, files, devices=8).torchrun
    assert other is not None
    assert "standalone" in other.flags


@pytest.mark.parametrize("command", [["accelerate", "launch", "a.py"], ["deepspeed", "a.py"]])
def test_a_launcher_without_other_machines_ends_at_its_pod(command: list[str]) -> None:
    found = launch.read(command, {"MASTER_ADDR": "m", "RANK": "1"}, devices=8).torchrun
    assert found is not None
    assert "standalone" in found.flags


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["deepspeed", "--num_nodes", "2", "a.py"], "there is no hostfile"),
        (["deepspeed", "-H", "/h", "--no_ssh", "--node_rank=2", "a.py"], "--no_ssh needs --master_addr"),
        (
            ["accelerate", "launch", "--num_machines=2", "--multi_gpu", "--num_processes=2", "a"],
            "needs --machine_rank",
        ),
        (["accelerate", "launch", "--num_machines=x", "a.py"], "'x' is not an integer"),
        (["accelerate", "launch", "--config_file=/bad", "a.py"], "/bad"),
        (["accelerate", "launch", "--multi_gpu"], "it has no program"),
    ],
)
def test_what_other_launchers_would_refuse(command: list[str], message: str) -> None:
    with pytest.raises(BadOptions, match=message):
        launch.read(command, {}, {"/h": "a slots=8\nb slots=8\n", "/bad": "a: [1"}, devices=8)


def test_accelerates_flags_are_those_of_the_installed_one() -> None:
    module = pytest.importorskip("accelerate.commands.launch", reason="accelerate is not installed")
    for action in module.launch_command_parser()._actions:
        names = {name.replace("_", "-") for name in action.option_strings} - {"-h", "--help"}
        if names:
            assert (action.nargs == 0) == bool(names & launchers.ACCELERATE_FLAGS), names


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (["--nnodes=a"], {}, "neither N nor MIN:MAX"),
        (["--nnodes=3:2"], {}, "MIN <= MAX"),
        (["--no-such"], {}, "torchrun: "),
        ([], {"PET_STANDALONE": ""}, "PET_STANDALONE is ''"),
        ([], {"PET_NODE_RANK": "x"}, "--node-rank 'x' is not an integer"),
    ],
)
def test_what_torchrun_would_refuse(words: list[str], variables: dict[str, str], message: str) -> None:
    def nodes() -> None:
        found = launch.read(["torchrun", *words, "a.py"], variables).torchrun
        assert found is not None
        found.nodes()

    with pytest.raises(BadOptions, match=message):
        nodes()


def test_options_are_those_of_the_installed_torchrun() -> None:
    from torch.distributed.run import get_args_parser

    known = {f"--{name}" for name in (*torchrun.OPTIONS, *torchrun.FLAGS)} | set(torchrun.SHORT.values())
    for action in get_args_parser()._actions:
        names = [text for text in action.option_strings if text not in ("-h", "--help")]
        for text in names:
            assert text.replace("_", "-") in known, f"torchrun has an option that is not known here: {text}"
        long = next((text[2:] for text in names if text.startswith("--")), None)
        if long is not None:
            takes_value = action.nargs != 0
            assert takes_value == (long in torchrun.OPTIONS), long
        if long in torchrun.OPTIONS and isinstance(action.default, str):
            assert torchrun.OPTIONS[long] == action.default, long


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-m", "training.entrypoint", "torchrun", "--nnodes=3", "a.py"],
        ["/venv/bin/python3", "-u", "-m", "training.entrypoint", "torchrun", "--nnodes=3", "a.py"],
        ["sh", "-c", "exec python -m training.entrypoint torchrun --nnodes=3 a.py"],
        ["python", "-m", "training.entrypoint", "sh", "-c", "exec torchrun --nnodes=3 a.py"],
    ],
)
def test_the_entrypoint_is_seen_through(command: list[str]) -> None:
    found = launch.read(command, {})
    assert found.torchrun is not None
    assert found.torchrun.nodes() == (3, 3)
    assert found.behind_entrypoint


def test_the_entrypoint_alone_starts_nothing() -> None:
    assert launch.read(["python", "-m", "training.entrypoint"], {}).unknown == "an empty command"
    assert not launch.read(["torchrun", "a.py"], {}).behind_entrypoint


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("torchrun --nproc-per-node 2 --tee 3 train.py --epochs 1", "train.py --epochs 1"),
        ("torchrun --standalone -m pkg.train a", "-m pkg.train a"),
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", "train.py"),
        ("accelerate launch --cpu --num_processes 2 a.py --cpu", "a.py --cpu"),
        ("accelerate launch --module pkg.a", "-m pkg.a"),
        ("deepspeed --num_gpus 2 a.py --deepspeed", "a.py --deepspeed"),
        ("python -u -W error a.py -m", "a.py -m"),
        ("./a.py b", "./a.py b"),
        ("bash run.sh", "bash run.sh"),
    ],
)
def test_a_program_is_found_behind_its_launcher(command: str, started: str) -> None:
    assert launchers.program(command.split()) == started.split()
