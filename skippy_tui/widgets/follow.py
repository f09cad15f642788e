"""A scroll area that follows a growing text."""

from __future__ import annotations

from textual.containers import VerticalScroll


class FollowScroll(VerticalScroll, can_focus=False):
    """Stays at the end until somebody scrolls up; what fits stands at the top."""

    def watch_virtual_size(self) -> None:
        fits = self.virtual_size.height <= self.size.height
        if fits == self.is_anchored:
            self.anchor(not fits)
            if fits:
                self.scroll_to(y=0, animate=False, immediate=True)
