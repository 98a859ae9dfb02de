"""What a machine is made with."""

import pytest

from holdfast.machines.metadata import machine_metadata

SETTINGS = {"enable-guest-attributes": "TRUE", "enable-oslogin": "FALSE", "block-project-ssh-keys": "TRUE"}


@pytest.mark.parametrize(
    ("script", "more"),
    [("", {}), ("#!/bin/sh\napt-get install kubeadm", {"startup-script": "#!/bin/sh\napt-get install kubeadm"})],
)
def test_a_machine_tells_its_host_key_and_takes_one_key_alone(script: str, more: dict[str, str]) -> None:
    metadata = machine_metadata("holdfast", "ssh-ed25519 AAAA", script)

    assert metadata == {**SETTINGS, "ssh-keys": "holdfast:ssh-ed25519 AAAA holdfast", **more}
