"""Control characters and invisible characters are shown as text."""

import pytest

from spark_jobs.protocol.visible import visible

HIDDEN = [
    *map(chr, [0, 7, 8, 0x0D, 0x1B, 0x7F, 0x9B, 0xAD, 0x61C, 0x200B, 0x200D, 0x202E, 0x2028, 0x2066, 0xFEFF, 0xD800, 0xE0041])
]


@pytest.mark.parametrize("character", HIDDEN, ids=lambda character: f"{ord(character):x}")
def test_a_control_or_invisible_character_becomes_a_visible_sign(character: str) -> None:
    shown = visible(f"a{character}b")
    assert len(shown) == 3
    assert character not in shown
    assert shown.isprintable()


@pytest.mark.parametrize("text", ["plain", "höme", "שלום", "日本", "a\tb\nc", "👍", "e\u0301"])
def test_other_text_is_left_alone(text: str) -> None:
    assert visible(text) == text
