"""The deployed operator's own account answers agents with credentials, and the leader tells them where."""

import re
import shlex
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.api import credentials
from holdfast.api.reports import Endpoint, decode_endpoint
from tests.control_plane.api import JSON, Refused
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.leaks import PASSWORD, file_leaks
from tests.operator.conftest import StartOperator
from tests.operator.deployed import (
    AGENTS,
    OPERATOR,
    NodeAgentLogin,
    agent_on,
    backup_on,
    deployed,
    operator_login,
    write_status,
)
from tests.operator.process import OperatorProcess

CONFIG_MAP = f"/api/v1/namespaces/{OPERATOR}/configmaps/{credentials.ENDPOINT_CONFIG_MAP}"


@pytest.fixture(scope="module")
def agents_plane(plane: ControlPlane) -> Iterator[ControlPlane]:
    with deployed(plane, "operator", "node") as found:
        yield found


@pytest.fixture(scope="module")
async def agents(agents_plane: ControlPlane) -> AsyncIterator[tuple[NodeAgentLogin, NodeAgentLogin]]:
    nodes = Nodes(agents_plane.api)
    first, second = [await agent_on(agents_plane, name) for name in await nodes.add(2, prefix="saved")]
    yield first, second
    await nodes.remove()


@pytest.fixture
def operator(agents_plane: ControlPlane, start_operator: StartOperator) -> OperatorProcess:
    return start(agents_plane, start_operator)


def start(plane: ControlPlane, start_operator: StartOperator) -> OperatorProcess:
    """An operator that has the rights of the manifests, and no others.

    Its controllers look after another namespace: they would end the runs that a test only pretends.
    """
    return start_operator(
        plane,
        f"--namespace={OPERATOR}",
        f"--lease-namespace={OPERATOR}",
        "--reports-address=127.0.0.1",
        "--reports-port=0",
        f"--node-service-account=system:serviceaccount:{AGENTS}:{AGENTS}",
        kubeconfig=operator_login(plane),
    )


async def endpoint_of(agent: NodeAgentLogin, *, other_than: str = "") -> Endpoint:
    """Where the leading operator is, as an agent finds it."""

    async def published() -> str:
        try:
            found = await agent.api.request("GET", CONFIG_MAP)
        except Refused as refused:
            if refused.code != 404:
                raise
            return ""
        return str(found["data"]["reports.json"])

    text = await eventually(published, lambda text: text not in ("", other_than), what="the operator's address")
    return decode_endpoint(text.encode())


async def ask(endpoint: Endpoint, token: str, backup: JSON, run: int = 3) -> tuple[int, dict[str, Any]]:
    metadata = backup["metadata"]
    wanted = credentials.CredentialRequest(
        namespace=metadata["namespace"], backup=metadata["name"], uid=metadata["uid"], run=run
    )
    trust = ssl.create_default_context(cadata=endpoint.authority)
    async with (
        aiohttp.ClientSession(endpoint.url, connector=aiohttp.TCPConnector(ssl=trust)) as session,
        session.post(
            credentials.PATH, data=msgspec.json.encode(wanted), headers={"Authorization": f"Bearer {token}"}
        ) as answer,
    ):
        return answer.status, await answer.json()


async def test_an_agent_gets_the_credential_of_its_own_run_alone(
    agents_plane: ControlPlane,
    agents: tuple[NodeAgentLogin, NodeAgentLogin],
    operator: OperatorProcess,
    namespace: str,
) -> None:
    agent, other = agents
    secret = ("create", "secret", "generic", "login", f"--namespace={namespace}", "--from-literal=username=ada")
    agents_plane.kubectl(*secret, f"--from-literal=password={PASSWORD}")
    backup = await backup_on(agents_plane, namespace, agent.node, registry={"secretRef": {"name": "login"}})
    endpoint = await endpoint_of(agent)

    status, answer = await ask(endpoint, agent.operator_token, backup)
    assert (status, "the operator may not read Secret" in answer["error"]) == (403, True)
    command = re.search(r"`(kubectl [^`]*)`", answer["error"])
    assert command is not None
    assert f"--serviceaccount={OPERATOR}:holdfast-operator" in command[1]
    agents_plane.kubectl(*shlex.split(command[1])[1:])

    async def answered() -> tuple[int, dict[str, Any]]:
        return await ask(endpoint, agent.operator_token, backup)

    given = {"username": "ada", "password": PASSWORD}
    await eventually(answered, lambda got: got == (200, given), what="the credential, once the role is bound")
    status, answer = await ask(endpoint, other.operator_token, backup)
    assert (status, answer["error"].partition(": it is for ")[2]) == (403, f"the agent of node {agent.node}")
    # The agent's token for the API server is none for the operator.
    token = agents_plane.kubectl("create", "token", AGENTS, f"--namespace={AGENTS}").strip()
    assert (await ask(endpoint, token, backup))[0] == 401
    await write_status(agents_plane.api, backup, phase="Completed")
    status, answer = await ask(endpoint, agent.operator_token, backup)
    assert (status, answer["error"].endswith("is over: Completed")) == (409, True)
    assert agent.operator_token not in operator.log.read_text()
    assert file_leaks([operator.log]) == []


async def test_a_secret_of_a_namespace_that_does_not_allow_it_is_refused(
    agents_plane: ControlPlane,
    agents: tuple[NodeAgentLogin, NodeAgentLogin],
    operator: OperatorProcess,
    namespace: str,
) -> None:
    agent = agents[0]
    async with agents_plane.namespace() as home:
        bind = ("create", "rolebinding", "holdfast-secrets", f"--namespace={home}", "--clusterrole=holdfast-secrets")
        agents_plane.kubectl(*bind, f"--serviceaccount={OPERATOR}:holdfast-operator")
        secret = ("create", "secret", "generic", "login", f"--namespace={home}", "--from-literal=username=ada")
        agents_plane.kubectl(*secret, f"--from-literal=password={PASSWORD}")
        reference = {"secretRef": {"name": "login", "namespace": home}}
        backup = await backup_on(agents_plane, namespace, agent.node, registry=reference)
        endpoint = await endpoint_of(agent)

        async def answered() -> tuple[int, dict[str, Any]]:
            return await ask(endpoint, agent.operator_token, backup)

        sentence = f"list {namespace} in its annotation holdfast.dev/allow-namespaces"
        await eventually(answered, lambda got: got[0] == 403 and got[1]["error"].endswith(sentence), what="the refusal")
        annotation = f"{credentials.ALLOW_NAMESPACES}=other,{namespace}"
        agents_plane.kubectl("annotate", "secret", "login", f"--namespace={home}", annotation)
        assert await answered() == (200, {"username": "ada", "password": PASSWORD})


async def test_a_new_leader_publishes_its_own_address(
    agents_plane: ControlPlane,
    agents: tuple[NodeAgentLogin, NodeAgentLogin],
    operator: OperatorProcess,
    namespace: str,
    start_operator: StartOperator,
) -> None:
    agent = agents[0]
    before = await endpoint_of(agent)
    text = (await agents_plane.api.request("GET", CONFIG_MAP))["data"]["reports.json"]
    operator.stop()
    start(agents_plane, start_operator)
    after = await endpoint_of(agent, other_than=text)
    assert after.authority != before.authority
    backup = await backup_on(agents_plane, namespace, agent.node)
    assert await ask(after, agent.operator_token, backup) == (200, {})
