"""The workspace of a home in a store: which one it is, and whose."""

from spark_jobs.protocol.codec import Document, Part


class NamedWorkspace(Part):
    """A workspace, as ``pipeline.json`` names it."""

    url: str
    """Of the directory."""
    id: str
    """The one that is in its ``workspace.json``: another disk under the same path has another one."""


class WorkspaceDocument(Document):
    """``workspace.json`` in a workspace."""

    kind = "workspace"
    id: str
    """Made once, at random."""
    home: str
    """URL of the home whose first start has made it."""
