"""``python -m scripts.demo``: what ``make demo`` runs after the set-up.

Exit codes: 0 the tables are right, 1 they are not or the run failed, 2 something is missing, 130 interrupted.
"""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from scripts.demo.preflight import CannotRunError, Stopped, check_requirements, fresh

ROOT = Path(__file__).parents[2]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "demo-output", help="made anew each time (default: demo-output)")
    output: Path = parser.parse_args().output.resolve()
    console = Console(width=None if sys.stdout.isatty() else 120)
    for signal_number in _SIGNALS:
        signal.signal(signal_number, _stop)
    try:
        check_requirements(output)
        with fresh(output, console):
            from scripts.demo.run import run

            return run(console, ROOT, output)
    except CannotRunError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]The demo cannot run:[/bold red] {error}")
        return 2
    except Stopped:
        console.print("Stopped before anything was started.")
        return 130


def _stop(signal_number: int, frame: FrameType | None) -> NoReturn:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # one is enough: what follows ends by itself within seconds
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
