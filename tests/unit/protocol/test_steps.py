"""Durable steps, and the observers that are called before and after them."""

import pytest

from spark_jobs.protocol.steps import Step, observed_by, step


class _Recorder:
    def __init__(self, fails: str | None = None) -> None:
        self.told: list[str] = []
        self._fails = fails

    def before(self, step: Step) -> None:
        self._tell(f"before {step.value}")

    def after(self, step: Step) -> None:
        self._tell(f"after {step.value}")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if what == self._fails:
            raise KeyboardInterrupt(what)


def test_an_observer_is_called_before_and_after_the_work() -> None:
    recorder = _Recorder()
    with observed_by(recorder), step(Step.MANIFEST_CREATE):
        recorder.told.append("work")
    assert recorder.told == ["before manifest.create", "work", "after manifest.create"]


def test_the_observer_is_not_called_after_a_step_that_fails() -> None:
    recorder = _Recorder()
    with observed_by(recorder), pytest.raises(ValueError, match="broken"), step(Step.SWEEP):
        raise ValueError("broken")
    assert recorder.told == ["before sweep"]


def test_an_exception_of_the_observer_before_a_step_prevents_the_work() -> None:
    recorder = _Recorder(fails="before publish.sink")
    with observed_by(recorder), pytest.raises(KeyboardInterrupt), step(Step.PUBLISH_SINK):
        recorder.told.append("work")
    assert recorder.told == ["before publish.sink"]


def test_an_exception_of_the_observer_after_a_step_goes_through() -> None:
    recorder = _Recorder(fails="after publish.sink")
    with observed_by(recorder), pytest.raises(KeyboardInterrupt), step(Step.PUBLISH_SINK):
        recorder.told.append("work")
    assert recorder.told == ["before publish.sink", "work", "after publish.sink"]


def test_a_step_without_an_observer_only_does_its_work() -> None:
    with step(Step.ATTEMPT_CREATE):
        done = True
    assert done


def test_the_previous_observer_returns_when_the_context_ends_even_with_an_error() -> None:
    outer, inner = _Recorder(), _Recorder()
    with observed_by(outer):
        with pytest.raises(ValueError, match="leaves"), observed_by(inner):
            raise ValueError("leaves")
        with step(Step.SWEEP):
            pass
    with step(Step.SWEEP):
        pass
    assert inner.told == []
    assert outer.told == ["before sweep", "after sweep"]


def test_steps_may_be_nested() -> None:
    recorder = _Recorder()
    with observed_by(recorder), step(Step.STAGE_VERSION), step(Step.STAGE_FILES):
        pass
    assert recorder.told == ["before stage.version", "before stage.files", "after stage.files", "after stage.version"]


def test_every_step_has_its_own_name() -> None:
    assert len({each.value for each in Step}) == len(Step.__members__)
