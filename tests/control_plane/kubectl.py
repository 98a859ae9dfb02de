"""The real kubectl."""

import os
import subprocess
from pathlib import Path

WITHIN_S = 120.0


class KubectlFailed(Exception):
    """kubectl ended with an error; `output` is all that it said."""

    def __init__(self, args: tuple[str, ...], code: int, output: str) -> None:
        super().__init__(f"kubectl {' '.join(args)} ended with exit code {code}:\n{output}")
        self.output = output


def run(program: Path, kubeconfig: Path, cache: Path, args: tuple[str, ...], text: str | None) -> str:
    """What kubectl prints when given `text` to read."""
    done = subprocess.run(
        [program, f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}", *args],
        input=text,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env={**os.environ, "KUBERC": "off"},  # the user's own preferences are none of the tests'
        check=False,
    )
    if done.returncode != 0:
        raise KubectlFailed(args, done.returncode, done.stdout + done.stderr)
    return done.stdout
