"""A scroll area that follows a growing text."""

from __future__ import annotations

from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget


class GrowingWidget(Widget):
    """A widget whose size changes many times a second.

    Textual arranges the whole screen when the size of what a widget holds changes, also when that is what the
    arrangement itself has just found; here, once is enough.
    """

    virtual_size: Reactive[Size] = Reactive(Size(0, 0))


class FollowScroll(VerticalScroll, GrowingWidget, can_focus=False):
    """Stays at the end until somebody scrolls up; what fits stands at the top."""

    BLANK = True  # there is nothing to draw beside the children

    def watch_virtual_size(self) -> None:
        fits = self.virtual_size.height <= self.size.height
        if fits == self.is_anchored:
            self.anchor(not fits)
            self.refresh(layout=True)  # which is what scrolls to the end
            if fits:
                self.scroll_to(y=0, animate=False, immediate=True)
