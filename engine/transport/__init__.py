"""Links between processes: a thin WebSocket shell around `engine.protocol`."""

from engine.transport.link import Link
from engine.transport.opener import open_link
from engine.transport.server import Server, serve_links
from engine.transport.timeouts import TIMEOUTS, Timeouts

__all__ = ["TIMEOUTS", "Link", "Server", "Timeouts", "open_link", "serve_links"]
