"""The identity and the owner of the workspace of a home in a store."""

from spark_jobs.protocol.codec import Document, Part


class NamedWorkspace(Part):
    """A workspace, as named in ``pipeline.json``."""

    url: str
    """URL of the directory."""
    id: str
    """The id in its ``workspace.json``. Another disk under the same path has another id."""


class WorkspaceDocument(Document):
    """``workspace.json`` in a workspace."""

    kind = "workspace"
    id: str
    """A random id, made once."""
    home: str
    """URL of the home whose first start made the workspace."""
