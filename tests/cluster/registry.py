"""The cluster's image registry: Debian's, beside the control plane, which the nodes ask for `localhost/...`.

So a cell's image is pulled by the name that the cell has.
"""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.cluster.control_plane import ControlPlane
from tests.cluster.packages import Packages
from tests.cluster.sandbox import BRIDGE_ADDRESS, UP_SECONDS

ADDRESS = f"{BRIDGE_ADDRESS}:5000"
HOST = "localhost"  # the host in the names of the images that it serves


def start(plane: ControlPlane, packages: Packages) -> None:
    """Start the empty registry and wait until it answers. Raises CannotStart."""
    home = plane.sandbox.root / "registry"
    home.mkdir()
    config = {
        "version": "0.1",
        "log": {"accesslog": {"disabled": False}, "level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(home / "images")}},
        "http": {"addr": ADDRESS},
    }
    (home / "config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    process = plane.sandbox.start("registry", [packages.registry, "serve", home / "config.yml"])
    listening = f"{int(ADDRESS.partition(':')[2]):04X}"
    table = Path(f"/proc/{plane.sandbox.init.pid}/net/tcp")
    port = f":{listening} 00000000:0000 0A"  # 0A: it listens
    plane.sandbox.wait("the registry", lambda: port in table.read_text(encoding="utf-8"), UP_SECONDS, [process])


def hosts(directory: Path) -> Path:
    """Write where a node's containerd finds the images of HOST, and return the directory to configure."""
    (directory / HOST).mkdir(parents=True, exist_ok=True)
    text = f'server = "http://{ADDRESS}"\n[host."http://{ADDRESS}"]\ncapabilities = ["pull", "resolve"]\n'
    (directory / HOST / "hosts.toml").write_text(text, encoding="utf-8")
    return directory
