"""Parameters between two steps: a write is seen, and without one they are not read in full again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from training.prove.probe import parameters as subject
from training.prove.probe.digest import WIDTH, Group, digests, grouped
from training.prove.probe.parameters import Parameters

SIZE = 2 * WIDTH * 80  # float32: 80 rows


class Follower:
    """Takes steps on a large and a small parameter, and counts the large ones that are read in full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        generator = torch.Generator().manual_seed(0)
        self.parameters = [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in (SIZE, 8)]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)
        self.subject = Parameters(torch)
        self.full = 0
        monkeypatch.setattr(subject, "grouped", self._count)

    def _count(self, module: object, groups: list[Group]) -> list[str]:
        self.full += sum(one.every == 1 and one.tensors[0] is self.parameters[0] for one in groups)
        return grouped(module, groups)

    def before(self) -> list[str]:
        found, others = self.subject.before(self.parameters, [Group([torch.ones(2)])])
        assert others == digests(torch, [torch.ones(2)])
        return found

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.before()
            for one in self.parameters:
                one.grad = torch.ones_like(one)
            self.optimizer.step()
            assert self.subject.after(self.parameters) == digests(torch, self.parameters)


def by_version(one: torch.nn.Parameter) -> None:
    with torch.no_grad():
        one[2 * WIDTH] += 1  # in the second row: no sample reads it


def by_data(one: torch.nn.Parameter) -> None:
    one.data.mul_(0.5)


def by_address(one: torch.nn.Parameter) -> None:
    one.data = one.data.clone()
    one.data[2 * WIDTH] += 1


def first_by_data(one: torch.nn.Parameter) -> None:
    one.data[0] += 1


WRITES = [(by_version, 0), (by_data, 0), (by_data, 1), (by_address, 0), (first_by_data, 0), (first_by_data, 1)]


@pytest.mark.parametrize(("write", "place"), WRITES)
def test_a_write_between_two_steps_is_seen(
    write: Callable[[torch.nn.Parameter], None], place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(monkeypatch)
    follower.step(5)
    write(follower.parameters[place])
    assert follower.before() == digests(torch, follower.parameters)


def test_without_a_write_large_parameters_are_read_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(monkeypatch)
    follower.step(3)
    assert follower.full == 6
    follower.step(4)
    assert follower.full == 10
    assert follower.before() == digests(torch, follower.parameters)


def test_after_a_hidden_write_parameters_are_always_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control shows that the sample alone misses a write through `.data` to one row."""
    control, follower = Follower(monkeypatch), Follower(monkeypatch)
    control.step(5)
    control.parameters[0].data[2 * WIDTH] += 1
    assert control.before() != digests(torch, control.parameters)
    follower.step(1)
    follower.parameters[0].data[2 * WIDTH] += 1
    follower.step(4)
    follower.parameters[0].data[2 * WIDTH] += 1
    assert follower.before() == digests(torch, follower.parameters)
