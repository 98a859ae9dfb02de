"""The command `holdfast`, also as `python -m holdfast`."""

import sys


def main() -> None:
    try:
        # Imports are here, so that Ctrl-C during one is no traceback either.
        if sys.argv[1:] == ["sidecar"]:  # it is in every pod: it does not carry the other commands in its memory
            from holdfast.cli.sidecar import sidecar

            sidecar()
        else:
            from holdfast.cli.main import app

            app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
