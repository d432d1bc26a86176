"""The pipeline of :mod:`tests.support.store_pipeline` with a source that has no end."""

from tests.support.store_pipeline import declared

pipeline = declared(bounded=False)
