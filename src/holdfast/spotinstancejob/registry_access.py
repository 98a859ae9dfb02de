"""The credentials of a job's repository: from the Secret that it names, or made from its service account.

For Google's registries a job need not name a Secret: a token of an hour is made for each use. The key that the token is
made from is read here alone. A node gets the token: its agent for one push, its kubelet through a pull Secret.
"""

from collections.abc import Callable
from datetime import datetime
from random import Random

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import SpotInstanceJob, is_spot_job
from holdfast.checkpoints.images.docker_config import credential_from_secret
from holdfast.checkpoints.images.errors import ImageError
from holdfast.checkpoints.images.reference import registry_address
from holdfast.checkpoints.images.target import target_repository
from holdfast.cluster.errors import NotFound, Undecodable
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import SPOT_INSTANCE_JOBS
from holdfast.providers.errors import CloudUnauthorized
from holdfast.providers.gcp.credentials import FILE, TOKEN_URI, parse_service_account
from holdfast.providers.gcp.http import Http
from holdfast.providers.gcp.tokens import is_google_registry, registry_token
from holdfast.runtime.secrets import SecretReader
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.images import backup_number, job_repository
from holdfast.spotinstancejob.repository import REPO_FIELD

ACCOUNT_FIELD = "spec.gcpCredentialsSecretRef"


class RegistryAccess:
    """Methods raise a `SecretUnavailable`, an `ImageError` or a `ProviderError`, which say what would help.

    takes_tokens: whether a registry of that host takes tokens of Google's service accounts.
    """

    def __init__(
        self,
        cluster: Cluster,
        secrets: SecretReader,
        http: Http,
        *,
        now: Callable[[], datetime],
        random: Random,
        token_uri: str = TOKEN_URI,
        takes_tokens: Callable[[str], bool] = is_google_registry,
    ) -> None:
        self._cluster = cluster
        self._secrets = secrets
        self._http = http
        self._now = now
        self._random = random
        self._token_uri = token_uri
        self._takes_tokens = takes_tokens

    async def credential(self, job: SpotInstanceJob) -> RegistryCredential:
        """For the operator itself, which lists and deletes images; anonymous where nothing else is to be had."""
        repository = job_repository(job)
        reference = job.spec.checkpoint_config.checkpoint_repo_credential_ref
        if reference is not None:
            secret = await self._secrets.read(reference, job.metadata.namespace, field=REPO_FIELD)
            return credential_from_secret(secret.data, repository.host, repository.repository)
        return await self._token(job, push=True) or RegistryCredential()

    async def pull_token(self, job: SpotInstanceJob) -> RegistryCredential | None:
        """For the nodes of restored replicas: it can only pull. None for a registry that takes no such tokens."""
        return await self._token(job, push=False)

    async def push_token(self, backup: CheckpointBackup) -> RegistryCredential | None:
        """For whoever carries out a checkpoint of a job; None for any other backup.

        Owner references and names can be forged by whoever may create CheckpointBackups. What the job's status asks
        for can't, and a token is for the repository of the job alone.
        """
        owner = backup.metadata.controller
        if owner is None or not is_spot_job(owner):
            return None
        try:
            job = await self._cluster.get(SPOT_INSTANCE_JOBS, Key(backup.metadata.namespace, owner.name))
        except (NotFound, Undecodable):
            return None
        return await self._token(job, push=True) if _is_asked_for(job, backup) else None

    async def _token(self, job: SpotInstanceJob, *, push: bool) -> RegistryCredential | None:
        if job.spec.checkpoint_config.checkpoint_repo_credential_ref is not None:
            return None
        if not self._takes_tokens(job_repository(job).host):
            return None
        reference = job.spec.gcp_credentials_secret_ref
        secret = await self._secrets.read(reference, job.metadata.namespace, field=ACCOUNT_FIELD)
        if FILE not in secret.data:
            raise CloudUnauthorized(
                f"Secret {reference.name} of {ACCOUNT_FIELD} has no key {FILE}: store the JSON key file of a service "
                "account under it"
            )
        account = parse_service_account(secret.data[FILE], token_uri=self._token_uri)
        return await registry_token(
            account, self._http, now=self._now, random=self._random, token_uri=self._token_uri, push=push
        )


def _is_asked_for(job: SpotInstanceJob, backup: CheckpointBackup) -> bool:
    """Whether the job's status asks for this checkpoint, and it goes where the job's checkpoints go."""
    meta, registry = backup.metadata, backup.spec.registry
    asked = job.status.checkpoints_in_progress if job.status is not None else ()
    wanted = {names.backup_name(job.metadata.name, each.replica, each.number) for each in asked}
    if backup_number(job, backup) is None or meta.name not in wanted:
        return False
    repository = job_repository(job)
    try:
        host = registry_address(registry.url).host
        # Each container may name a repository of its own on that host.
        targets = [target_repository(backup, each.name) for each in backup.spec.containers]
    except ImageError:
        return False
    asked_for = {(host, registry.repository), *((each.host, each.repository) for each in targets)}
    return asked_for == {(repository.host, repository.repository)}
