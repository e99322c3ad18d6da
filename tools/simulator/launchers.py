"""Launchers other than torchrun: what they are called, and what their options mean in torchrun's terms.

Read in the source of accelerate 1.15.0 (commands/launch.py, utils/launch.py), deepspeed 0.19.8
(launcher/runner.py) and hyperpod-elastic-agent 1.1.3. A test holds `ACCELERATE_FLAGS` against accelerate's
parser where it is installed.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from tools.core.errors import UserError
from tools.kube.manifests import Object, documents
from tools.simulator.expansion import MARK
from tools.simulator.prefixes import PYTHON, TABLE, python_module
from tools.simulator.torchrun import HYPERPOD, MODULES, BadOptions, Explain, Torchrun, UnknownOptions, parse

NAMED: dict[str, str] = TABLE["named"]  # launchers that are named only: what starts their ranks
ACCELERATE_FLAGS, DEEPSPEED_FLAGS = map(frozenset, (TABLE["accelerate flags"], TABLE["deepspeed flags"]))
HOSTFILE = "/job/hostfile"  # deepspeed's default
_ALONE = ("standalone",)


def kind(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the launcher that a program is, `python`, or nothing for other programs, and the words behind it."""
    name, rest = PurePosixPath(words[0]).name, list(words[1:])
    if name in ("accelerate-launch", "deepspeed.pt", "ds"):
        return {"accelerate-launch": "accelerate"}.get(name, "deepspeed"), rest
    if name == "accelerate":
        return (name, rest[1:]) if rest[:1] == ["launch"] else ("", rest)
    if name == "tune":
        return (name, rest[1:]) if rest[:1] == ["run"] else ("", rest)
    if name in ("torchrun", "deepspeed", HYPERPOD) or name in NAMED:
        return name, rest
    if not PYTHON.fullmatch(name):
        return ("python", list(words)) if name.endswith(".py") else ("", rest)
    module, behind = python_module(rest)
    if module is None:
        named = PurePosixPath(behind[0]).name if behind else ""
        if named in ("torchrun", "deepspeed", "accelerate", HYPERPOD):
            return kind([named, *behind[1:]])
        harmless = named in ("", "-c", "setup.py")  # also --version: nothing is behind the options
        return ("" if harmless else "python"), rest
    if module in MODULES:
        return module, behind
    if module in TABLE["modules"]:
        named = TABLE["modules"][module]
        return kind([named, *behind]) if module.count(".") < 2 or "cli" in module else (named, behind)
    return ("" if module in TABLE["harmless modules"] else "python"), rest


def options(
    launcher: str,
    words: list[str],
    environment: Mapping[str, str],
    files: Mapping[str, str | None],
    devices: int,
    explain: Explain,
) -> Torchrun | None:
    """Return a launcher's options in torchrun's terms, or None where it starts one process as it is.

    `devices` is the number of GPUs of the pod. Raises BadOptions where the launcher would refuse its options, and
    UnknownOptions where the manifest does not say enough.
    """
    if launcher in ("torchrun", *MODULES, HYPERPOD):
        return parse(MODULES[0] if launcher == "torchrun" else launcher, words, environment, explain)
    if launcher == "tune":
        found = parse(MODULES[0], words, environment, explain)
        return found.changed("tune run", {}) if found.words else None
    if launcher == "accelerate":
        return _accelerate(_Options("accelerate", words, ACCELERATE_FLAGS, explain), environment, files, devices)
    if launcher == "deepspeed":
        return _deepspeed(_Options("deepspeed", words, DEEPSPEED_FLAGS, explain), environment, files)
    raise UnknownOptions(f"{launcher}: {NAMED[launcher]}")


def program(words: Sequence[str]) -> list[str]:
    """Return what a launcher or Python starts, with its arguments: a file first, or `-m` and a module.

    Any other command is returned as it is. Raises BadOptions and UnknownOptions where the launcher's own
    options do not differ from the program's in form.
    """
    launcher, rest = kind(words)
    if launcher in ("torchrun", "tune", *MODULES, HYPERPOD):
        found = parse(MODULES[0] if launcher in ("torchrun", "tune") else launcher, rest, {}, str)
        started, is_module = rest[len(found.words) :], "module" in found.flags
    elif launcher in ("accelerate", "deepspeed"):
        flags = ACCELERATE_FLAGS if launcher == "accelerate" else DEEPSPEED_FLAGS
        given = _Options(launcher, rest, flags, str)
        started, is_module = rest[len(given.words) :], bool(given.flags & {"module", "m"})
    elif launcher == "python":
        module, behind = python_module(rest)
        started, is_module = ([module, *behind], True) if module else (behind, False)
    else:
        return list(words)
    return ["-m", *started] if is_module else started


class _Options:
    """The options before the program: flags, and the others with their value."""

    def __init__(self, launcher: str, words: Sequence[str], flags: frozenset[str], explain: Explain) -> None:
        self.launcher, self._explain = launcher, explain
        self.flags: set[str] = set()
        self.values: dict[str, str] = {}
        at = 0
        while at < len(words) and words[at].startswith("-"):
            key, separator, value = words[at].partition("=")
            key = key.replace("_", "-")
            if key in flags:
                self.flags.add(key.lstrip("-"))
            elif separator or at + 1 < len(words):
                at += not separator
                self.values[key.lstrip("-")] = value if separator else words[at]
            at += 1
        self.words = [MARK.sub("...", word) for word in words[:at]]
        if at < len(words) and MARK.match(words[at]) and "*" in words[at]:
            raise UnknownOptions(f"the options in {explain(words[at])}")
        if at >= len(words):
            raise BadOptions(f"{launcher}: it has no program to start")

    def text(self, name: str) -> str | None:
        """Return an option's value. Raises UnknownOptions where it is not known."""
        value = self.values.get(name)
        if value is not None and MARK.search(value):
            raise UnknownOptions(f"{self.launcher} --{name} {self._explain(value)}")
        return value

    def number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise BadOptions(f"{self.launcher}: --{name} {value[:40]!r} is not an integer") from None


def _accelerate(
    given: _Options, environment: Mapping[str, str], files: Mapping[str, str | None], devices: int
) -> Torchrun | None:
    """Follow launch_command: a configuration file, its distributed_type, and the launcher of that type."""
    path = given.text("config-file") or _accelerate_default(environment, files)
    config = _config(path, files) if path is not None else {}
    for name in TABLE["accelerate configuration"]:
        if config.get(name) is not None:
            given.values.setdefault(name.replace("_", "-"), str(config[name]))
    needed = ("num-machines", "num-processes")
    if path is not None and not config and not all(name in given.values for name in needed):
        raise UnknownOptions(f"accelerate reads {path[:80]}, which is not in the manifest")
    machines = given.number("num-machines") or 1
    processes = given.number("num-processes")
    kinds = {name for name in ("multi-gpu", "use-fsdp", "use-deepspeed", "use-megatron-lm") if name in given.flags}
    kind_ = str(config.get("distributed_type") or "").upper()
    deepspeed = "use-deepspeed" in kinds or (not kinds and kind_ == "DEEPSPEED")
    several = bool(kinds) or kind_ not in ("", "NO") or ((processes or devices) > 1 and devices > 1)
    if "cpu" in given.flags or not (several or (path and not config)):
        return None if devices == 0 or "cpu" in given.flags else _alone("accelerate", given, 1)
    if processes is None:
        processes = devices
    ssh = str((config.get("deepspeed_config") or {}).get("deepspeed_multinode_launcher") or "")
    ssh = given.text("deepspeed-multinode-launcher") or ssh or "pdsh"
    if deepspeed and machines > 1 and ssh != "standard":
        raise UnknownOptions(f"accelerate starts deepspeed's launcher {ssh}, which reaches the other pods by ssh")
    if machines <= 1:
        own = parse(MODULES[0], ["program"], environment, given._explain)
        port = given.text("main-process-port") or "29500"
        values = {
            "nproc-per-node": str(processes),
            "master-port": port,
            "rdzv-backend": given.text("rdzv-backend") or "static",
        }
        found = own.changed("accelerate", values)
        return found if found.nodes()[1] > 1 else _alone("accelerate", given, processes)
    return _machines("accelerate", given, machines, processes // machines, environment)


def _accelerate_default(environment: Mapping[str, str], files: Mapping[str, str | None]) -> str | None:
    """Return the file that accelerate reads without --config_file, None if the manifest does not have it.

    It is in HF_HOME, else below XDG_CACHE_HOME or HOME (accelerate/commands/config/config_args.py). A HOME of
    the image is not known: then it is the only file of that name.
    """
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '*')}/.cache"
    path = f"{environment.get('HF_HOME') or f'{cache}/huggingface'}/accelerate/default_config.yaml"
    return next((name for name in files if fnmatch.fnmatchcase(name, path)), None)


def _machines(
    launcher: str, given: _Options, machines: int, processes: int, environment: Mapping[str, str]
) -> Torchrun:
    """Return accelerate's launch on several machines: each runs torchrun with its rank."""
    own = parse(MODULES[0], ["program"], environment, given._explain)
    host, port = given.text("main-process-ip") or "None", given.text("main-process-port") or "29500"
    backend = given.text("rdzv-backend") or "static"
    rank = given.number("machine-rank") if backend == "static" else 0
    if rank is None:
        raise BadOptions(f"{launcher}: --num_machines {machines} needs --machine_rank")
    values = {
        "nnodes": str(machines), "nproc-per-node": str(processes), "node-rank": str(rank),
        "rdzv-backend": backend, "rdzv-endpoint": f"{host}:{port}",
        "rdzv-conf": given.text("rdzv-conf") or "",
    }  # fmt: skip
    found = own.changed(launcher, values)
    found.words.extend(given.words)
    return found


def _alone(launcher: str, given: _Options, processes: int | None) -> Torchrun:
    """Return a launch that ends at this pod."""
    values = {"nnodes": "1", "nproc-per-node": str(processes) if processes else "auto"}
    found = parse(MODULES[0], ["program"], {}, given._explain).changed(launcher, values, *_ALONE)
    found.words.extend(given.words)
    return found


def _config(path: str, files: Mapping[str, str | None]) -> Object:
    text = files.get(path)
    if text is None:
        return {}
    try:
        read = documents(text, path)
    except UserError as problem:
        raise BadOptions(f"accelerate: {problem.message}") from None
    if not read or not isinstance(read[0], dict):
        raise BadOptions(f"accelerate: {path} is not a mapping")
    found: Object = read[0]
    return found


def _deepspeed(given: _Options, environment: Mapping[str, str], files: Mapping[str, str | None]) -> Torchrun:
    """Follow launcher/runner.py: without a hostfile it starts on its own pod only, with one it needs ssh."""
    path = given.text("hostfile") or given.text("H") or HOSTFILE
    named = "hostfile" in given.values or "H" in given.values
    processes = given.number("num-gpus") or given.number("num-accelerators")
    if path not in files and not named:
        if (given.number("num-nodes") or 1) > 1:
            raise BadOptions(f"deepspeed: --num_nodes is more than 1, but there is no hostfile ({HOSTFILE})")
        return _alone("deepspeed", given, processes)
    if "no-ssh" not in given.flags:
        raise UnknownOptions(f"deepspeed starts the other pods of {path[:80]} by ssh")
    text = files.get(path)
    if text is None:
        raise UnknownOptions(f"deepspeed reads {path[:80]}, which is not in the manifest")
    hosts = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    rank, host = given.number("node-rank"), given.text("master-addr")
    if rank is None or not 0 <= rank < len(hosts) or not host:
        raise BadOptions(f"deepspeed: --no_ssh needs --master_addr, and --node_rank from 0 to {len(hosts) - 1}")
    slots = hosts[0].partition("slots=")[2].split()
    values = {
        "nnodes": str(len(hosts)), "node-rank": str(rank), "master-addr": host, "rdzv-backend": "static",
        "nproc-per-node": str(processes or (slots[0] if slots else "1")), "rdzv-endpoint": "",
        "master-port": given.text("master-port") or "29500",
    }  # fmt: skip
    return parse(MODULES[0], ["program"], environment, given._explain).changed("deepspeed", values)
