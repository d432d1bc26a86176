"""Two hosts that share the disk of this one: each has a network of its own, and a cable to the other."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from tests.support.spark_cluster import Host

_ADDRESSES = ("198.18.0.1", "198.18.0.2")
"""Of the range for benchmarks of networks. Nothing outside of the two hosts sees them."""


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Makes the two hosts. Needs the rights of root, and iproute2."""
    names = [f"spark-jobs-{uuid4().hex[:12]}" for _ in _ADDRESSES]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, _ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", name, "link", "set", device, "up")
        first, second = (Host(address, _within(name)) for name, address in zip(names, _ADDRESSES, strict=True))
        yield first, second
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def _within(name: str) -> list[str]:
    """Returns the command that runs another one on a host. Its name is no name of this machine, whose address it has not."""
    return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname localhost && exec "$@"', "sh"]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
