"""Makes text visible that is not ours: rows, errors, documents and names may hold what a terminal obeys, or what nobody sees."""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters without the tab and the line feed, bidirectional controls, characters without a width, halves of characters."""


def visible(text: str) -> str:
    """Returns the text with a sign in place of each character that a terminal obeys or does not show; as long as it was."""
    return _HIDDEN.sub(_sign, text)


def _sign(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x20:
        return chr(0x2400 + number)  # Unicode's pictures of them
    return "\u2421" if number == 0x7F else "\ufffd"
