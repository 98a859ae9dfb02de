"""The command `holdfast`, also as `python -m holdfast`."""

import sys


def main() -> None:
    try:
        # Imports are here, so that Ctrl-C during one is no traceback either.
        if sys.argv[1:] == ["restore"]:  # every pod starts with it: it does not wait for the other commands' imports
            from holdfast.cli.restore import restore

            restore()
        else:
            from holdfast.cli.main import app

            app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
