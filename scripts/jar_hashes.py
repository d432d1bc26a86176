"""Compares jars from Maven repositories with the hashes that ``jars.sha256`` has of them.

The first form returns 0 if the list is there and every jar that it names is the one that the project is tested with. The second adds the
jars of a list that was refused, for a change of versions::

    python -m scripts.jar_hashes LIST
    python -m scripts.jar_hashes --record LIST
"""

import sys
from collections.abc import Iterable, Sequence
from hashlib import file_digest
from pathlib import Path

HASHES = Path(__file__).with_name("jars.sha256")


def write_list(stamp: Path, jars: Sequence[str]) -> None:
    """Lists jars in a file, and checks them before it gets its name: a set-up that is interrupted leaves none.

    Ends the process if a jar is another one. Then there is no list but ``<name>.unfinished``.
    """
    stamp.unlink(missing_ok=True)
    unfinished = stamp.with_name(f"{stamp.name}.unfinished")
    unfinished.write_text("".join(f"{jar}\n" for jar in jars))
    if wrong := wrong_jars(map(Path, jars)):
        sys.exit("\n".join(wrong))
    unfinished.replace(stamp)


def wrong_jars(jars: Iterable[Path], hashes: Path = HASHES) -> list[str]:
    """Returns a sentence for each jar that is gone, is not known, or has other bytes than the one that is known."""
    known, wrong = _known(hashes), []
    for jar in jars:
        if not jar.is_file():
            wrong.append(f"{jar} is gone.")
        elif jar.name not in known:
            wrong.append(f"{jar} is not in {hashes}: the Maven repository has another version than the project is tested with.")
        elif (found := _sha256(jar)) != known[jar.name]:
            wrong.append(
                f"{jar} is not the file that the project is tested with: its SHA-256 is {found}, and {hashes} says {known[jar.name]}."
                " Delete it, also from Ivy's cache, and look which repository it came from."
            )
    return wrong


def record(stamp: Path, hashes: Path = HASHES) -> None:
    """Adds the hashes of the jars that a list names to those that are known."""
    known = _known(hashes) | {Path(jar).name: _sha256(Path(jar)) for jar in stamp.read_text().splitlines()}
    hashes.write_text("".join(f"{sha256}  {name}\n" for name, sha256 in sorted(known.items())))


def _known(hashes: Path) -> dict[str, str]:
    lines = (line.split("  ", 1) for line in hashes.read_text().splitlines())
    return {name: sha256 for sha256, name in lines}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str]) -> int:
    if arguments[0] == "--record":
        record(Path(arguments[1]))
        return 0
    stamp = Path(arguments[0])
    jars = stamp.read_text().splitlines() if stamp.is_file() else []
    wrong = wrong_jars(map(Path, jars))
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 0 if jars and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
