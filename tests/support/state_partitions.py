"""The partitions of a stage's state."""

from spark_jobs.protocol.documents import Manifest


def partitions(manifest: Manifest) -> dict[str, int]:
    """Returns for each stage the number of partitions in the files of its newest state."""
    found = {}
    for name, cut in manifest.stages.items():
        numbers = {file.path.split("/")[2] for file in cut.files if file.path.startswith("state/") and "changelog" in file.path}
        numbers |= {file.path.split("/")[2] for file in cut.files if file.path.startswith("state/") and ".zip" in file.path}
        if numbers:
            found[str(name)] = len(numbers)
    return found
