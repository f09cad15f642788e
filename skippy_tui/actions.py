"""What each command does. `argument` is what was written after its name, or empty."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.plan import STRATEGIES
from engine.config.settings import nearest
from engine.errors import SkippyError, UsageError
from skippy_tui import settings
from skippy_tui.conversation import code_blocks, title_of, to_json, to_markdown
from skippy_tui.report import stats_text

if TYPE_CHECKING:
    from skippy_tui.app import SkippyApp


EXPORTS = ("markdown", "json")


async def stop(app: SkippyApp, argument: str) -> None:
    """With nothing to stop, Esc leads back: from the messages to the prompt, and out of an edit."""
    prompt = app.main.prompt
    if await app.controller.stop():
        return
    if not prompt.has_focus:
        app.main.set_focus(prompt)
    elif await app.controller.give_back():
        prompt.set_text("")
        prompt.end_edit()


async def retry(app: SkippyApp, argument: str) -> None:
    if app.controller.plan.generation.sampling.temperature <= 0:
        app.say("temperature is 0, so the answer will be the same; /temperature 0.7 varies it")
    await app.controller.retry()


async def edit(app: SkippyApp, argument: str) -> None:
    app.main.prompt.begin_edit(await app.controller.take_back())
    app.main.set_focus(app.main.prompt)


async def history(app: SkippyApp, argument: str) -> None:
    from skippy_tui.screens.history import HistoryScreen

    chosen = await app.ask_screen(HistoryScreen(app.main.prompt.earlier))
    if chosen:
        app.main.prompt.set_text(chosen)


async def copy(app: SkippyApp, argument: str) -> None:
    text = argument or _last_answer(app)
    app.copy_to_clipboard(text)
    app.say(f"copied {len(text)} characters")


async def copy_code(app: SkippyApp, argument: str) -> None:
    blocks = code_blocks(argument or _last_answer(app))
    if not blocks:
        raise SkippyError("there is no code block", hint="/copy copies the whole answer")
    app.copy_to_clipboard(blocks[-1])
    app.say(f"copied a code block of {len(blocks[-1].splitlines())} lines")


def _last_answer(app: SkippyApp) -> str:
    answer = app.controller.conversation.last("assistant")
    if answer is None or not answer.content:
        raise SkippyError("there is no answer yet", hint="ask something first")
    return answer.content


async def save(app: SkippyApp, argument: str) -> None:
    await _write(app, Path(argument), _last_answer(app))


async def export(app: SkippyApp, argument: str) -> None:
    chat = app.controller.conversation
    if not chat.turns:
        raise SkippyError("this chat is empty", hint="ask something first")
    form, _, name = argument.partition(" ")
    if form not in ("", *EXPORTS):
        if not name and not Path(form).suffix and "/" not in form:
            raise UsageError(f"there is no format {form}", hint=nearest(form, EXPORTS))
        form, name = "", argument
    if not form:
        form = "json" if name.endswith(".json") else "markdown"
    suffix = "json" if form == "json" else "md"
    slug = "-".join("".join(c if c.isalnum() else " " for c in chat.title.lower()).split())[:40] or "chat"
    path = Path(name.strip() or f"{slug}.{suffix}")
    await _write(app, path, to_json(chat) if form == "json" else to_markdown(chat))


async def _write(app: SkippyApp, path: Path, text: str) -> None:
    path = path.expanduser()
    try:
        await asyncio.to_thread(path.write_text, text, encoding="utf-8")
    except OSError as error:
        raise SkippyError(f"cannot write {path}: {error.strerror or error}") from error
    app.say(f"written to {path}")


async def stats(app: SkippyApp, argument: str) -> None:
    answer = app.controller.conversation.last("assistant")
    if answer is None or not answer.result:
        raise SkippyError("there are no figures yet", hint="ask something first")
    await app.main.chat.add_remark(stats_text(answer.result))


async def compare(app: SkippyApp, argument: str) -> None:
    from skippy_tui.screens.compare import CompareScreen

    prompt = argument
    if not prompt:
        last = app.controller.conversation.last("user")
        if last is None:
            raise SkippyError("there is no prompt to compare", hint="/compare PROMPT, or ask something first")
        prompt = last.content
    if app.controller.busy:
        raise SkippyError("an answer is still coming", hint="Esc stops it")
    await app.push_screen(CompareScreen(app.controller, prompt))


async def new(app: SkippyApp, argument: str) -> None:
    await app.controller.new_chat()


async def chats(app: SkippyApp, argument: str) -> None:
    from skippy_tui.screens.chats import ChatsScreen

    chosen = await app.ask_screen(ChatsScreen(app.controller.store, argument))
    if chosen:
        await app.controller.resume(chosen)


async def rename(app: SkippyApp, argument: str) -> None:
    await app.controller.rename(title_of(argument))
    app.say(f"this chat is now “{app.controller.conversation.title}”")


async def clear(app: SkippyApp, argument: str) -> None:
    await app.controller.clear()


async def system(app: SkippyApp, argument: str) -> None:
    if not argument:
        text = app.controller.conversation.system
        app.say(f"system message: {text}" if text else "there is no system message; /system TEXT sets one")
        return
    await app.controller.set_system(argument)
    app.say("system message set, from the next answer on")


async def show_settings(app: SkippyApp, argument: str) -> None:
    from skippy_tui.screens.settings import SettingsScreen

    await app.push_screen(SettingsScreen(app.controller))


def setter(name: str) -> Callable[[SkippyApp, str], Awaitable[None]]:
    """A command that changes one setting."""

    async def run(app: SkippyApp, argument: str) -> None:
        await _change(app, name, argument)

    return run


async def strategy(app: SkippyApp, argument: str) -> None:
    """Without an argument: the next one that needs no file."""
    if not argument:
        words = [word for word in STRATEGIES if word != "draft"]
        now = app.controller.strategy
        argument = words[(words.index(now) + 1) % len(words) if now in words else 0]
    await _change(app, "strategy", argument)


async def width(app: SkippyApp, argument: str) -> None:
    words = argument.split()
    if len(words) not in (1, 2):
        raise UsageError("/width takes the most drafts of a window, or the fewest and the most")
    plan = app.controller.plan
    if len(words) == 2:
        from engine.config.resolve import with_settings

        plan = with_settings(plan, {"window_min": words[0], "window_max": words[1]})
    else:
        plan = settings.change(plan, "window_max", words[0])
    when = await app.controller.use(plan)
    app.say(f"width {plan.speculation.window_min} to {plan.speculation.window_max}, {when}")


async def set_any(app: SkippyApp, argument: str) -> None:
    name, _, value = argument.partition(" ")
    setting = settings.find_setting(name)
    if not value.strip():
        now = settings.shown_value(app.controller.plan, setting) or "empty"
        app.say(f"{setting.name} is {now}: {setting.help}")
        return
    await _change(app, setting.name, value.strip())


async def _change(app: SkippyApp, name: str, value: str) -> None:
    when = await app.controller.change(name, value)
    shown = settings.shown_value(app.controller.plan, settings.find_setting(name))
    app.say(f"{name.replace('_', ' ')} {shown}, {when}")


async def theme(app: SkippyApp, argument: str) -> None:
    names = list(app.themes.themes)
    if not argument:
        argument = names[(names.index(app.theme) + 1) % len(names) if app.theme in names else 0]
    if argument not in names:
        raise UsageError(f"there is no theme {argument}", hint=f"known: {', '.join(names)}")
    app.theme = argument
    app.say(f"theme {app.themes.titles[argument]}")
    await asyncio.to_thread(app.controller.store.set_preference, "theme", argument)


async def tokens(app: SkippyApp, argument: str) -> None:
    app.main.toggle_tokens()


async def panels(app: SkippyApp, argument: str) -> None:
    app.main.toggle_panels()


async def rejects(app: SkippyApp, argument: str) -> None:
    from skippy_tui.screens.rejects import RejectsScreen

    request = app.controller.feed.state.request
    if request is None:
        raise SkippyError("there is no answer yet", hint="ask something first")
    if not request.rejections:
        raise SkippyError(
            "no draft of this answer has been rejected", hint="Ctrl+T shows where tokens came from"
        )
    await app.push_screen(RejectsScreen(app.controller.feed))


async def log(app: SkippyApp, argument: str) -> None:
    from skippy_tui.screens.log import LogScreen

    await app.push_screen(LogScreen(app.logbook, app.engine_log))


async def show_help(app: SkippyApp, argument: str) -> None:
    from skippy_tui.screens.help import HelpScreen

    await app.push_screen(HelpScreen(app.main.focused))


async def palette(app: SkippyApp, argument: str) -> None:
    app.action_command_palette()


async def leave(app: SkippyApp, argument: str) -> None:
    app.exit()
