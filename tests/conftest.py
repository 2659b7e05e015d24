"""The fixture for every test: `aerobee_broker`, a real broker as a child process."""

import gc
import logging
import os

import hypothesis
import pytest

import aerobee_client.pytest_plugin
from tests.conformance import table
from tests.conformance.cluster import table as cluster_table
from tests.support import files_in_memory, front_under_test, not_run, seeds

# No deadline per example: on a busy machine, slow is not wrong. A failure prints how to repeat it.
hypothesis.settings.register_profile(
    "aerobee",
    deadline=None,
    print_blob=True,
    derandomize=not seeds.FRESH,
    max_examples=1000 if seeds.FRESH else 50,
    # The speed of generating data depends on the machine's load.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("aerobee")

# numpy's linear algebra, which nothing here uses, starts threads in every process: a tenth of what the start of a
# command costs. Hundreds of processes inherit this.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Nothing collected is garbage: looking for it takes a quarter of the collection, and later a part of every test.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Register the conformance table, the plugin for seeds, and the fixture.

    The fixture is registered here for a source tree that is not installed; an installed package registers it itself.
    """
    front_under_test.choose()
    files_in_memory.choose()
    config.pluginmanager.register(files_in_memory, "files-in-memory")
    config.pluginmanager.register(table, "conformance-table")
    config.pluginmanager.register(cluster_table, "cluster-conformance-table")
    config.pluginmanager.register(seeds, "seeds")
    config.pluginmanager.register(not_run, "not-run")
    if not config.pluginmanager.is_registered(aerobee_client.pytest_plugin):
        config.pluginmanager.register(aerobee_client.pytest_plugin, "aerobee")


def pytest_collection_finish() -> None:
    """Look for garbage from now on, and never among modules and collected tests; and less often than Python does by
    itself, after 700 objects, which takes a twentieth of the time of tests of the store."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Take back the log levels that a test left, as a broker in its own process does: the next one counts its lines."""
    logging.getLogger().setLevel(logging.WARNING)
    for package in ("aerobee_broker", "aerobee_store"):
        logging.getLogger(package).setLevel(logging.NOTSET)
