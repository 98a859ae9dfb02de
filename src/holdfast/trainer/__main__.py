"""python -m holdfast.trainer: one worker of a training, as its environment says."""

import os
import sys

from holdfast.trainer.report import leave_permanent
from holdfast.trainer.run import Interrupt
from holdfast.trainer.settings import BadSetting, Stopped


def main() -> int:
    # One thread each, unless the user says otherwise: workers on one machine would fight over its cores.
    # numpy reads this when it is imported.
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
        leave_permanent(os.environ, message)
        return BadSetting.exit_code


if __name__ == "__main__":
    sys.exit(main())
