"""Where tables are: a directory that driver and workers share, or a bucket. Files are written by pyarrow.

A bucket needs no jars of Hadoop. Driver and workers read the account from the usual variables (AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, ...), each from its own environment; nothing secret travels with a task.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pyarrow import fs

from aerobee_pipeline.errors import OptionError


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A directory or a place in a bucket. `uri`: an absolute path, or `s3://bucket/prefix`, without a slash at its
    end."""

    uri: str
    endpoint: str | None = None
    """The URL of the object store; None: Amazon's."""
    region: str | None = None

    @classmethod
    def of(cls, text: str, environment: Mapping[str, str] | None = None) -> Self:
        """OptionError for a place that is neither a directory nor a bucket."""
        variables = os.environ if environment is None else environment
        scheme, separator, rest = text.partition("://")
        if not separator:
            return cls(str(Path(text).absolute()))
        if scheme == "file":
            return cls(str(Path("/" + rest.lstrip("/"))))
        if scheme not in ("s3", "s3a") or not rest.strip("/"):
            raise OptionError(f"warehouse {text!r}: give a directory, or s3://BUCKET/PREFIX")
        endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
        region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
        return cls(f"s3://{rest.strip('/')}", endpoint or None, region or None)

    def below(self, name: str) -> Self:
        """The place of a table. Letters, digits, `_` and `-` of a topic's name remain, other bytes become `~25`:
        packages decode `%25` in some paths and not in others."""
        safe = re.sub(r"[^A-Za-z0-9_-]", lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode()), name)
        return replace(self, uri=f"{self.uri}/{safe}")

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    @property
    def file_uri(self) -> str:
        """With a scheme."""
        return f"file://{self.uri}" if self.is_local else self.uri

    def filesystem(self) -> fs.FileSystem:
        """The files below this place, by their relative paths."""
        if self.is_local:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        settings: dict[str, Any] = {}
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            settings = {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        if self.region is not None:
            settings["region"] = self.region
        return fs.SubTreeFileSystem(self.uri.removeprefix("s3://"), fs.S3FileSystem(**settings))

    def delta_options(self) -> dict[str, str]:
        """What deltalake needs beside the environment. Two writers may not both create the same version."""
        if self.is_local:
            return {}
        options = {"conditional_put": "etag"}
        if self.endpoint is not None:
            options |= {"aws_endpoint": self.endpoint, "allow_http": str(self.endpoint.startswith("http:")).lower()}
        return options | ({"aws_region": self.region} if self.region is not None else {})

    def iceberg_options(self) -> dict[str, str]:
        """What pyiceberg needs beside the environment."""
        options = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
        if self.endpoint is not None:
            options["s3.endpoint"] = self.endpoint
        return options | ({"s3.region": self.region} if self.region is not None else {})
