"""The sensor for a pipeline's final checkpoint."""

from airflow_provider.sensors.checkpoint import CheckpointSensor


class FinalCheckpointSensor(CheckpointSensor):
    """Waits for a *final* checkpoint, which a run of bounded inputs ends with; else a :class:`CheckpointSensor`."""

    only_final = True
