"""Escapes foreign text. Rows, errors, documents and names may contain terminal control characters or invisible characters."""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters except tab and line feed, bidirectional controls, characters without a width, and surrogates."""


def visible(text: str) -> str:
    """Returns a text of the same length with a sign in place of each control character and each invisible character."""
    return _HIDDEN.sub(_sign, text)


def _sign(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x20:
        return chr(0x2400 + number)  # Unicode's control pictures
    return "\u2421" if number == 0x7F else "\ufffd"
