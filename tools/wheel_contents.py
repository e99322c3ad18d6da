"""A build hook of hatchling: what a wheel contains. An editable install contains nothing, only paths."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {
    "training/agent/trainyard": "trainyard",
    **{name: f"trainyard/{name}" for name in ("tools", "training", "base", "overlays", "images")},
    "requirements.lock": "trainyard/requirements.lock",
    "requirements-dev.lock": "trainyard/requirements-dev.lock",
}


class Contents(BuildHookInterface[Any]):
    """Puts the directories that the yard command reads into the one package of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the directories, unless `version` is `editable`: hatchling would copy them there as well."""
        if version == "standard":
            build_data["force_include"].update(PLACES)
