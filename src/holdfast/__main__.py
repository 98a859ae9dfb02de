"""The command `holdfast`, also as `python -m holdfast`."""

import sys


def main() -> None:
    try:
        from holdfast.cli.main import app  # here, so that Ctrl-C during the import is no traceback either

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
