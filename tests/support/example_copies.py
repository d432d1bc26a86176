"""Copies of the examples about ``live_stream``. Each has a home and tables of its own, so that tests do not end each other's pipelines."""

import shutil
from collections.abc import Mapping
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
SOON = {'interval="30 seconds"': 'interval="2 seconds"'}
"""A shorter interval of checkpoints. A test waits for none of the old code. The new code must read the old rows before its first one."""


def copy_examples(directory: Path, name: str, *files: str, changes: Mapping[str, Mapping[str, str]] | None = None) -> None:
    """Makes the copies, whose DAGs are ``NAME``, ``NAME_arrivals``, ``NAME_control`` and ``NAME_upgrade``.

    Args:
        directory: The target. Its own name is ``dags_examples``.
        name: Replaces ``live_stream``.
        files: DAG files to copy.
        changes: For each file below ``dags_examples``: the texts to replace, and their replacements.
    """
    place = directory / name
    shutil.copytree(EXAMPLES / "pipelines", place / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    for file in files:
        text = (EXAMPLES / file).read_text().replace("live_arrivals", f"{name}_arrivals")
        (place / file).write_text(text.replace("upgrade_and_rescale", f"{name}_upgrade").replace("live_stream", name))
    wanted = {file: dict(each) for file, each in (changes or {}).items()}
    wanted["pipelines/live.py"] = SOON | wanted.get("pipelines/live.py", {})
    for file, replaced in wanted.items():
        text = (place / file).read_text()
        for before, after in replaced.items():
            assert before in text, f"{file} does not say {before}"
            text = text.replace(before, after)
        (place / file).write_text(text)
