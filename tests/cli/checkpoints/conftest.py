"""Stores as the checkpoints' own tests have them."""

from tests.checkpoints.conftest import azure_server, backend, gcs_server, s3_server, server

__all__ = ["azure_server", "backend", "gcs_server", "s3_server", "server"]
