"""Become a command in other control groups: join.py GROUP/cgroup.procs … -- COMMAND …

Run by path with `python -I -S`, so that nothing is left behind in the groups of the process that started it.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    split = sys.argv.index("--")
    for file in sys.argv[1:split]:
        Path(file).write_text("0")  # the one who writes
    command = sys.argv[split + 1 :]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
