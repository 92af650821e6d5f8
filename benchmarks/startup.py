"""How long the command line takes to show its help, beside the import of the two libraries that it stands on.

``python -m benchmarks.startup`` runs the programs by turns, so that the machine's speed is that of all of them, and
prints the medians of their CPU time with the ratios.
"""

import os
import resource
import statistics
import subprocess
import sys

RUNS = 21

PROGRAMS = {
    "import typer, rich": ("-c", "import typer, rich"),
    "turnkeeper --help": ("-m", "turnkeeper", "--help"),
    "turnkeeper --version": ("-m", "turnkeeper", "--version"),
    "turnkeeper serve --help": ("-m", "turnkeeper", "serve", "--help"),
}
"""What is run, by name; the first is what the others are compared with."""


def measure(arguments: tuple[str, ...]) -> float:
    """Run Python once, and return the CPU time that it took, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=dict(os.environ))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for each program."""
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(RUNS + 1):
        for name, arguments in PROGRAMS.items():
            taken = measure(arguments)
            if number:  # the first run writes bytecode, and fills the caches
                seconds[name].append(taken)
    first, *_ = medians = [statistics.median(each) for each in seconds.values()]
    for name, median in zip(PROGRAMS, medians, strict=True):
        sys.stdout.write(f"{name:26} {median * 1000:7.1f} ms CPU {median / first:6.2f} x\n")


if __name__ == "__main__":
    main()
