"""Text with terminal control characters and hidden characters."""

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202erow\u200b\r"


def is_shown(text: str) -> bool:
    """Returns whether a text quotes :data:`HOSTILE`, and none of its hidden characters."""
    return "row" in text and not set(HOSTILE) - set("]0;owned[2J31mrow") & set(text)
