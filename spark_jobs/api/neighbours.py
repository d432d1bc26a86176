"""Finds the modules that a pipeline file imports from its own folder. Spark's Python workers need them, too."""

import ast
import sys
import zipfile
from collections.abc import Iterator, Mapping, Set
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType, ModuleType

from spark_jobs.api.location import PipelineLocation

_OWN = "spark_jobs"
_SKIPPED = "__pycache__"


class Neighbours:
    """The modules and packages of a pipeline's folder that its files import, directly or through each other, at any time.

    Args:
        folder: The pipeline's folder.
        found: The file of each module, or the directory of each package, by name.
        needing_us: True if one of them imports this package, which a worker need not have.
        uses_spark: True if one of them, or the pipeline's file, imports PySpark.
    """

    def __init__(self, folder: Path, found: Mapping[str, Path], *, needing_us: bool, uses_spark: bool) -> None:
        self.folder = folder
        self.found = MappingProxyType(dict(found))
        self._needing_us = needing_us
        self.uses_spark = uses_spark

    def not_importable(self, making_columns: Set[str]) -> list[ModuleType]:
        """Returns imported neighbours that a Python worker may not be able to import.

        Args:
            making_columns: Modules that create columns at module level, which needs a session.
        """
        if not self._needing_us and {name.partition(".")[0] for name in making_columns}.isdisjoint(self.found):
            return []
        return [sys.modules[name] for name in self.found if name in sys.modules]

    def write_archive(self, archive: Path) -> None:
        """Writes the neighbours into a ZIP file, with all files of the packages: a package may read data files next to its code."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for place in self.found.values():
                for path in [place] if place.is_file() else _files_below(place):
                    # without the file's time: ZIP has no years before 1980
                    file.writestr(path.relative_to(self.folder).as_posix(), path.read_bytes())


def neighbours_of(location: PipelineLocation) -> Neighbours:
    """Returns the neighbours that a pipeline's files import. The pipeline need not be loaded.

    Imports inside functions count as well. A module that is imported by a computed name counts only if it is imported already.
    """
    folder, found, needing_us, uses_spark = location.folder, dict[str, Path](), False, False
    first = [location.file] if location.file else []
    names = {str(location.module).partition(".")[0]} if location.module else set()
    names |= {path.name.partition(".")[0] for path in folder.glob("*")} & sys.modules.keys()
    open_files = [*first, *_take(names, folder, found)]
    while open_files:
        file = open_files.pop()
        names = set(_imported_names(file))
        needing_us = needing_us or (_OWN in names and file not in first)
        uses_spark = uses_spark or "pyspark" in names
        open_files += _take(names, folder, found)
    return Neighbours(folder, found, needing_us=needing_us, uses_spark=uses_spark)


def _take(names: set[str], folder: Path, found: dict[str, Path]) -> list[Path]:
    """Adds the new names that belong to the folder to ``found``. Returns the files to inspect."""
    files = []
    for name in sorted(names - found.keys() - {_OWN}):
        place = _place_in(name, folder)
        if place is not None:
            found[name] = place
            files += [place] if place.is_file() else [path for path in _files_below(place) if path.suffix == ".py"]
    return files


def _place_in(name: str, folder: Path) -> Path | None:
    """Returns the file or the directory of a top-level module if Python imports it from ``folder``; otherwise None."""
    if name in sys.modules:
        if not _is_loaded_from(name, folder):
            return None
    elif name in sys.stdlib_module_names:
        return None
    spec = PathFinder.find_spec(name, [str(folder)])
    if spec is None:
        return None
    if spec.origin is None:  # a directory without __init__.py: any other module with its name takes precedence
        everywhere = PathFinder.find_spec(name)
        return folder / name if everywhere is not None and everywhere.origin is None else None
    origin = Path(spec.origin)
    return origin.parent if origin.stem == "__init__" else origin


def _is_loaded_from(name: str, folder: Path) -> bool:
    module = sys.modules[name]
    file, paths = getattr(module, "__file__", None), list(getattr(module, "__path__", ()))
    return (file is not None and Path(file).parent in (folder, folder / name)) or str(folder / name) in paths


def _files_below(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        if path.is_file() and not any(part == _SKIPPED or part.startswith(".") for part in parts):
            yield path


def _imported_names(file: Path) -> Iterator[str]:
    """Returns the top-level names of all imports of a file, including those inside functions."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # of a file that is never imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
