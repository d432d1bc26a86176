"""Permissions of files, also where root runs the tests."""

import ctypes
import sys

_DROP_FOR_CHILDREN = 24
"""``PR_CAPBSET_DROP``: takes a capability from all processes that this one will start."""
_IGNORES_PERMISSIONS = (1, 2)
"""The capabilities of root to write and to read every file."""


def obey_permissions() -> None:
    """Lets every process that this one starts from now on obey the permissions of files, as a user's does. Idempotent.

    A running Airflow of root's reaches its database, which another user runs, only with these capabilities: it is started before.
    """
    if sys.platform == "linux":
        for capability in _IGNORES_PERMISSIONS:
            ctypes.CDLL(None).prctl(_DROP_FOR_CHILDREN, capability, 0, 0, 0)
