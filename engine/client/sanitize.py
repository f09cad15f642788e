"""Model text for terminals: control sequences are shown, not obeyed.

A model can write escape sequences that set the clipboard, change the title or clear the screen. Here every
control character becomes a visible sign, character by character, so that text may be cut anywhere.
"""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"


def _signs() -> dict[int, str]:
    signs = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT}
    signs[0x7F] = "\u2421"
    signs |= {code: f"<{code:02x}>" for code in range(0x80, 0xA0)}  # C1: CSI, OSC and others as one character
    # Signs that turn the direction of what follows could make a command read as another one.
    bidirectional = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    signs |= {code: f"<{unicodedata.name(chr(code)).lower()}>" for code in bidirectional}
    return signs


_SIGNS = _signs()


def visible(text: str) -> str:
    """The text with everything that a terminal could act on made visible; newline and tab stay."""
    return text.translate(_SIGNS)


def one_line(text: str) -> str:
    """The same on one line, for titles, notices and progress."""
    return " ".join(visible(text).split())
