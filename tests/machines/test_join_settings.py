"""How a template says that its machines join: keys, users, tokens; and what is asked before a machine is made."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncssh
import pytest

from holdfast.api.core.pod import ObjectReference
from holdfast.api.meta import Key
from holdfast.api.spotinstancevm import SSH, KubeadmJoinConfig
from holdfast.cluster.resources import CONFIG_MAPS
from holdfast.machines.joining import CannotJoin
from holdfast.runtime.secrets import SecretUnavailable
from tests.machines.cluster_info import ENDPOINT
from tests.machines.join_bench import JoinBench, join_bench
from tests.machines.light_machine import PORT, Fault
from tests.runtime.virtual import virtual

TOKEN = "abcdef.0123456789abcdef"
OTHER_HASH = f"sha256:{'b' * 64}"
JOIN = KubeadmJoinConfig(token_secret_ref=ObjectReference(name="join"))
LOGIN = SSH(user="ubuntu", port=PORT, key_secret_ref=ObjectReference(name="login"))


async def with_join_secret(bench: JoinBench, **data: str) -> None:
    """As a user writes it who runs `kubeadm token create --print-join-command`."""
    await bench.secret("ml", "join", token=TOKEN, **data)
    bench.change_target(kubeadm=JOIN, ssh=bench.target.ssh)
    bench.tokens = (TOKEN,)


async def with_login(bench: JoinBench, user: str = "ubuntu") -> asyncssh.SSHKey:
    key = asyncssh.generate_private_key("ssh-ed25519")
    await bench.secret("ml", "login", ssh_privatekey=key.export_private_key().decode())
    bench.change_target(
        ssh=SSH(user=user, port=PORT, key_secret_ref=ObjectReference(name="login")), kubeadm=bench.target.kubeadm
    )
    return key


@virtual
async def test_a_users_token_is_used_as_it_is_and_none_is_made() -> None:
    async with join_bench() as bench:
        await with_join_secret(bench)
        machine = await bench.boot(Fault.KUBEADM_HANGS)
        joining = asyncio.create_task(bench.join())
        await machine.kubeadm_began.wait()
        assert not await bench.has_token()

        machine.kubeadm_goes_on.set()
        await joining

        assert TOKEN in machine.inputs[0]


@virtual
async def test_a_user_may_name_endpoint_and_hash_where_the_cluster_publishes_none() -> None:
    async with join_bench() as bench:
        await bench.cluster.delete(CONFIG_MAPS, Key("kube-public", "cluster-info"))
        await with_join_secret(bench, ca_cert_hash=OTHER_HASH, control_plane_endpoint=ENDPOINT)
        bench.ca_hash = OTHER_HASH
        await bench.boot()

        await bench.join()

        assert (await bench.node()).is_ready


@pytest.mark.parametrize("user", ["ubuntu", "root"])
def test_a_user_may_have_a_key_and_an_account_of_their_own(user: str) -> None:
    @virtual
    async def join() -> None:
        async with join_bench() as bench:
            key = await with_login(bench, user)
            machine = await bench.boot()

            await bench.join()

            public = key.export_public_key().decode().split()
            assert machine.metadata["ssh-keys"] == f"{user}:{public[0]} {public[1]} {user}"
            assert all(command.startswith("sudo -n ") == (user != "root") for command in machine.commands)

    join()


@virtual
async def test_without_a_key_each_machine_has_one_of_its_own() -> None:
    async with join_bench() as bench:
        metadata = await bench.joiner.metadata(bench.target)

        assert metadata["ssh-keys"].startswith("holdfast:ssh-ed25519 AAAA")
        assert await bench.new_joiner().metadata(bench.target) == metadata


async def no_cluster_info(bench: JoinBench) -> None:
    await bench.cluster.delete(CONFIG_MAPS, Key("kube-public", "cluster-info"))


async def no_kubeconfig(bench: JoinBench) -> None:
    await bench.cluster.patch(CONFIG_MAPS, Key("kube-public", "cluster-info"), {"data": {"kubeconfig": "-"}})


async def no_join_secret(bench: JoinBench) -> None:
    bench.change_target(kubeadm=JOIN)


async def no_token(bench: JoinBench) -> None:
    await bench.secret("ml", "join", ca_cert_hash=OTHER_HASH)
    bench.change_target(kubeadm=JOIN)


async def no_login_secret(bench: JoinBench) -> None:
    bench.change_target(ssh=LOGIN)


async def no_login_key(bench: JoinBench) -> None:
    await bench.secret("ml", "login", ssh_privatekey="mine")
    bench.change_target(ssh=LOGIN)


@pytest.mark.parametrize(
    ("wrong", "reason", "words"),
    [
        (no_cluster_info, "NoClusterInfo", "there is no ConfigMap kube-public/cluster-info"),
        (no_kubeconfig, "InvalidClusterInfo", "kubeconfig in ConfigMap kube-public/cluster-info can't be read"),
        (no_join_secret, "SecretMissing", "Secret ml/join of kubeadmJoinConfig.tokenSecretRef does not exist"),
        (no_token, "InvalidToken", "has no token"),
        (no_login_secret, "SecretMissing", "Secret ml/login of ssh.keySecretRef does not exist"),
        (no_login_key, "InvalidSSHKey", "ssh-privatekey of Secret ml/login of ssh.keySecretRef is no private key"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_no_machine_could_join_with_is_said_before_one_is_made(
    wrong: Callable[[JoinBench], Awaitable[None]], reason: str, words: str
) -> None:
    @virtual
    async def ask() -> None:
        async with join_bench() as bench:
            await wrong(bench)

            with pytest.raises((CannotJoin, SecretUnavailable), match=words) as refused:
                await bench.joiner.metadata(bench.target)

            assert isinstance(refused.value, CannotJoin | SecretUnavailable)
            assert refused.value.reason == reason

    ask()
