"""Nothing that is read can run code: no pickle, no eval, no YAML with Python objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {
    "eval", "exec", "torch.load", "torch.package.PackageImporter", "pd.read_pickle", "torch.jit.load",
    "yaml.unsafe_load", "yaml.full_load", "torch.compiler.load_cache_artifacts",
    "dist.all_gather_object", "dist.broadcast_object_list", "dist.gather_object", "dist.scatter_object_list",
}  # fmt: skip
# All but BaseLoader, which makes texts of all scalars, derive from PyYAML's SafeLoader.
SAFE_LOADERS = {"loader", "_LOADER", "_Reader", "SafeLoader", "BaseLoader"}


ALLOWED = {
    # Takes pickle away from torch's rendezvous: its unpickler builds the rendezvous' own classes only.
    ("training/guard/trainyard_guard.py", "pickle"),
    # Reads DCP's index of other trainers: its unpickler builds plain values only, and its instructions are checked.
    ("training/checkpoint/dcp.py", "pickle"),
    # Runs the user's own script as `__main__`, in place of a new Python process.
    ("training/agent/forking.py", "exec"),
}


def dangerous(tree: ast.AST) -> Iterator[str]:
    """Yield every import and call that can run what it reads."""
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (name for name in names if name.partition(".")[0] in MODULES)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {one.arg: ast.unparse(one.value) for one in node.keywords}
        if called in CALLS and not (called == "torch.load" and given.get("weights_only") == "True"):
            yield called
        if given.get("allow_pickle", "False") != "False" or given.get("trust_remote_code", "False") != "False":
            yield f"{called} with allow_pickle or trust_remote_code"
        if called in ("yaml.load", "yaml.load_all") and len(node.args) + len(node.keywords) > 1:
            loader = given.get("Loader") or ast.unparse(node.args[1])
            if loader.rpartition(".")[2] not in SAFE_LOADERS:
                yield f"{called} with {loader}"


def test_no_code_reads_pickles_or_runs_text() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), what)
        for top in ("tools", "training")
        for path in (ROOT / top).rglob("*.py")
        for what in dangerous(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert sorted(found ^ ALLOWED) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from cloudpickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=flag)",
        "yaml.load(text, Loader=yaml.UnsafeLoader)",
        "eval(text)",
        "dist.broadcast_object_list(names)",
    ],
)
def test_a_planted_one_is_found(text: str) -> None:
    assert list(dangerous(ast.parse(text))) != []
    assert list(dangerous(ast.parse("torch.load(p, weights_only=True); np.load(p); json.loads(t)"))) == []
