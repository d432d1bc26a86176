"""``python -m tests.simulation [--stops | --poisoned] SEED`` runs one schedule again, and prints all its events."""

import logging
import sys

from tests.simulation.schedules import Schedule, poisoned
from tests.simulation.stop_schedules import StopSchedule
from tests.simulation.world import Violation

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    make = StopSchedule if "--stops" in sys.argv else poisoned if "--poisoned" in sys.argv else Schedule
    schedule = make(int(sys.argv[-1]))
    try:
        schedule.run()
    except Violation as violation:
        schedule.world.trace.append(f"VIOLATION: {violation}")
    print(schedule.plan, *schedule.world.trace, sep="\n")
