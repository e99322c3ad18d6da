"""All situations of the corpus. Importing the modules adds them."""

from importlib import import_module
from pathlib import Path

from tests.job.corpus import SITUATIONS

for _family in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"{__name__}.{_family.stem}")

__all__ = ["SITUATIONS"]
