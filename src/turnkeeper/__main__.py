"""``python -m turnkeeper``, and the ``turnkeeper`` command: the same."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C while it is imported ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from turnkeeper.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
