"""What `holdfast operator` runs for SpotInstanceJobs, beside their machines: the controller, and registry tokens."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import SystemRandom

from holdfast.cluster.protocol import Cluster
from holdfast.pods.template import Defaults
from holdfast.providers.gcp.endpoint import ENVIRONMENT, endpoint_at
from holdfast.providers.gcp.http import AiohttpHttp
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from holdfast.runtime.secrets import SecretReader
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.spotinstancejob.controller import spot_instance_job_controller
from holdfast.spotinstancejob.pull_secret import TokenPullSecrets
from holdfast.spotinstancejob.registry_access import RegistryAccess
from holdfast.spotinstancejob.repository import CheckpointRepository
from holdfast.trainingjob.reports.receiver import ReportReceiver


@asynccontextmanager
async def registry_access(cluster: Cluster, reader: SecretReader) -> AsyncIterator[RegistryAccess]:
    """Credentials of the jobs' repositories; connections to Google are closed at the end."""
    http = AiohttpHttp()
    try:
        token_uri = endpoint_at(os.environ.get(ENVIRONMENT, "")).token_uri
        yield RegistryAccess(cluster, reader, http, now=utc_now, random=SystemRandom(), token_uri=token_uri)
    finally:
        await http.close()


def add_spot_jobs(
    operator: Operator,
    cluster: Cluster,
    pools: MachinePools,
    access: RegistryAccess,
    receiver: ReportReceiver,
    *,
    defaults: Defaults,
    ledger: SharedLedger,
    operator_account: str,
) -> None:
    """operator_account: for messages, as namespace:name."""
    operator.add(
        spot_instance_job_controller(
            operator,
            cluster,
            defaults=defaults,
            now=utc_now,
            pools=pools,
            repository=CheckpointRepository(access, plain_http=defaults.plain_http_registries),
            ledger=ledger,
            pull_secrets=TokenPullSecrets(access, operator_account=operator_account),
            reports=lambda: receiver.endpoint_json,
        )
    )
