"""python -m holdfast.trainer: one worker of a training. The settings come from the environment."""

import os
import sys

from holdfast.trainer.interrupt import Interrupt
from holdfast.trainer.report import write_permanent_failure
from holdfast.trainer.settings import InvalidTrainerSetting, Stopped


def main() -> int:
    # One thread per worker, unless the user sets more: workers on one node would compete for its cores.
    # numpy reads the variable at import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    interrupt = Interrupt()
    interrupt.listen()
    try:
        from holdfast.trainer.run import run

        return run(os.environ, interrupt)
    except Stopped as stopped:
        return stopped.exit_code
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        message = "the reference trainer needs numpy: pip install numpy"
        sys.stderr.write(f"{message}\n")
        write_permanent_failure(os.environ, message)
        return InvalidTrainerSetting.exit_code


if __name__ == "__main__":
    sys.exit(main())
