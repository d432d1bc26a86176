"""``python -m tests.simulation [--stops] SEED``: one schedule again, with everything that happens in it."""

import logging
import sys

from tests.simulation.schedules import Schedule
from tests.simulation.stop_schedules import StopSchedule
from tests.simulation.world import Violation

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    schedule = (StopSchedule if "--stops" in sys.argv else Schedule)(int(sys.argv[-1]))
    try:
        schedule.run()
    except Violation as violation:
        schedule.world.trace.append(f"VIOLATION: {violation}")
    print(schedule.plan, *schedule.world.trace, sep="\n")
