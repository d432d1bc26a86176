"""What a user says about restarts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from spark_jobs.api.checkpoints import Refusing
from spark_jobs.api.refusals import Place
from spark_jobs.protocol.restart_settings import RestartSettings, read_restart


class OnStageFailure(StrEnum):
    """What follows when a stage has failed for good: its restarts are exhausted, or no restart can heal its error."""

    FAIL = "fail"
    """The attempt ends with the stage's error, as a job of Flink's does."""
    ISOLATE = "isolate"
    """The stage stays failed until the next start, and what it feeds gets nothing more. The other stages run on and publish."""


@dataclass(frozen=True, init=False, repr=False)
class RestartStrategy:
    """How often a pipeline is started again after a failure, and how long it waits: Flink's strategies.

    Made by one of its methods; checked where a pipeline is given it. Intervals are as ``"1 hour 30 minutes"``. The failures of each
    stage are counted by themselves, and so are those of the driver. An error that no restart can heal is the last one at once, and
    failures that come while a restart is pending count as one. What follows the last failure of a stage is :class:`OnStageFailure`.
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
        """The first failure is the last."""
        return RestartStrategy("none")

    @staticmethod
    def fixed_delay(*, attempts: int = 1, delay: str = "1 second") -> "RestartStrategy":
        """So many restarts in all.

        Args:
            attempts: How many of each stage, and of the driver; one failure more is the last.
            delay: From a failure to the restart.
        """
        return RestartStrategy("fixed-delay", attempts=attempts, delay=delay)

    @staticmethod
    def failure_rate(
        *, max_failures_per_interval: int = 1, failure_rate_interval: str = "1 minute", delay: str = "1 second"
    ) -> "RestartStrategy":
        """As many restarts as are needed while failures are rare.

        Args:
            max_failures_per_interval: So many failures may come in one interval; one more is the last.
            failure_rate_interval: How long the interval is that ends with a failure.
            delay: From a failure to the restart.
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
        """Each restart after a longer time than the one before.

        Args:
            initial_backoff: From the first failure to the restart.
            max_backoff: No restart waits longer.
            backoff_multiplier: So many times longer than the one before; above 1.
            reset_backoff_threshold: Without a failure for this long after a restart, the next one is the first again. A stage must also
                have done a batch since its last failure.
            jitter_factor: From 0 to 1: by so much of itself a delay is longer or shorter, at random.
            attempts_before_reset_backoff: So many restarts in a row; one failure more is the last. None: any number, as in Flink.
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
    """The strategy, checked; see :class:`RestartStrategy`. ``place`` is the pipeline's."""
    if not isinstance(strategy, RestartStrategy):
        raise place.refused(f"restart={strategy!r} is no restart strategy.", "Write restart=RestartStrategy.fixed_delay(...).")
    return read_restart(Refusing(place, "restart"), strategy.kind, strategy.options)


RESTART_OF_UNBOUNDED = declare_restart(Place(""), RestartStrategy.exponential_delay())
"""The strategy of a pipeline with an unbounded input that declares none: Flink's default, with an end."""
