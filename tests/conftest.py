"""What every test may use: `aerobee_broker`, a real broker as a child process."""

import pytest

import aerobee_client.testing


def pytest_configure(config: pytest.Config) -> None:
    """Registered here for a source tree that was not installed; an installed one brings the plugin by itself."""
    if not config.pluginmanager.is_registered(aerobee_client.testing):
        config.pluginmanager.register(aerobee_client.testing, "aerobee")
