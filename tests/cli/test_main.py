"""The command itself: its version, its help, and what shells complete."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli import operator
from holdfast.cli.main import COMMANDS, build

SCRIPTS = Path(sys.executable).parent
EXAMPLE = Path(__file__).parents[2] / "examples/trainingjob.yaml"


def said(*words: str, width: int = 80) -> str:
    """What the command prints, with that command loaded which it asks for."""
    app = build(next((word for word in words if not word.startswith("-")), ""))
    done = CliRunner().invoke(app, words, env={"COLUMNS": str(width)}, terminal_width=width)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version_is_the_packages(words: list[str]) -> None:
    assert said(*words) == f"{__version__}\n"


HEAVY = ("aiohttp", "asyncio", "cel_expr_python", "cryptography", "msgspec", "pydantic", "rich", "structlog", "yaml")
LIGHT = ["--help", "version", "--version"] + [
    f"{command} --help" for command in COMMANDS if command not in ("node", "operator", "sidecar")
]


def loaded(arguments: list[str], modules: tuple[str, ...]) -> list[str]:
    """Which of the modules a process of the command has imported when it ends."""
    code = f"""import sys
sys.argv = {["holdfast", *arguments]!r}
from holdfast.__main__ import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(" ".join(name for name in {modules!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    return done.stderr.split()


@pytest.mark.parametrize("line", LIGHT)
def test_help_and_version_load_nothing_that_only_the_work_of_a_command_needs(line: str) -> None:
    assert loaded(line.split(), HEAVY) == []


def test_validate_loads_the_rules_but_neither_the_client_nor_an_event_loop() -> None:
    arguments = ["validate", "-f", str(EXAMPLE)]
    assert loaded(arguments, ("cel_expr_python",)) == ["cel_expr_python"]
    client = (
        "aiohttp",
        "asyncio",
        "cryptography",
        "holdfast.runtime",
        "holdfast.cluster.kubernetes",
        "structlog",
        "uvloop",
    )
    assert loaded(arguments, client) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_there_and_has_help(command: str) -> None:
    assert said(command, "-h") == said(command, "--help")
    assert f"Usage: holdfast {command}" in said(command, "-h")


def test_the_help_shows_what_people_call_and_nothing_internal() -> None:
    shown = re.findall(r"^  (\w+) ", said("-h").partition("Commands:")[2], re.MULTILINE)
    assert shown == [*(name for name in COMMANDS if name != "sidecar"), "completion", "version"]
    assert "..." not in said("-h").partition("Commands:")[2]  # no summary is too long


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_name_of_an_option_is_never_cut(width: int) -> None:
    options = ["--" + name.replace("_", "-") for name in inspect.signature(operator.operator).parameters]
    assert len(options) > 20
    shown = said("operator", "-h", width=width).split()
    assert [option for option in options if option not in shown] == []


def test_what_is_no_command_is_said_in_words() -> None:
    done = CliRunner().invoke(build("mend"), ["mend"])
    assert (done.exit_code, "No such command 'mend'" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("holdfast de", ["demo", "delete", "describe"]),
        ("holdfast logs --fo", ["--follow"]),
        ("holdfast checkpoints down", ["download"]),
        ("holdfast completion f", ["fish"]),
        ("holdfast side", []),
    ],
)
def test_bash_completes_commands_and_options(line: str, expected: list[str]) -> None:
    script = f"""source <(holdfast completion bash)
        COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}
        _holdfast_completion holdfast; printf '%s\\n' "${{COMPREPLY[@]}}" """
    environment = {"PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", script], env=environment, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(expected)


@pytest.mark.parametrize(
    ("shell", "extra"), [("zsh", {}), ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})], ids=["zsh", "fish"]
)
def test_zsh_and_fish_are_answered_as_their_scripts_ask(shell: str, extra: dict[str, str]) -> None:
    assert f"_HOLDFAST_COMPLETE=complete_{shell}" in said("completion", shell)
    asked = {"_HOLDFAST_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "holdfast logs --fo", **extra}
    done = subprocess.run([SCRIPTS / "holdfast"], env=asked, capture_output=True, text=True, check=True)
    assert "--follow" in done.stdout


def test_a_command_that_is_not_asked_for_is_known_by_its_summary_alone() -> None:
    app = build("get")
    loaded = [one.name for one in app.registered_commands if one.callback and one.callback.__name__ != "_not_loaded"]
    assert loaded == ["get", None, None]  # and those of this module itself
