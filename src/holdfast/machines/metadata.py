"""The metadata that a machine is made with. Everyone who may look at the machine can read it: it has no secrets."""

DEFAULT_USER = "holdfast"


def machine_metadata(user: str, public_key: str, startup_script: str) -> dict[str, str]:
    """`public_key` as a line of authorized_keys."""
    metadata = {
        "enable-guest-attributes": "TRUE",  # there the machine tells its host key
        "enable-oslogin": "FALSE",  # with OS Login the guest tells none, and takes no keys from metadata
        "block-project-ssh-keys": "TRUE",  # nobody else of the project logs in
        "ssh-keys": f"{user}:{public_key} {user}",
    }
    if startup_script:
        metadata["startup-script"] = startup_script
    return metadata
