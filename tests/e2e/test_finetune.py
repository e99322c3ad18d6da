"""`make finetune` in a clone that has trained nothing yet; with a base it is among the printed commands."""

from __future__ import annotations

from tests.e2e.conftest import Clone


def test_without_a_base_the_next_command_is_named(clone: Clone) -> None:
    """One error, before anything is prepared or started."""
    process = clone.start("make finetune ARGS='--set data.source=nowhere'")
    output, _ = process.communicate(timeout=170)
    assert process.returncode != 0
    assert "starts from the run cpu-llama-tiny-train, which has no checkpoint on this machine yet" in output
    assert "hint: train it: make train" in output
    assert "nowhere" not in output.replace("data.source=nowhere", "")
    assert not (clone.root / "local" / "runs").exists()
