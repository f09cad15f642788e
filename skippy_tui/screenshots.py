"""Every screen of the app with a scripted engine, for the README (`--demo-screens DIR`) and for snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.events import Key
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from engine.client.requests import GenerateRequest
from engine.config.plan import RunPlan
from engine.config.ui import UiPlan
from engine.errors import ContextFull, EngineLost
from engine.events import Event, Notice, RequestFinished, TokensCommitted, WindowDone
from skippy_tui import demo
from skippy_tui.app import SkippyApp
from skippy_tui.conversation import Conversation, Turn
from skippy_tui.scripted import Hold, Script, ScriptedClient
from skippy_tui.simulation import START
from skippy_tui.store import Store
from skippy_tui.themes import load_themes, shipped_themes

SIZES = ((120, 40), (80, 24))
NOW = 1_790_000_000.0  # when chats were kept, in seconds since 1970
CLOCK = START + 5.0
MAIN_DEPTH = 2  # screens while no dialog is open: Textual's own and the main one
QUIET_TURNS = 3  # turns of the loop without anything to do, after which nothing comes any more

KEY_TEXTS = {"space": " ", "slash": "/"}

Act = Callable[[SkippyApp, ScriptedClient, Pilot[None]], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """A state of the app, and how it comes about."""

    name: str
    act: Act | None = None
    startup: Callable[[], Sequence[Event]] = demo.ready
    script: Script = demo.answer
    hold: Hold | None = None  # how many events of an answer come


async def press(app: SkippyApp, pilot: Pilot[None], *keys: str) -> None:
    """Press keys, each once the one before is taken; the pilot itself would wait for long after each."""
    for key in keys:
        name = key if len(key) > 1 or key.isalnum() else _character_to_key(key)
        app.post_message(Key(name, key if len(key) == 1 else KEY_TEXTS.get(key)))
        await pilot.pause(0)


async def settle(app: SkippyApp, client: ScriptedClient, pilot: Pilot[None]) -> None:
    """Wait until everything the engine has said can be seen, and what was asked for has been done."""
    quiet = 0
    for _ in range(500):
        has_dialog = len(app.screen_stack) > MAIN_DEPTH
        # A dialog has tasks of its own, which are known by their use of the processor alone.
        await pilot.pause(None if has_dialog else 0)
        app.main.draw()
        at_work = not has_dialog and any(not worker.is_finished for worker in app.workers)
        quiet = 0 if at_work or not client.is_quiet or _more_to_come(app, client) else quiet + 1
        if quiet == QUIET_TURNS:
            break
        await asyncio.sleep(0.001)
    await pilot.pause()  # what was put off until after a refresh
    for screen in app.screen_stack:
        for field in [*screen.query(Input), *screen.query(TextArea)]:
            field.cursor_blink = False
    app.main.draw()
    app.main.draw_figures()
    app.show_notices()  # now, so that none comes between here and the picture
    await pilot.pause(0)
    app.clear_notifications()
    await pilot.pause(0)
    await pilot.pause(0)


def _more_to_come(app: SkippyApp, client: ScriptedClient) -> bool:
    """Whether the app still works on an answer that has come as a whole."""
    engine = app.controller.feed.state.engine
    is_up = engine is not None and engine.state == "ready"
    return app.controller.busy and client.is_done and is_up


def make_app(scene: Scene, theme: str = "") -> tuple[SkippyApp, ScriptedClient]:
    """The app of a scene, with a clock that stands still and a store that is gone afterwards."""
    client = ScriptedClient(scene.startup(), scene.script, scene.hold)
    store = Store(":memory:", clock=lambda: NOW)
    for number, (prompt, answer) in enumerate(_EARLIER):
        turns = (Turn("user", prompt), Turn("assistant", answer))
        store.save(Conversation(id=f"chat{number}", turns=()).with_turn(turns[0]).with_turn(turns[1]))
        store.add_prompt(prompt)
    themes = load_themes([shipped_themes()])
    ui = UiPlan(theme=theme)
    app = SkippyApp(RunPlan(), lambda plan: client, store, themes, ui=ui, clock=lambda: CLOCK)
    return app, client


_EARLIER = (
    ("Why is the sea salty?", "Rivers carry dissolved minerals from rocks into it."),
    (
        "A haiku about pipelines, please",
        "Windows in the pipe\none returns, two are flying\nnothing was in vain",
    ),
    (
        "Explain speculative decoding to a ten-year-old",
        "Somebody guesses the next words, and the model checks them.",
    ),
)


async def play(scene: Scene, app: SkippyApp, client: ScriptedClient, pilot: Pilot[None]) -> None:
    """Bring the app into the state of a scene."""
    await settle(app, client, pilot)
    if scene.act is not None:
        await scene.act(app, client, pilot)
        await settle(app, client, pilot)


async def _ask(app: SkippyApp, client: ScriptedClient, pilot: Pilot[None]) -> None:
    app.submit(demo.PROMPT)
    await settle(app, client, pilot)


def _ask_and_press(*keys: str) -> Act:
    async def act(app: SkippyApp, client: ScriptedClient, pilot: Pilot[None]) -> None:
        await _ask(app, client, pilot)
        await press(app, pilot, *keys)

    return act


def _press(*keys: str) -> Act:
    async def act(app: SkippyApp, client: ScriptedClient, pilot: Pilot[None]) -> None:
        await press(app, pilot, *keys)

    return act


async def _lose_stage(app: SkippyApp, client: ScriptedClient, pilot: Pilot[None]) -> None:
    await _ask(app, client, pilot)
    client.put(*demo.unreachable())


async def _lose_engine(app: SkippyApp, client: ScriptedClient, pilot: Pilot[None]) -> None:
    await _ask(app, client, pilot)
    client.die(EngineLost("the engine was killed by signal 9", hint="ask again to start it anew"))


async def _log(app: SkippyApp, client: ScriptedClient, pilot: Pilot[None]) -> None:
    app.logbook = type(app.logbook)(clock=lambda: NOW)
    app.logbook.add("native", "llama_context: n_ctx_seq (4096) < n_ctx_train (8192)")
    app.logbook.add("notice", "warning: replies take the lane backwards")
    app.logbook.add("native", "ggml_backend_cpu: 2 threads")
    await press(app, pilot, "f12")


def _middle(events: Sequence[Event]) -> int:
    tokens = [i for i, event in enumerate(events) if isinstance(event, TokensCommitted)]
    return tokens[len(tokens) * 2 // 3] + 1


def _at_reject(events: Sequence[Event]) -> int:
    rejects = [i for i, event in enumerate(events) if isinstance(event, WindowDone) and event.rejected]
    return rejects[len(rejects) // 2] + 1


def _failing() -> list[Event]:
    from engine.events import EngineState

    detail = "the model file /models/big.gguf is truncated at tensor blk.7.ffn_up; fetch it again"
    return [*demo.starting()[:1], EngineState(at=START, state="failed", detail=detail)]


def _refusing(request: GenerateRequest) -> list[Event]:
    error = ContextFull(
        "the prompt has 5120 tokens, the context 4096", hint="shorten it or give --ctx a larger number"
    )
    notice = Notice(at=START, level="error", code=error.code, message=error.message, hint=error.hint)
    return [notice, RequestFinished(at=START, request=request.request, finish_reason="error", result={})]


SCENES: dict[str, Scene] = {
    scene.name: scene
    for scene in (
        Scene("starting", startup=demo.starting),
        Scene("nodes", startup=demo.placing),
        Scene("nodes-panels", _press("ctrl+g"), startup=demo.placing),
        Scene("idle"),
        Scene("failed", startup=_failing),
        Scene("streaming", _ask, hold=_middle),
        Scene("rejected", _ask, hold=_at_reject),
        Scene("answered", _ask),
        Scene("tokens", _ask_and_press("ctrl+t"), hold=_middle),
        Scene("panels", _ask_and_press("ctrl+g"), hold=_middle),
        Scene("rejects", _ask_and_press("ctrl+o", "down")),
        Scene("unreachable", _lose_stage, hold=_middle),
        Scene("engine-lost", _lose_engine, hold=_middle),
        Scene("refused", _ask, script=_refusing),
        Scene("stopped", _ask_and_press("escape"), hold=_middle),
        Scene("commands", _press("slash", "s")),
        Scene("help", _ask_and_press("f1")),
        Scene("palette", _ask_and_press("ctrl+p")),
        Scene("settings", _ask_and_press("f2", "down", "down", "down", "right")),
        Scene("compare", _ask_and_press("f4")),
        Scene("chats", _press("f3")),
        Scene("history", _press("ctrl+r", "e", "x")),
        Scene("log", _log),
    )
}


def write_screens(folder: Path) -> list[Path]:
    """Write every scene at both sizes as SVG, and the streaming one in every theme; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_write_all(folder))


async def _write_all(folder: Path) -> list[Path]:
    paths = []
    for scene in SCENES.values():
        for size in SIZES:
            paths.append(folder / f"{scene.name}-{size[0]}x{size[1]}.svg")
            await _write(scene, size, "", paths[-1])
    for theme in load_themes([shipped_themes()]).themes:
        paths.append(folder / f"theme-{theme}.svg")
        await _write(SCENES["streaming"], SIZES[0], theme, paths[-1])
    return paths


async def _write(scene: Scene, size: tuple[int, int], theme: str, path: Path) -> None:
    app, client = make_app(scene, theme)
    async with app.run_test(size=size) as pilot:
        await play(scene, app, client, pilot)
        path.write_text(app.export_screenshot(title="skippy"), encoding="utf-8")
