"""Writes the packages of an environment as a CycloneDX document: `python deploy/sbom.py > aerobee.cdx.json`.

The image's build runs it with the image's environment and keeps the document in /opt/aerobee. It uses the standard
library alone, and two runs on the same packages write the same text.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from typing import Any


def components() -> list[dict[str, Any]]:
    """Every installed distribution with version, licence and package URL, in order of names."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        licence = distribution.metadata.get("License-Expression") or distribution.metadata.get("License") or ""
        found[name] = {
            "type": "library",
            "name": name,
            "version": distribution.version,
            "purl": f"pkg:pypi/{name}@{distribution.version}",
            **({"licenses": [{"license": {"name": licence.splitlines()[0]}}]} if licence.strip() else {}),
        }
    return [found[name] for name in sorted(found)]


def document() -> dict[str, Any]:
    """The whole document; its subject is the package `aerobee`."""
    listed = components()
    subject = next((each for each in listed if each["name"] == "aerobee"), None)
    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**subject, "type": "application"}} if subject else {},
        "components": [
            {"type": "platform", "name": "python", "version": python},
            *(each for each in listed if each is not subject),
        ],
    }


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    print()
