"""The data folder is one process's at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.local.host import DataDirInUse, DataDirUnusable, default_folder, locked


def test_the_folder_is_the_users_unless_they_say_otherwise() -> None:
    assert default_folder({"HOLDFAST_DATA": "/data/holdfast"}) == Path("/data/holdfast")
    assert default_folder({"XDG_DATA_HOME": "/x"}) == Path("/x/holdfast")
    assert default_folder({}) == Path.home() / ".local" / "share" / "holdfast"


def test_a_folder_in_use_is_refused_and_named_with_its_user(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "data"),
        pytest.raises(DataDirInUse, match=f"process {os.getpid()}"),
        locked(tmp_path / "data"),
    ):
        pass
    with locked(tmp_path / "data"):
        pass


def test_a_killed_user_leaves_the_folder_free(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from holdfast.local.host import locked\n"
        "with locked(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DataDirInUse), locked(tmp_path):
            pass
        holder.kill()
    with locked(tmp_path):
        pass


def test_only_its_user_can_look_into_the_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "data"):
        assert (tmp_path / "data").stat().st_mode & 0o077 == 0
        assert (tmp_path / "data" / "lock").stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_made_is_named_with_the_option_for_another(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirUnusable, match="--data"), locked(tmp_path / "file" / "data"):
        pass
