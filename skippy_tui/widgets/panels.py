"""Where the panels stand. Those that do not fit can be scrolled to."""

from __future__ import annotations

from textual.containers import VerticalScroll


class Panels(VerticalScroll):
    """Has a place in the order of the focus only while there is something to scroll."""

    HELP = """
### The panels
There is more of them than fits. **Up**, **Down**, **PageUp** and **PageDown** scroll, **Tab** leaves them.
"""

    def allow_focus(self) -> bool:
        return super().allow_focus() and self.max_scroll_y > 0
