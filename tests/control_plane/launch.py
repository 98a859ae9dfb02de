"""Become a command that dies together with the process that started it, however that one ends.

Run by path with `python -I -S`, between fork and the command itself: code that runs in a forked child of a process
with threads may hang, a program of its own does not.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            sys.exit("the process that started this one is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
