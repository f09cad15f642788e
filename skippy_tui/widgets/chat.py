"""The chat: messages one below the other. It follows a growing answer until somebody scrolls up."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content

from engine.view import Request, ViewState
from skippy_tui.controller import is_shown
from skippy_tui.conversation import Conversation
from skippy_tui.widgets.follow import FollowScroll
from skippy_tui.widgets.messages import (
    AnswerMessage,
    FailureMessage,
    PromptMessage,
    RemarkMessage,
)
from skippy_tui.widgets.welcome import Welcome


class Chat(FollowScroll):
    """Messages, or the welcome while there is none."""

    def __init__(self) -> None:
        super().__init__(id="chat")
        self._answer: AnswerMessage | None = None
        self._drawn = 0  # tokens of the answer that the message has been given

    def compose(self) -> ComposeResult:
        yield Welcome()

    async def show(self, conversation: Conversation) -> None:
        """Replace everything by the turns of a chat."""
        self._answer = None
        await self.remove_children()
        if not conversation.turns:
            await self.mount(Welcome())
            return
        await self.mount_all(
            PromptMessage(turn.content) if turn.role == "user" else AnswerMessage(turn.content, turn.result)
            for turn in conversation.turns
        )
        self._follow()

    async def add_prompt(self, text: str) -> None:
        await self._welcome_away()
        await self.mount(PromptMessage(text))
        self._follow()

    async def begin_answer(self) -> None:
        """An empty answer, which grows by `draw`."""
        self._answer, self._drawn = AnswerMessage(), 0
        await self.mount(self._answer)
        self._follow()

    def draw(self, request: Request) -> None:
        """Give the growing answer the tokens that it does not have yet."""
        if self._answer is None:
            return
        if not request.tokens:
            done, total = request.prefill_done, request.prefill_total
            self._answer.tell(
                f"reading the prompt, {done} of {total} tokens …" if done < total else "thinking …"
            )
        if self._drawn >= len(request.tokens):
            return
        fresh = request.tokens[self._drawn :]
        self._drawn += len(fresh)
        self._answer.append("".join(token.text for token in fresh))

    async def end_answer(self, request: Request | None) -> None:
        """The answer grows no more."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if request is None or not is_shown(request):
            await answer.remove()
            return
        answer.append(request.text[len(answer.text) :])
        answer.finish(request.finished.result if request.finished is not None else {})

    async def add_failure(self, text: str) -> None:
        await self._welcome_away()
        await self.mount(FailureMessage(text))
        self._follow()

    async def add_remark(self, text: str | Content) -> None:
        await self._welcome_away()
        await self.mount(RemarkMessage(text))
        self._follow()

    async def remove_after_last_prompt(self, *, prompt_too: bool = False) -> None:
        """Take the last answer away, and with `prompt_too` what it answered."""
        prompts = list(self.query(PromptMessage))
        if not prompts:
            return
        children = list(self.children)
        first = children.index(prompts[-1]) + (0 if prompt_too else 1)
        for child in children[first:]:
            await child.remove()

    def draw_welcome(self, state: ViewState) -> None:
        """Show what the engine does, as long as there is no message."""
        if self.children and isinstance(self.children[0], Welcome):
            self.children[0].draw(state)

    async def _welcome_away(self) -> None:
        if self.children and isinstance(self.children[0], Welcome):
            await self.children[0].remove()

    def _follow(self) -> None:
        self.scroll_end(animate=False)
