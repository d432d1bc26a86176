"""The restart settings of a pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from spark_jobs.api.checkpoints import Refusing
from spark_jobs.api.refusals import Place
from spark_jobs.protocol.restart_settings import RestartSettings, read_restart


class OnStageFailure(StrEnum):
    """The reaction to a stage that has failed permanently: its restarts are exhausted, or no restart can heal its error."""

    FAIL = "fail"
    """The attempt ends with the stage's error, as a Flink job does."""
    ISOLATE = "isolate"
    """The stage stays failed until the next start, and its consumers get no more rows. The other stages run on and publish."""


@dataclass(frozen=True, init=False, repr=False)
class RestartStrategy:
    """The number and the delays of restarts after failures, by Flink's strategies.

    Use one of its methods to create one; the pipeline checks it. Intervals are written as ``"1 hour 30 minutes"``. The failures of each
    stage and those of the driver are counted separately. An error that no restart can heal ends the restarts at once. Failures during a
    pending restart count as one. :class:`OnStageFailure` says what follows the last failure of a stage.
    """

    kind: str
    options: Mapping[str, Any] = field(hash=False)

    def __init__(self, kind: Literal["none", "fixed-delay", "failure-rate", "exponential-delay"], **options: Any) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "options", MappingProxyType(options))

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"RestartStrategy.{self.kind.replace('-', '_')}({options})"

    @staticmethod
    def none() -> "RestartStrategy":
        """Allows no restart."""
        return RestartStrategy("none")

    @staticmethod
    def fixed_delay(*, attempts: int = 1, delay: str = "1 second") -> "RestartStrategy":
        """Allows a fixed number of restarts in all.

        Args:
            attempts: Number of restarts of each stage, and of the driver. One more failure is the last.
            delay: Time from a failure to the restart.
        """
        return RestartStrategy("fixed-delay", attempts=attempts, delay=delay)

    @staticmethod
    def failure_rate(
        *, max_failures_per_interval: int = 1, failure_rate_interval: str = "1 minute", delay: str = "1 second"
    ) -> "RestartStrategy":
        """Allows any number of restarts while failures are rare.

        Args:
            max_failures_per_interval: Number of failures allowed in one interval. One more is the last.
            failure_rate_interval: Length of the interval, which ends with a failure.
            delay: Time from a failure to the restart.
        """
        return RestartStrategy(
            "failure-rate",
            max_failures_per_interval=max_failures_per_interval,
            failure_rate_interval=failure_rate_interval,
            delay=delay,
        )

    @staticmethod
    def exponential_delay(
        *,
        initial_backoff: str = "1 second",
        max_backoff: str = "1 minute",
        backoff_multiplier: float = 1.5,
        reset_backoff_threshold: str = "1 hour",
        jitter_factor: float = 0.1,
        attempts_before_reset_backoff: int | None = 20,
    ) -> "RestartStrategy":
        """Waits longer before each restart.

        Args:
            initial_backoff: Time from the first failure to the restart.
            max_backoff: Maximum time before a restart.
            backoff_multiplier: Factor from one delay to the next; above 1.
            reset_backoff_threshold: Time without a failure after which the next failure counts as the first. A stage must also have
                completed a batch since its last failure.
            jitter_factor: Random part of a delay, from 0 to 1: a delay is longer or shorter by up to this factor.
            attempts_before_reset_backoff: Number of restarts in a row; one more failure is the last. None: any number, as in Flink.
        """
        return RestartStrategy(
            "exponential-delay",
            initial_backoff=initial_backoff,
            max_backoff=max_backoff,
            backoff_multiplier=backoff_multiplier,
            reset_backoff_threshold=reset_backoff_threshold,
            jitter_factor=jitter_factor,
            attempts_before_reset_backoff=attempts_before_reset_backoff,
        )


def declare_restart(place: Place, strategy: object) -> RestartSettings:
    """Returns the checked strategy; see :class:`RestartStrategy`. ``place`` is the pipeline's."""
    if not isinstance(strategy, RestartStrategy):
        raise place.refused(f"restart={strategy!r} is not a restart strategy.", "Write restart=RestartStrategy.fixed_delay(...).")
    return read_restart(Refusing(place, "restart"), strategy.kind, strategy.options)


RESTART_OF_UNBOUNDED = declare_restart(Place(""), RestartStrategy.exponential_delay())
"""The default strategy of a pipeline with an unbounded input: Flink's default with a limit."""
