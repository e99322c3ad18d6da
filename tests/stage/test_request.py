"""What `yard stage` makes of its arguments, and the manifest of the pod that it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cli import invoke
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import Manifests
from tools.preflight.evaluate import evaluate
from tools.stage import bring, pods
from tools.stage.request import request

ARRIVED: dict[str, object] = {"source": "s3://x", "files": 1, "bytes": 2, "digest": "3", "fetched": 4}
PLACES = {
    "hf://meta-llama/Llama-3.1-8B": "trainyard:models/Llama-3.1-8B",
    "hf://meta-llama/Llama-3.1-8B@main": "trainyard:models/Llama-3.1-8B",
    "hf://datasets/allenai/c4@abc/en/c4-train.{00000..00007}.json.gz": "trainyard:text/c4-train",
    "s3://neuron-s3/a/bert_hdf5_seqlen128.tar": "trainyard:text/bert_hdf5_seqlen128",
    "s3://corpus": "trainyard:text/corpus",
    "https://host/part-{00..07}.jsonl.gz": "trainyard:text/part",
    "s3://corpus/chats.ndjson.gz": "trainyard:text/chats",
    "other:models/x": "trainyard:text/x",
}


@pytest.mark.parametrize("source", PLACES)
def test_the_default_place_is_where_cells_look(source: str) -> None:
    assert request(source, None).place == PLACES[source]


def test_a_directory_with_a_model_goes_to_models(tmp_path: Path) -> None:
    (tmp_path / "Llama-3.2-1B").mkdir()
    (tmp_path / "Llama-3.2-1B/config.json").touch()
    (tmp_path / "corpus.v2").mkdir()
    assert request(str(tmp_path / "Llama-3.2-1B"), "local:").place == "local:models/Llama-3.2-1B"
    assert request(str(tmp_path / "corpus.v2"), "own:").place == "own:text/corpus.v2"


@pytest.mark.parametrize(
    ("source", "to", "said"),
    [
        ("htps://host/x", None, "htps://host/x: no such file or directory"),
        ("s3:/bucket", None, "s3:/bucket: no such file or directory"),
        ("hf://model", None, "hf://model: not a whole hf:// source"),
        ("hf://team/model@", None, "not a whole hf:// source"),
        ("s3://", None, "s3://: not a whole s3:// source"),
        ("https://host", None, "https://host: not a whole https:// source"),
        ("nothing", None, "nothing: no such file or directory"),
        ("s3://bucket/x", "models/x", "--to models/x: not CLAIM:PATH"),
        ("s3://bucket/x", "trainyard:../x", "not a plain path"),
        ("s3://bucket/x", "trainyard:.hidden", "not a plain path"),
        ("s3://bucket/x", "-n:x", "not CLAIM:PATH"),
        ("other:text/x", "local:text/x", "is on a claim, which this machine does not see"),
    ],
)
def test_bad_input_is_one_error(source: str, to: str | None, said: str) -> None:
    with pytest.raises(UserError) as problem:
        request(source, to)
    assert said in problem.value.message
    assert problem.value.hint


def test_an_unknown_variable_and_options_for_a_pod_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["stage", str(tmp_path), "--env", "HF_TOKEN=secret"]) == 2
    assert "HF_TOKEN: not one of the variables" in capsys.readouterr().err
    assert invoke(["stage", str(tmp_path), "--to", "local:", "--image", "x"]) == 2
    assert "for a pod, not for this machine" in capsys.readouterr().err
    assert invoke(["stage", str(tmp_path), "--no-sign-request"]) == 2
    assert "--no-sign-request is for S3" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["s3://bucket/x", "other:text/x", "."])
def test_the_pod_passes_preflight_and_sees_only_its_claims(source: str) -> None:
    job, policy = pods.staging(request(source, "own:text/x"), None, "reader", {"AWS_REGION": "us-east-1"})
    checked = evaluate(Manifests("stage", [job, policy]))
    assert [verdict.summary for verdict in checked.of(State.FAIL)] == []
    spec = job["spec"]["template"]["spec"]
    mounted = [one["persistentVolumeClaim"] for one in spec["volumes"] if "persistentVolumeClaim" in one]
    claims = {one["claimName"] for one in mounted}
    assert claims == ({"own", "other"} if source.startswith("other") else {"own"})
    assert spec["serviceAccountName"] == "reader"
    assert all(
        mount["readOnly"] for mount in spec["containers"][0]["volumeMounts"] if mount["mountPath"] == pods.ORIGIN
    )


@pytest.mark.parametrize("found", [{}, {"files": "1"}, {**ARRIVED, "bytes": None}, {**ARRIVED, "digest": []}])
def test_an_answer_of_another_shape_is_not_taken(found: dict[str, object]) -> None:
    assert bring._checked({**ARRIVED, "more": 1}, "stage-x") == ARRIVED
    with pytest.raises(UserError, match="another shape"):
        bring._checked(found, "stage-x")
