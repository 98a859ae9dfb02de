"""The Secret by which the nodes of restored replicas fetch images from Google's registries.

It holds a token of an hour, made from the job's service account: the account's key itself never reaches a node.
"""

import base64
from typing import Protocol

import msgspec

from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.checkpoints.images.docker_config import DOCKER_CONFIG
from holdfast.checkpoints.images.errors import ImageError
from holdfast.cluster.errors import AlreadyExists, Forbidden
from holdfast.cluster.resources import SECRETS
from holdfast.providers.errors import ProviderError
from holdfast.runtime.children import Blocked
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.runtime.secrets import SecretUnavailable
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.images import job_repository

# What administrators bind in the namespaces where the operator may write such Secrets.
PULL_ROLE = "holdfast-pull-secrets"


class PullTokens(Protocol):
    async def pull_token(self, job: SpotInstanceJob) -> RegistryCredential | None:
        """A credential of an hour that can only pull; None where the job's repository is not one of Google's.

        Raises a `HoldfastError` that says why there is none, and what would change that.
        """
        ...


class PullSecrets(Protocol):
    async def ensure(self, job: SpotInstanceJob, session: TrackedClient) -> str:
        """The name of the Secret with a token that is good from now on; "" where a pod needs none of ours.

        Raises `Blocked` where there can't be one.
        """
        ...


class NoPullSecrets:
    """For an operator that makes no tokens: what the job itself names has to do."""

    async def ensure(self, job: SpotInstanceJob, session: TrackedClient) -> str:
        return ""


class TokenPullSecrets:
    def __init__(self, tokens: PullTokens, *, operator_account: str) -> None:
        self._tokens = tokens
        self._operator_account = operator_account

    async def ensure(self, job: SpotInstanceJob, session: TrackedClient) -> str:
        if job.spec.checkpoint_config.checkpoint_repo_credential_ref is not None:
            return ""
        token = await self._token(job)
        if token is None:
            return ""
        name = names.pull_secret_name(job.metadata.name)
        metadata = names.child_metadata(job, name, names.job_labels(job.metadata.name))
        body = {
            "metadata": metadata,
            "type": "kubernetes.io/dockerconfigjson",
            "data": {DOCKER_CONFIG: _docker_config(job_repository(job).host, token)},
        }
        try:
            try:
                await session.create(SECRETS, body, namespace=job.metadata.namespace)
            except AlreadyExists:
                # That of an earlier job of this name would go with it.
                patch = {"metadata": {"ownerReferences": metadata["ownerReferences"]}, "data": body["data"]}
                await session.patch(SECRETS, Key(job.metadata.namespace, name), patch)
        except Forbidden:
            raise Blocked(self._missing_right(job.metadata.namespace)) from None
        return name

    async def _token(self, job: SpotInstanceJob) -> RegistryCredential | None:
        try:
            return await self._tokens.pull_token(job)
        except (SecretUnavailable, ImageError, ProviderError) as error:
            raise Blocked(f"there is no token to pull {job_repository(job)} with: {error}") from error

    def _missing_right(self, namespace: str) -> str:
        return (
            f"the operator may not write the pull Secrets of restored replicas in {namespace}: an administrator can "
            f"allow it with `kubectl create rolebinding {PULL_ROLE} --namespace={namespace} --clusterrole={PULL_ROLE} "
            f"--serviceaccount={self._operator_account}`; or name a Secret in checkpointRepoCredentialRef"
        )


def _docker_config(host: str, credential: RegistryCredential) -> str:
    login = base64.b64encode(f"{credential.username}:{credential.password}".encode()).decode()
    return base64.b64encode(msgspec.json.encode({"auths": {host: {"auth": login}}})).decode()
