"""The `yard` command: `python -m trainyard`.

An installed wheel keeps `tools` and `training` inside this package, so that they never hide a user's packages
of these names. They are put on the path of this process only.
"""

import sys
from pathlib import Path


def main() -> None:
    """Run `yard`."""
    here = Path(__file__).resolve().parent
    if (here / "tools").is_dir():
        sys.path.insert(0, str(here))
    from tools.cli import main as yard

    yard()


if __name__ == "__main__":
    main()
