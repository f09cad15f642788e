"""The time limits of links: `engine.timeouts`, under the name that this package uses."""

from engine.timeouts import TIMEOUTS, Timeouts

__all__ = ["TIMEOUTS", "Timeouts"]
