"""What an image holds and what it was built from: an SBOM and a provenance, beside the record of its build.

The SBOM is CycloneDX 1.6. The provenance is the predicate of SLSA 1.0. Its builder is the machine that ran
`yard image build`, which is SLSA's level 1. BuildKit's own attestations need an engine with the containerd
image store, and make an index of the image, so that the digest of the push would not be the image's.
"""

import json
import re
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools import __version__
from tools.core import Say, repo, tables
from tools.image.build import Record, Request
from tools.image.engine import Engine, Image
from tools.image.rules.evaluate import subject
from tools.image.smoke import RESTRICTED, ImageTest

# cosign's name of a predicate's type, and the end of the file with it.
KINDS = {"cyclonedx": ".cdx.json", "slsaprovenance1": ".slsa.json"}
COMMIT = re.compile(r"[0-9a-f]{40}")


def write(request: Request, record: Record, image: Image, engine: Engine, say: Say) -> None:
    """Write the SBOM, unless the image has no Python that lists its packages, and the provenance."""
    found, problem = ImageTest(engine, image).probe("contents", options=("--network=none", *RESTRICTED))
    made: dict[str, Any] = {"slsaprovenance1": provenance(request, record)}
    if found is None:
        say(f"no SBOM: the image's Python does not run: {problem}")
    else:
        made["cyclonedx"] = sbom(record, found)
    for kind in KINDS:
        path = place(record.name, kind)
        path.unlink(missing_ok=True)  # one of an earlier image
        if kind in made:
            path.write_text(json.dumps(made[kind], indent=1) + "\n", encoding="utf-8")


def place(name: str, kind: str) -> Path:
    return repo.local() / "images" / f"{name}{KINDS[kind]}"


def sbom(record: Record, contents: dict[str, Any]) -> dict[str, Any]:
    """Return the packages of an image as a CycloneDX document."""
    purls = sorted({_purl(one, contents["system"]): one for one in contents["packages"]}.items())
    names = {
        "serial": str(uuid.uuid5(uuid.NAMESPACE_OID, record.id)), "id": record.id, "name": record.tags[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "trainyard": __version__,
    }  # fmt: skip
    components = [
        {"type": "library", "bom-ref": purl, "purl": purl, "name": one["name"], "version": one["version"]}
        for purl, one in purls
    ]
    return {**tables.filled(tables.load("image/evidence.yaml")["sbom"], names), "components": components}


def provenance(request: Request, record: Record) -> dict[str, Any]:
    """Return how an image was built, and from which commit and base images."""
    stages = subject(request.target, request.arguments).dockerfile.stages
    bases = sorted({one.base for one in stages if one.parent is None and "@sha256:" in one.base})
    sources = [
        {"uri": f"pkg:docker/{quote(name)}", "digest": {"sha256": digest}}
        for name, _, digest in (base.partition("@sha256:") for base in bases)
    ]
    if COMMIT.fullmatch(record.revision):
        sources.append({"name": "context", "digest": {"gitCommit": record.revision}})
    names = {
        "dockerfile": request.target.shown, "architecture": record.architecture, "builder": record.builder,
        "revision": record.revision, "id": record.id, "built": record.built, "trainyard": __version__,
    }  # fmt: skip
    made: dict[str, Any] = tables.filled(tables.load("image/evidence.yaml")["provenance"], names)
    made["buildDefinition"]["externalParameters"]["arguments"] = dict(request.arguments)
    made["buildDefinition"]["resolvedDependencies"] = sources
    return made


def _purl(package: dict[str, str], system: str) -> str:
    """Return a package URL, such as pkg:pypi/torch@2.15.0 or pkg:deb/debian/g%2B%2B@4:12.2.0-3?arch=amd64."""
    version = quote(package["version"], safe="")
    if package["type"] == "pypi":
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', package['name']).lower()}@{version}"
    return f"pkg:deb/{system}/{quote(package['name'], safe='')}@{version}?arch={package['arch']}"
