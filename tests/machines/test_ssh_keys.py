"""The keys of machines: derived from one root key, or a user's own."""

import asyncssh
import pytest

from holdfast.api.core.objects import Secret
from holdfast.api.meta import Key, ObjectMeta
from holdfast.cluster.resources import SECRETS
from holdfast.machines.joining import CannotJoin
from holdfast.machines.ssh_keys import RootKey, machine_key, public_line, token_bytes, user_key
from tests.machines.join_bench import OPERATOR_NAMESPACE, ROOT_KEY, join_bench
from tests.runtime.virtual import virtual

UID, OTHER_UID = "0c5f5f9a-8f0b-4c57-9d3e-6f1d2a3b4c5d", "0c5f5f9a-8f0b-4c57-9d3e-6f1d2a3b4c5e"
# By another implementation of HKDF: an operator of tomorrow logs in to the machines of today.
KNOWN_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIzWosr2YQ/Gfyd3feN0S5OVqwj9j+q9YvLwuLN4ex7j"


def test_a_machine_has_the_same_key_after_a_restart() -> None:
    assert public_line(machine_key(ROOT_KEY, UID)) == KNOWN_KEY


def test_no_two_machines_root_keys_or_purposes_have_a_key_in_common() -> None:
    keys = {public_line(machine_key(root, uid)) for root in (ROOT_KEY, bytes(32)) for uid in (UID, OTHER_UID)}

    assert len(keys) == 4
    assert token_bytes(ROOT_KEY, UID) != token_bytes(ROOT_KEY, OTHER_UID)
    assert token_bytes(ROOT_KEY, UID) not in machine_key(ROOT_KEY, UID).export_private_key()


def secret(**data: bytes) -> Secret:
    return Secret(
        metadata=ObjectMeta(name="login", namespace="ml"), data={key.replace("_", "-"): data[key] for key in data}
    )


@pytest.mark.parametrize("algorithm", ["ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"])
@pytest.mark.parametrize("form", ["openssh", "pkcs8-pem"])
def test_a_user_may_have_a_key_of_any_sort(algorithm: str, form: str) -> None:
    key = asyncssh.generate_private_key(algorithm)

    found = user_key(secret(ssh_privatekey=key.export_private_key(form)))

    assert public_line(found) == " ".join(key.export_public_key().decode().split()[:2])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "Secret ml/login of ssh.keySecretRef has no ssh-privatekey: put the private key there"),
        ({"ssh_privatekey": b""}, "has no ssh-privatekey"),
        ({"ssh_privatekey": b"ssh-ed25519 AAAA me"}, "ssh-privatekey of Secret ml/login .* is no private key"),
        ({"ssh_privatekey": b"\xff\x00"}, "is no private key"),
        (
            {"ssh_privatekey": asyncssh.generate_private_key("ssh-ed25519").export_private_key("pkcs8-pem", "secret")},
            "no private key that can be read without a passphrase",
        ),
    ],
    ids=["none", "empty", "a public key", "no text", "with a passphrase"],
)
def test_what_is_no_usable_key_is_said(data: dict[str, bytes], words: str) -> None:
    with pytest.raises(CannotJoin, match=words) as refused:
        user_key(secret(**data))

    assert refused.value.reason == "InvalidSSHKey"


class Dice:
    """Random bytes, another every time."""

    rolled = 0

    def __call__(self, count: int) -> bytes:
        self.rolled += 1
        return bytes([self.rolled]) * count


@virtual
async def test_the_root_key_is_made_once_and_found_by_every_operator_after() -> None:
    async with join_bench() as bench:
        dice = Dice()
        first = RootKey(bench.cluster, OPERATOR_NAMESPACE, dice)
        key = await first.get()

        assert key == bytes([1]) * 32
        assert await first.get() == key
        assert await RootKey(bench.cluster, OPERATOR_NAMESPACE, dice).get() == key
        assert dice.rolled == 1


@virtual
async def test_two_operators_that_begin_at_once_have_the_same_root_key() -> None:
    async with join_bench() as bench:
        dice = Dice()
        first = RootKey(bench.cluster, OPERATOR_NAMESPACE, dice)

        class Late(RootKey):
            async def _create(self) -> Secret:
                await first.get()
                return await super()._create()

        assert await Late(bench.cluster, OPERATOR_NAMESPACE, dice).get() == await first.get() == bytes([1]) * 32


@virtual
async def test_a_root_key_that_somebody_has_cut_is_not_used() -> None:
    async with join_bench() as bench:
        await bench.secret(OPERATOR_NAMESPACE, "holdfast-machine-keys", root_key="short")

        with pytest.raises(CannotJoin, match="has 5 bytes where 32 are needed: delete the Secret"):
            await bench.joiner.metadata(bench.target)

        await bench.cluster.delete(SECRETS, Key(OPERATOR_NAMESPACE, "holdfast-machine-keys"))
        assert await bench.joiner.metadata(bench.target)
