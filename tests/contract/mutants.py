"""Does the contract notice when the embedded engine breaks it?

Each mutant is a copy of the sources with one small fault; the test that it names must fail on it. One that survives
means that a behaviour of the contract has no test: `make mutants`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from .engine_mutants import ENGINE_MUTANTS
from .mutant import Mutant
from .plane_mutants import PLANE_MUTANTS

MUTANTS = (*ENGINE_MUTANTS, *PLANE_MUTANTS)

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
SUITE = "tests/contract"

# Most of a run is waiting for what a mutant never does.
AT_ONCE = 2
PATIENCE_S = 20


class Useless(Exception):
    """The run says nothing about the contract."""


def mutated(text: str, mutant: Mutant) -> str:
    """The source with the fault in it."""
    found = text.count(mutant.old)
    if found != 1:
        raise Useless(f"{mutant.path} has {found} times, not once, what is to be mutated:\n{mutant.old}")
    return text.replace(mutant.old, mutant.new)


def verdict(mutant: Mutant) -> str:
    with TemporaryDirectory(prefix="mutant-") as folder:
        sources = _copied(folder)
        target = sources / mutant.path
        target.write_text(mutated(target.read_text(), mutant))
        done = _run(sources, [mutant.test])
    # pytest's own codes: 0 is all passed, 1 some failed; a fixture that fails says nothing of the test.
    unprepared = "\nERROR " in done.stdout and "\nFAILED " not in done.stdout
    if done.returncode not in (0, 1) or unprepared:
        raise Useless(f"the mutant of {mutant.behaviour} could not be tested:\n{done.stdout}{done.stderr}")
    return "caught" if done.returncode else "survived"


def check_sound() -> None:
    """Every test that a mutant names passes on an untouched copy, and it is the copy that is tested."""
    with TemporaryDirectory(prefix="mutant-") as folder:
        sources = _copied(folder)
        imported = subprocess.run(
            [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"],
            env=_environment(sources),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        if not Path(imported.strip()).is_relative_to(sources):
            raise Useless(f"the tests would import {imported.strip()} and not the copy in {sources}")
        done = _run(sources, [mutant.test for mutant in MUTANTS])
    if done.returncode:
        raise Useless(f"tests fail without any mutation:\n{done.stdout}{done.stderr}")


def _copied(folder: str) -> Path:
    return Path(shutil.copytree(SOURCES, Path(folder).resolve() / "src"))


def _environment(sources: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"}


def _run(sources: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    chosen = [test.split("::") for test in tests]
    files = dict.fromkeys(f"{SUITE}/{file}" for file, _ in chosen)
    names = " or ".join(dict.fromkeys(name for _, name in chosen))
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={PATIENCE_S}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-k", f"embedded and not http and ({names})", *options],
        cwd=ROOT,
        env=_environment(sources),
        check=False,
        capture_output=True,
        text=True,
    )


def main() -> int:
    check_sound()
    survivors = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, found in zip(MUTANTS, pool.map(verdict, MUTANTS), strict=True):
            survivors += found == "survived"
            sys.stdout.write(f"{found:9} {mutant.behaviour:24} {mutant.path}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} caught\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
