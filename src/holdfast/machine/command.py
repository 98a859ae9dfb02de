"""What is run for a container: its command, on this machine. No image is."""

import sys
from collections.abc import Callable, Mapping, Sequence

from holdfast.machine.expansion import expand
from holdfast.machine.objects import Container, PodSpec
from holdfast.machine.trouble import PodRejected

INTERPRETERS = ("python", "python3")
OURSELVES = "holdfast"


class CommandResolver:
    """The rule, with the one image whose command is known."""

    def __init__(self, default_image: str = "", default_command: Sequence[str] = ()) -> None:
        self._default_image = default_image
        self._default_command = tuple(default_command)

    def check(self, spec: PodSpec) -> None:
        """Raises `Refused` when a container has nothing that this machine could run."""
        for container in (*spec.init_containers, *spec.containers):
            if not self._written(container):
                raise PodRejected(
                    f"container {container.name} has the image {container.image or '(none)'} and no command: this "
                    "machine runs commands, not images; write the command to run, or use a cluster",
                    reason="ImageNotRun",
                )

    def argv(
        self, container: Container, variables: Mapping[str, str], rewrite: Callable[[str], str]
    ) -> tuple[str, ...]:
        command = [expand(word, variables) for word in (*self._written(container), *container.args)]
        return tuple(own_interpreter([rewrite(word) for word in command]))

    def _written(self, container: Container) -> tuple[str, ...]:
        if not container.command and container.image and container.image == self._default_image:
            return self._default_command
        return container.command


def own_interpreter(command: list[str]) -> list[str]:
    """python means the interpreter that holdfast runs in, with what is installed there; holdfast means this one."""
    program, arguments = command[:1], command[1:]
    if program == [OURSELVES]:
        return [sys.executable, "-m", OURSELVES, *arguments]
    return [sys.executable, *arguments] if program and program[0] in INTERPRETERS else command
