"""The record codec works without the store, so that the client and the Spark workers start faster."""

from __future__ import annotations

import subprocess
import sys

import pytest

import aerobee_store


@pytest.mark.parametrize("name", aerobee_store.__all__)
def test_each_public_name_exists(name: str) -> None:
    """Every name can be imported from the package and equals the name in its module."""
    value = getattr(aerobee_store, name)
    assert value.__name__ == name
    assert value.__module__ == aerobee_store._MODULES[name]


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The error is the same as for any module."""
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        aerobee_store.Nothing  # noqa: B018
    assert set(aerobee_store.__all__) <= set(dir(aerobee_store))


def test_the_codec_is_imported_without_the_store() -> None:
    """Importing it loads the record modules and the errors, and nothing else of the package."""
    program = (
        "import sys\n"
        "import aerobee_store.records.inner_batch, aerobee_store.records.record_batch\n"
        "print(*(name for name in sys.modules if name.startswith('aerobee_store')))\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    rest = {name for name in output.split() if not name.startswith("aerobee_store.records")}
    assert rest == {"aerobee_store", "aerobee_store.deferred", "aerobee_store.errors"}
