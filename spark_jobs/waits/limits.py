"""The time limits of waits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WaitLimits:
    """The time limits of a wait for something in a home. Tests use shorter ones."""

    storage_s: float = 300.0
    """How long a wait tolerates a storage that fails, and how long one look may take."""
    last_look_s: float = 30.0
    """How long the last look may take after the deadline. Its result explains the state at the deadline."""
    silence_s: float = 15.0
    """How long a driver may be invisible, because it is starting or is on its way from its answer to its end."""
    first_sign_s: float = 10.0
    """How long a worker waits for a sign of another process's driver, before the triggerer takes over."""
    driver_end_s: float = 60.0
    """How long a driver that has answered may take to end. It holds the home until then."""
    exit_s: float = 10.0
    """How long a task with its answer waits for the driver's end, so that the next task finds the home free."""
    lease_s: float = 60.0
    """How long the home may take to answer at the end of an attempt, unless the task was killed."""


LIMITS = WaitLimits()
"""The time limits outside of tests."""
