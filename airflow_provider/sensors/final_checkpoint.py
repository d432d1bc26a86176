"""The sensor that waits for a final checkpoint of a pipeline."""

from airflow_provider.sensors.checkpoint import CheckpointSensor


class FinalCheckpointSensor(CheckpointSensor):
    """Waits for a *final* checkpoint: the end of a round of bounded inputs, or of a drain. Otherwise a :class:`CheckpointSensor`."""

    only_final = True
