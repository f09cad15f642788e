"""The app with a scripted engine, driven by keys as a person would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from textual.pilot import Pilot

from engine.client.requests import GenerateRequest
from engine.config.plan import RunPlan
from engine.config.ui import UiPlan
from engine.events import Event
from skippy_tui import demo
from skippy_tui.app import SkippyApp
from skippy_tui.screenshots import CLOCK, NOW, press, settle
from skippy_tui.scripted import Hold, Script, ScriptedClient
from skippy_tui.store import Store
from skippy_tui.themes import load_themes, shipped_themes
from skippy_tui.widgets.messages import FailureMessage, Message, RemarkMessage

# Short, since most tests care about what is done with an answer and not about its length.
ANSWER = "Yes, `it` works:\n\n```python\nprint(1)\n```\n\nThat is all.\n"


def short(request: GenerateRequest) -> list[Event]:
    """A short answer, with drafts."""
    return demo.answer(request, ANSWER)


@dataclass
class Driver:
    """A running app. `said` holds what it told in toasts, `plans` what engines were asked for."""

    app: SkippyApp
    client: ScriptedClient
    pilot: Pilot[None]
    store: Store
    plans: list[RunPlan]
    said: list[str] = field(default_factory=list)

    async def press(self, *keys: str) -> None:
        """Press keys, and wait for what comes of them."""
        await press(self.app, self.pilot, *keys)
        await self.settle()

    async def write(self, text: str) -> None:
        """Write into the prompt and press Enter, as if it had been typed with no suggestion taken."""
        self.app.main.prompt.set_text(text)
        await self.pilot.pause(0)
        self.app.main.prompt.suggestions.display = False
        await self.press("enter")

    async def settle(self) -> None:
        await settle(self.app, self.client, self.pilot)

    @property
    def messages(self) -> list[str]:
        """The texts of the chat's messages."""
        return [message.text for message in self.app.main.query(Message)]

    @property
    def failures(self) -> list[str]:
        return [str(message.content) for message in self.app.main.query(FailureMessage)]

    @property
    def remarks(self) -> list[str]:
        return [str(message.content) for message in self.app.main.query(RemarkMessage)]

    @property
    def requests(self) -> list[dict]:
        """What the engine was asked to generate."""
        return [dict(message) for message in self.client.sent if message["op"] == "generate"]

    def shown(self, selector: str) -> str:
        """The text of a Static of the top screen."""
        return str(self.app.screen.query_one(selector).content)  # type: ignore[attr-defined]


@asynccontextmanager
async def running(
    startup: Sequence[Event] | None = None,
    script: Script = short,
    hold: Hold | None = None,
    plan: RunPlan | None = None,
    size: tuple[int, int] = (80, 24),
    store: Store | None = None,
    ui: UiPlan | None = None,
    toasts: bool = False,
    startup_of: Callable[[RunPlan], Sequence[Event]] | None = None,
) -> AsyncIterator[Driver]:
    """The app, ready for a prompt unless `startup` says otherwise."""
    client = ScriptedClient(demo.ready() if startup is None else startup, script, hold)
    store = store or Store(":memory:", clock=lambda: NOW)
    plans: list[RunPlan] = []

    def connect(plan: RunPlan) -> ScriptedClient:
        plans.append(plan)
        if startup_of is not None:
            client.startup = startup_of(plan)
        return client

    themes = load_themes([shipped_themes()])
    app = SkippyApp(plan or RunPlan(), connect, store, themes, ui=ui, clock=lambda: CLOCK)
    driver: Driver | None = None
    said: list[str] = []
    say = app.notify

    def listen(message: str, **options: object) -> None:
        said.append(message)
        say(message, **options)  # type: ignore[arg-type]

    app.notify = listen  # type: ignore[method-assign, assignment]
    async with app.run_test(size=size, notifications=toasts) as pilot:
        driver = Driver(app, client, pilot, store, plans, said)
        await driver.settle()
        yield driver


def first_half(events: Sequence[Event]) -> int:
    """Hold an answer in its middle."""
    return len(events) // 2
