"""Permissions of files, also if root runs the tests."""

import ctypes
import sys

_DROP_FOR_CHILDREN = 24
"""``PR_CAPBSET_DROP``: takes a capability from all later children of this process."""
_IGNORES_PERMISSIONS = (1, 2)
"""The capabilities of root to write and to read every file."""


def obey_permissions() -> None:
    """Makes all later children of this process obey the permissions of files, as a user's processes do. Idempotent.

    An Airflow that root runs reaches its database, which another user runs, only with these capabilities: it starts before this call.
    """
    if sys.platform == "linux":
        for capability in _IGNORES_PERMISSIONS:
            ctypes.CDLL(None).prctl(_DROP_FOR_CHILDREN, capability, 0, 0, 0)
