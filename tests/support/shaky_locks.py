"""A driver at work whose locks a test makes unreadable for a while, as a mount that does not answer does."""

from contextlib import ExitStack
from pathlib import Path

from tests.support.command_line import UsedHome


class ShakyLocks:
    """The locks of a home in which this process is the driver while the context is open."""

    def __init__(self, home: UsedHome) -> None:
        self._home, self._driver = home, ExitStack()
        self._locks, self._aside = home.directory / "home/work", home.directory / "aside"

    def __enter__(self) -> "ShakyLocks":
        self._driver.enter_context(self._home.driver())
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.close()

    @property
    def are_away(self) -> bool:
        return self._aside.exists()

    def go_away(self) -> None:
        """Makes the locks unreadable. This process gives its own lock up, because it would not read its file."""
        self._driver.close()
        take_away(self._locks, self._aside)

    def come_back(self) -> None:
        """Makes the locks readable, with the driver at work."""
        bring_back(self._locks, self._aside)
        self._driver.enter_context(self._home.driver())


def take_away(locks: Path, aside: Path) -> None:
    """Makes a directory of locks unreadable: another file has its name."""
    locks.rename(aside)
    locks.write_text("no directory")


def bring_back(locks: Path, aside: Path) -> None:
    """Makes it readable again."""
    locks.unlink()
    aside.rename(locks)
