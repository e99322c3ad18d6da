"""Pinned revisions from a hub on loopback: access, revisions, resumed downloads, offline use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.training.weights.bases import LLAMA, configuration, publish
from tests.training.weights.fake_hub import COMMIT, CUT_AFTER, LATER, TOKEN, FakeHub
from training.checkpoint.errors import CheckpointError
from training.run.directory import RunDir, write_json
from training.weights import WeightsError, open_weights


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hub") / "model"
    publish(directory, **LLAMA)
    (directory / "pytorch_model.bin").write_bytes(b"never read")
    (directory / "modeling_evil.py").write_text("raise SystemExit('remote code ran')")
    return directory


@pytest.fixture
def hub(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    served = FakeHub(published)
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # What HF_ENDPOINT, HF_TOKEN_PATH and HF_HUB_OFFLINE set when the library is imported.
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere/token")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("training.weights.download.time.sleep", lambda seconds: None)
    yield served
    served.close()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs" / "mine")


def test_a_pinned_revision_is_fetched_once_and_is_the_same_weights(
    hub: FakeHub, published: Path, run: RunDir, tmp_path: Path
) -> None:
    expected = open_weights(configuration(str(published), **LLAMA), run).digest
    for revision in (COMMIT, "v1.0"):
        opened = open_weights(configuration(f"team/open@{revision}", **LLAMA), run)
        assert opened.digest == expected
        assert opened.directory.is_relative_to(run.path / "hub")
    assert len(hub.bodies()) == 1
    fetched = {path.rpartition("/")[2] for method, path, _ in hub.log if method == "GET" and "/resolve/" in path}
    assert "config.json" in fetched
    assert not fetched & {"pytorch_model.bin", "modeling_evil.py"}


def test_a_branch_is_the_commit_that_it_named_when_the_run_began(hub: FakeHub, run: RunDir) -> None:
    config, said = configuration("team/open@main", **LLAMA), list[str]()
    first = open_weights(config, run, say=said.append)
    assert first.origin["base_commit"] == f"team/open@{COMMIT}"
    assert f"weights team/open@main: main is commit {COMMIT}" in said
    hub.commits["main"] = LATER
    other = open_weights(config, RunDir(run.path.with_name("another")))
    assert other.origin["base_commit"] == f"team/open@{LATER}"  # the branch did move
    write_json(run.run, first.origin)  # as the loop does when a run begins
    again = open_weights(config, run)
    assert again.origin["base_commit"] == f"team/open@{COMMIT}"
    assert again.directory == first.directory


def test_a_cache_directory_that_is_set_is_used(
    hub: FakeHub, run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    opened = open_weights(configuration("team/open@v1.0", **LLAMA), run)
    assert opened.directory.is_relative_to(tmp_path / "home" / "hub")


def test_a_download_continues_where_it_was_cut(
    hub: FakeHub, published: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CUT_AFTER // 5)  # what is written at a time
    hub.resets = 2
    opened = open_weights(configuration(f"team/open@{COMMIT}", **LLAMA), run)
    assert opened.digest == open_weights(configuration(str(published), **LLAMA), run).digest
    assert hub.bodies() == ["", f"bytes={CUT_AFTER}-", f"bytes={2 * CUT_AFTER}-"]


def test_a_hub_that_fails_for_a_while_is_retried(hub: FakeHub, run: RunDir) -> None:
    hub.failures = 3
    open_weights(configuration(f"team/open@{COMMIT}", **LLAMA), run)
    assert hub.failures == 0


@pytest.mark.parametrize("how", ["variable", "file"])
def test_gated_weights_need_a_token_from_a_variable_or_a_file(
    hub: FakeHub, run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    config = configuration(f"team/gated@{COMMIT}", **LLAMA)
    with pytest.raises(WeightsError) as caught:
        open_weights(config, run)
    message = str(caught.value)
    assert message.startswith(f"weights team/gated@{COMMIT}: no access: no token was sent; give one in HF_TOKEN")
    assert message.endswith(f"request access at {hub.url}/team/gated")
    if how == "variable":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    else:
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    open_weights(config, run)


@pytest.mark.parametrize(
    ("weights", "token", "message"),
    [
        ("team/gated@v1.0", "wrong", "no access: the token was sent, but its owner has no access yet"),
        ("team/granted-to-others@v1.0", TOKEN, "no access: the token was sent, but its owner has no access"),
        ("team/open@v9", None, "team/open has no revision v9"),
        (f"team/open@{COMMIT[::-1]}", None, f"team/open has no revision {COMMIT[::-1]}"),
        ("team/absent@v1.0", None, "no such repository, or a private one: no token was sent"),
        ("team/absent@v1.0", TOKEN, "no such repository, or a private one: the token was sent and refused"),
        ("team/--bad--@v1.0", None, "not a valid name on the hub"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    hub: FakeHub, run: RunDir, monkeypatch: pytest.MonkeyPatch, weights: str, token: str | None, message: str
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(WeightsError) as caught:
        open_weights(configuration(weights, **LLAMA), run)
    assert message in str(caught.value)
    assert weights in str(caught.value)
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_offline_only_the_cache_is_used(hub: FakeHub, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration("team/open@v1.0", **LLAMA)
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(WeightsError, match=r"not completely in .*/hub, and HF_HUB_OFFLINE is set"):
            open_weights(config, run)
        assert hub.log == []
    online = open_weights(config, run)
    before = len(hub.log)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert open_weights(config, run).digest == online.digest
    assert len(hub.log) == before


def test_an_unreachable_hub_is_an_error_that_may_be_retried(hub: FakeHub, run: RunDir) -> None:
    hub.close()
    said: list[str] = []
    with pytest.raises(CheckpointError, match=f"cannot be downloaded from {hub.url}"):
        open_weights(configuration(f"team/open@{COMMIT}", **LLAMA), run, say=said.append)
    assert any("trying again" in line for line in said)
