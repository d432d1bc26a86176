"""The document of a workspace: the directory beside a home that is none itself."""

from spark_jobs.protocol.codec import Document


class WorkspaceDocument(Document):
    """``workspace.json`` in a workspace: whose it is."""

    kind = "workspace"
    home: str
    """The home's URL."""
