"""Credentials and registries that fail, and what must not be seen anywhere."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api.credentials import CredentialRefused, RegistryCredential
from holdfast.cluster.protocol import Resource
from holdfast.cluster.resources import SPOT_INSTANCE_JOBS, TRAINING_JOBS
from holdfast.node.credentials import CredentialUnavailable
from holdfast.node.journal import Journal, RunRecord
from holdfast.times import format_time
from tests.checkpoints.images.archives import FILES, write_archive
from tests.checkpoints.images.registries import PASSWORD
from tests.node.kubelets import TOKEN
from tests.node.lab import AgentLab
from tests.node.test_archives_of_runs import saves_as
from tests.spotinstancejob.jobs import spot_job
from tests.trainingjobs import training_job

MEMORY = b"what was in the memory of the process"


async def test_a_credential_that_the_operator_refuses_ends_the_run_with_its_sentence(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    sentence = "the operator answers 403: run kubectl create rolebinding holdfast-secrets"
    lab.credentials.failures = [CredentialRefused(sentence)]
    async with lab.agent():
        status = await lab.ended()
    assert (status.conditions[0].reason, status.message) == ("CredentialRefused", sentence)
    assert len(lab.credentials.requests) == 1
    assert lab.leftovers() == []


async def test_an_operator_that_does_not_answer_is_asked_again(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    lab.credentials.failures = [CredentialUnavailable("no answer")] * 2
    async with lab.agent():
        assert (await lab.ended()).phase == "Completed"
    (request, *_) = lab.credentials.requests
    assert (request.backup, request.run, len(lab.credentials.requests)) == ("nightly", 1, 3)


async def test_an_operator_that_never_answers_is_told_at_the_deadline(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    await lab.begin_run(run=2, startTime=format_time(datetime.now(UTC) - timedelta(seconds=592)))
    lab.credentials.failures = [CredentialUnavailable("no answer")] * 100
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "CredentialUnavailable"
    assert status.message is not None
    assert "no answer" in status.message


async def test_without_a_secret_nobody_is_asked_and_the_registry_says_what_it_wants(lab: AgentLab) -> None:
    await lab.start()
    registry = {"url": lab.registry.address.host, "repository": lab.repository}
    await lab.begin(registry=registry)
    async with lab.agent():
        status = await lab.ended()
    assert lab.credentials.requests == []
    # Nothing says whom to trust, either.
    assert status.phase == "Failed"
    assert status.message is not None
    assert "ca.crt" in status.message


@pytest.mark.parametrize(
    ("resource", "spec", "is_asked"),
    [
        (SPOT_INSTANCE_JOBS, msgspec.to_builtins(spot_job().spec), True),
        (TRAINING_JOBS, msgspec.to_builtins(training_job().spec), False),
    ],
    ids=["SpotInstanceJob", "TrainingJob"],
)
async def test_without_a_secret_the_operator_is_asked_for_a_token_if_a_spotinstancejob_is_saved(
    lab: AgentLab, resource: Resource[Any], spec: dict[str, Any], is_asked: bool
) -> None:
    await lab.start()
    body = {"metadata": {"name": "bert"}, "spec": spec}
    job = await lab.cluster.create(resource, body, namespace=lab.namespace)
    owner = {"apiVersion": resource.api_version, "kind": resource.kind, "name": "bert", "uid": job.metadata.uid}
    registry = {"url": lab.registry.address.host, "repository": lab.repository}
    await lab.begin(registry=registry, owners=[{**owner, "controller": True}])
    async with lab.agent():
        status = await lab.ended()
    assert bool(lab.credentials.requests) == is_asked
    assert status.phase == ("Completed" if is_asked else "Failed")


async def test_a_password_that_the_registry_does_not_accept_fails_the_run(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    lab.credentials.credential_given = lab.registry.credential("wrong")
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "RegistryUnauthorized"
    assert status.message is not None
    assert "put a valid one into the Secret of registry.secretRef" in status.message
    assert lab.leftovers() == []


async def test_a_registry_without_tls_is_refused_unless_it_is_listed(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin(registry={"url": "http://registry.example:5000", "repository": "x"})
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "PlainHttpRefused"


class SeenJournal(Journal):
    """Remembers all that it wrote."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.written: list[bytes] = []

    def write(self, record: RunRecord) -> None:
        super().write(record)
        self.written.append((self.folder / record.file_name).read_bytes())


@pytest.mark.parametrize("works", [True, False])
async def test_no_credential_and_nothing_of_the_memory_is_seen_outside_of_the_registry(
    lab: AgentLab, works: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    await lab.start()
    await lab.begin()
    files = {**FILES, "checkpoint/pages-1.img": MEMORY, "spec.dump": b'{"env":"' + MEMORY + b'"}'}
    lab.kubelet.script = [saves_as(lambda path: write_archive(path, files))]
    journal = SeenJournal(lab.journal)
    if not works:
        given = lab.registry.credential()
        lab.credentials.credential_given = RegistryCredential(
            username="eve", password=PASSWORD + "x", authority=given.authority
        )
    async with lab.agent(journal=journal):
        status = await lab.ended()
    assert status.phase == ("Completed" if works else "Failed")
    out, err = capfd.readouterr()
    assert "run ended" in out + err
    seen = [out, err, msgspec.json.encode(await lab.backup()).decode(), str(await lab.events())]
    seen += [each.decode() for each in journal.written]
    assert len(seen) > 6
    for text in seen:
        for secret in (PASSWORD, TOKEN, MEMORY.decode()):
            assert secret not in text
