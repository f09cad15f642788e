"""Every setting, to be seen and changed; a change takes effect as soon as it can."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from engine.config.kinds import Choice, Number, Switch, Whole
from engine.config.plan import RunPlan
from engine.config.settings import SETTINGS, TABLES, Setting, settings_of, value_of
from engine.errors import SkippyError
from skippy_tui import settings
from skippy_tui.controller import Controller
from skippy_tui.paint import shortened

NAME_WIDTH = 30  # where there is room; names give way to values
VALUE_WIDTH = 20
VALUE_NEEDS = 12  # every word that can be chosen
ARROWS_WIDTH = 4
WIDE = 70  # columns of the terminal in which names are whole


class SettingsList(OptionList):
    """Left and right move a value, Enter types one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "screen.step(-1)", "Less", show=False),
        Binding("right", "screen.step(1)", "More", show=False),
    ]


class SettingsScreen(ModalScreen[None]):
    """The settings of the controller's plan."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f2", "close", "Close"),
    ]

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._typing = ""  # the setting whose value is in the input

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="settings") as dialog:
            dialog.border_title = "settings"
            dialog.border_subtitle = "←→ change   Enter types a value   Esc closes"
            yield SettingsList(*_options(self._controller.plan, (NAME_WIDTH, VALUE_WIDTH)), compact=True)
            yield Input(compact=True)
            yield Static(id="settings-help")

    def on_mount(self) -> None:
        self.query_one(Input).display = False
        self.query_one(SettingsList).focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self._redraw)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._explain(event.option.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        setting = _setting_of(event.option.id)
        if isinstance(setting.kind, Choice | Switch):
            self.action_step(1)
            return
        self._typing = setting.name
        field = self.query_one(Input)
        field.value = settings.shown_value(self._controller.plan, setting)
        field.display = True
        field.focus()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        await self._take(self._typing, event.value.strip())

    def action_close(self) -> None:
        if self._typing:
            self._end_typing()
        else:
            self.dismiss()

    def action_step(self, direction: int) -> None:
        highlighted = self.query_one(SettingsList).highlighted
        if highlighted is not None:
            option = self.query_one(SettingsList).get_option_at_index(highlighted)
            self.run_worker(self._step(_setting_of(option.id), direction))

    async def _step(self, setting: Setting, direction: int) -> None:
        if settings.needs_new_engine(setting) and not isinstance(
            setting.kind, Choice | Switch | Number | Whole
        ):
            return
        try:
            plan = settings.stepped(self._controller.plan, setting.name, direction)
            when = await self._controller.use(plan)
        except SkippyError as error:
            self._say(str(error), "$text-error")
            return
        self._redraw()
        self._say(f"{setting.name} {settings.shown_value(plan, setting)}, {when}", "$text-success")

    async def _take(self, name: str, value: str) -> None:
        try:
            when = await self._controller.change(name, value)
        except SkippyError as error:
            self._say(str(error), "$text-error")
            return
        self._end_typing()
        self._redraw()
        self._say(f"{name} {value}, {when}", "$text-success")

    def _end_typing(self) -> None:
        self._typing = ""
        self.query_one(Input).display = False
        self.query_one(SettingsList).focus()

    def _redraw(self) -> None:
        options = self.query_one(SettingsList)
        for option in _options(self._controller.plan, _widths(options.scrollable_content_region.width)):
            if option.id is not None:
                options.replace_option_prompt(option.id, option.prompt)

    def _explain(self, option: str | None) -> None:
        setting = _setting_of(option)
        words = settings.choices_of(setting.name)
        when = "starts the engine again" if settings.needs_new_engine(setting) else "takes effect at once"
        known = f"  ({', '.join(words)})" if words else ""
        # Below 70 columns the list may hold but the beginning of a name.
        name = "" if self.size.width >= WIDE else f"{setting.name}: "
        self._say(f"{name}{setting.help}{known} – {when}", "$foreground-muted")

    def _say(self, text: str, style: str) -> None:
        self.query_one("#settings-help", Static).update(Content.styled(text, style))


def _setting_of(option: str | None) -> Setting:
    assert option is not None
    return SETTINGS[option.partition(":")[2]]


def _widths(room: int) -> tuple[int, int]:
    """Of the columns of names and of values."""
    room -= ARROWS_WIDTH
    value = min(max(room - NAME_WIDTH, VALUE_NEEDS), VALUE_WIDTH)
    return min(max(room - value, 1), NAME_WIDTH), value


def _options(plan: RunPlan, widths: tuple[int, int]) -> list[Option]:
    """What is changed most often first, then every table below its title."""
    options = [
        _heading("used most"),
        *(_option("live", plan, SETTINGS[name], widths) for name in settings.LIVE),
    ]
    for table, title in TABLES.items():
        options.append(_heading(title))
        options.extend(_option(table, plan, setting, widths) for setting in settings_of(table))
    return options


def _heading(title: str) -> Option:
    return Option(Content.styled(title, "bold $primary"), disabled=True)


def _option(table: str, plan: RunPlan, setting: Setting, widths: tuple[int, int]) -> Option:
    value = settings.shown_value(plan, setting)
    changed = value_of(plan, setting) != value_of(RunPlan(), setting)
    name_width, value_width = widths
    name = shortened(setting.name.replace("_", " "), name_width - 1)
    arrows = isinstance(setting.kind, Choice | Switch | Number | Whole)
    text = Content.assemble(
        name.ljust(name_width),
        ("‹ " if arrows else "  ", "$foreground-muted"),
        (shortened(value or "–", value_width).center(value_width), "bold $accent" if changed else ""),
        (" ›" if arrows else "  ", "$foreground-muted"),
    )
    return Option(text, id=f"{table or 'model'}:{setting.name}")
