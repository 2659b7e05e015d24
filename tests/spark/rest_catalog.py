"""A small REST catalog of Iceberg for tests, over pyiceberg's catalog of SQL: what creating and committing need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

_STATUS = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchTableError: 404,
}


@contextmanager
def rest_catalog(directory: Path, warehouse: str, **settings: str) -> Iterator[str]:
    """Run the catalog; yields its URI. `settings`: of the object store."""
    catalog = SqlCatalog("rest", uri=f"sqlite:///{directory}/rest.db", warehouse=warehouse, **settings)
    mutex = Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes | None) -> None:
            parts = [unquote(part) for part in urlsplit(self.path).path.split("/") if part][1:]
            try:
                with mutex:
                    status, found = 200, _found(catalog, parts, body)
            except tuple(_STATUS) as error:
                status = _STATUS[type(error)]
                found = {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Tests print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            catalog.close()


def _found(catalog: SqlCatalog, parts: list[str], body: bytes | None) -> dict[str, Any]:
    """The answer of `v1/` and these parts of a path."""
    if parts == ["config"]:
        return {"defaults": {}, "overrides": {}}
    if parts == ["namespaces"]:
        namespace = json.loads(body or b"")["namespace"]
        catalog.create_namespace(tuple(namespace))
        return {"namespace": namespace, "properties": {}}
    if body is not None and len(parts) == 3:
        asked = CreateTableRequest.model_validate_json(body)
        name = (parts[1], asked.name)
        staged = catalog._create_staged_table(
            name,
            asked.table_schema,
            asked.location,
            asked.partition_spec,
            asked.write_order,
            asked.properties,
        )
        return {"metadata": json.loads(staged.metadata.model_dump_json()), "config": {}}
    name = (parts[1], parts[3])
    if body is not None:
        change = CommitTableRequest.model_validate_json(body)
        table: Any = SimpleNamespace(name=lambda: name)
        catalog.commit_table(table, change.requirements, change.updates)
    loaded = catalog.load_table(name)
    metadata = json.loads(loaded.metadata.model_dump_json())
    return {"metadata-location": loaded.metadata_location, "metadata": metadata, "config": {}}
