"""Several questions to the API server at once."""

from collections.abc import Callable, Iterable
from functools import partial

from tools.core import UserError
from tools.job.snapshot.live_job import kind_of
from tools.kube import Kubectl, Object
from tools.kube.kubectl import each


class Queries:
    """Asks the API server several questions at once; notes the reason of each refusal in `unseen`."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self.objects: dict[str, list[Object]] = {}
        self.unseen: dict[str, str] = {}

    def ask(self, single: dict[str, tuple[str, ...]], groups: Iterable[dict[str, str]] = (), *options: str) -> None:
        """Ask for single kinds by their kubectl arguments, and once for each group of kinds.

        A group has resources by kind (`Node`), or by kind and API group where kinds have the same name.
        """
        work = [partial(self._one, kind, *words) for kind, words in single.items()]
        wanted = [group for group in groups if group]
        each(lambda ask: ask(), [*work, *(partial(self._group, group, *options) for group in wanted)])

    def _one(self, kind: str, *words: str) -> None:
        self.attempt(kind, lambda: self._kubectl.items(*words))

    def attempt(self, kind: str, read: Callable[[], list[Object]]) -> None:
        try:
            self.objects[kind] = read()
        except UserError as problem:
            self.unseen[kind] = problem.message

    def _group(self, kinds: dict[str, str], *options: str) -> None:
        """Ask once; if that is refused, ask for each kind, to know which."""
        try:
            found = self._kubectl.items(",".join(kinds.values()), *options)
        except UserError:
            each(lambda one: self._one(one[0], one[1], *options), kinds.items())
            return
        for kind in kinds:
            self.objects[kind] = [item for item in found if kind in (item["kind"], kind_of(item))]
