"""The places of home and tables in a test: on a disk, or in a store of S3. The fixture ``bucket`` gets them."""

import pytest

ON_A_DISK, IN_A_STORE = "on a disk", "in a store"
AT_NIGHT = [pytest.mark.stores, pytest.mark.nightly]
IN_A_STORE_AT_NIGHT = [ON_A_DISK, pytest.param(IN_A_STORE, marks=AT_NIGHT)]

in_a_store_too = pytest.mark.parametrize("bucket", [ON_A_DISK, pytest.param(IN_A_STORE, marks=pytest.mark.stores)], indirect=True)
"""Runs a test on a disk, and with home and tables in a store."""
in_a_store_at_night = pytest.mark.parametrize("bucket", IN_A_STORE_AT_NIGHT, indirect=True)
"""Does the same, in a store only at night. By day the run on a disk already finds faults that do not depend on the store."""
