"""The pipeline of a cold process; ``spark-jobs run`` loads it. What it reads and writes comes from the environment."""

import os
from pathlib import Path

from benchmarks.site import COLD_SETTINGS, Input, chain

_INPUT = Input(Path(os.environ["COLD_INPUT"]), files=1, rows=0)
pipeline = chain(_INPUT, Path(os.environ["COLD_OUTPUT"]), int(os.environ["COLD_STAGES"]), COLD_SETTINGS)
