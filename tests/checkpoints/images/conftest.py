"""Real registries: one with passwords, and one with a token service."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.checkpoints.images.registries import RunningRegistry, TokenService, password_auth, running_registry
from tests.control_plane.certificates import Authority


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    folder = tmp_path_factory.mktemp("registry")
    with running_registry(folder, password_auth(folder)) as registry:
        yield registry


@pytest.fixture
def token_registry_server(
    registry_server: RunningRegistry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningRegistry, TokenService]]:
    folder = tmp_path_factory.mktemp("token-registry")
    (folder / "tokens").mkdir()
    authority = Authority(folder / "tokens", datetime.now(UTC))
    service = TokenService(authority.user("signer"), authority.server("tokens"))
    with service.running() as auth, running_registry(folder, auth) as registry:
        yield registry._replace(ca_pem=registry.ca_pem + authority.file.read_text()), service
