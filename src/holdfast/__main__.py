"""The command `holdfast`, also as `python -m holdfast`."""

import sys


def main() -> None:
    try:
        # Imports are here, so that Ctrl-C during one is no traceback either.
        if sys.argv[1:] == ["sidecar"]:  # it is in every pod: it does not carry the other commands in its memory
            _without_rich()
            from holdfast.cli.sidecar import sidecar

            sidecar()
        elif sys.argv[1:] == ["tensorboard-sidecar"]:
            _without_rich()
            from holdfast.cli.sidecar import tensorboard_sidecar

            tensorboard_sidecar()
        else:
            if sys.argv[1:2] == ["node"]:  # its memory is limited
                _without_rich()
            from holdfast.cli import main as command

            command.main()
    except KeyboardInterrupt:
        sys.exit(130)


def _without_rich() -> None:
    """structlog imports rich wherever it is installed: a sixth of a sidecar's memory, for colours that no log shows."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # so Python knows it as not there


if __name__ == "__main__":
    main()
