"""Where the manifests lie."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MANIFESTS = [*sorted((ROOT / "tests/fixtures/manifests").glob("*.yaml")), *sorted((ROOT / "examples").glob("*.yaml"))]


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.stem)
def manifest(request: pytest.FixtureRequest) -> Path:
    """Every manifest that we promise to accept."""
    path: Path = request.param
    return path
