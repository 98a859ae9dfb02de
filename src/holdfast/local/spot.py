"""SpotInstanceJobs and their machines on one machine: no login, and no credential of a cloud."""

from random import Random

from holdfast.api.credentials import RegistryCredential
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.checkpoints.images.docker_config import credential_from_secret
from holdfast.cluster.protocol import Cluster
from holdfast.local.preemptions import preemption_requests
from holdfast.machines.clouds import OneCloud
from holdfast.machines.joining import TurnsUp
from holdfast.machines.machines import machines
from holdfast.pods.template import Defaults
from holdfast.providers.local.provider import LocalProvider
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.secrets import SecretReader
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.spotinstancejob.controller import spot_instance_job_controller
from holdfast.spotinstancejob.images import job_repository
from holdfast.spotinstancejob.repository import CheckpointRepository
from holdfast.trainingjob.reports.receiver import ReportReceiver

# Where the operator keeps what it has to find again.
NAMESPACE = "kube-system"
REPO_FIELD = "spec.checkpointConfig.checkpointRepoCredentialRef"


class NamedSecrets:
    """Credentials of repositories: the Secret that a job names, and no other."""

    def __init__(self, secrets: SecretReader) -> None:
        self._secrets = secrets

    async def credential(self, job: SpotInstanceJob) -> RegistryCredential:
        reference = job.spec.checkpoint_config.checkpoint_repo_credential_ref
        if reference is None:
            return RegistryCredential()
        repository = job_repository(job)
        secret = await self._secrets.read(reference, job.metadata.namespace, field=REPO_FIELD)
        return credential_from_secret(secret.data, repository.host, repository.repository)


def add_spot_controllers(
    operator: Operator,
    cluster: Cluster,
    provider: LocalProvider,
    *,
    defaults: Defaults,
    ledger: SharedLedger,
    receiver: ReportReceiver,
    now: Now,
    random: Random,
) -> None:
    """Add the controllers of jobs, of machines and of preemptions on command."""
    pools = MachinePools(random.random)
    made = machines(
        operator,
        cluster,
        lambda _: OneCloud(provider),
        TurnsUp(),
        pools,
        namespace=NAMESPACE,
        now=now,
        random=random,
    )
    made.add_to(operator)
    operator.add(preemption_requests(operator, provider))
    operator.add(
        spot_instance_job_controller(
            operator,
            cluster,
            defaults=defaults,
            now=now,
            pools=pools,
            repository=CheckpointRepository(
                NamedSecrets(SecretReader(cluster, operator_account="")), plain_http=defaults.plain_http_registries
            ),
            ledger=ledger,
            reports=lambda: receiver.endpoint_json,
        )
    )
