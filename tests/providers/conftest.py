import pytest

from tests.providers.compute_engine.description import Description, description


@pytest.fixture(scope="session")
def contract() -> Description:
    """Google's own description of Compute Engine."""
    return description()
