"""What the app does: asks, stops, asks again, changes settings, keeps chats. Knows no widgets.

Everything that may take time is a coroutine; the disk is used from threads. The app shows what happens
through `ChatView`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Protocol

from engine.cli.setup import request_of
from engine.client.requests import GenerateRequest
from engine.config.plan import RunPlan
from engine.errors import SkippyError
from engine.view import Request
from skippy_tui import settings
from skippy_tui.conversation import Conversation, Turn
from skippy_tui.feed import Client, Feed
from skippy_tui.preflight import check_plan
from skippy_tui.store import Store

# Large parts of a result that a turn holds already, or that only this process can use.
_NOT_KEPT = ("text", "token_ids")


class ChatView(Protocol):
    """Where a chat is shown."""

    async def show(self, conversation: Conversation) -> None: ...
    async def add_prompt(self, text: str) -> None: ...
    async def begin_answer(self) -> None: ...
    async def end_answer(self, request: Request | None) -> None: ...
    async def add_failure(self, text: str) -> None: ...
    async def remove_after_last_prompt(self, *, prompt_too: bool = False) -> None: ...


class Controller:
    """One chat at a time, one answer at a time."""

    def __init__(
        self,
        plan: RunPlan,
        connect: Callable[[RunPlan], Client],
        store: Store,
        clock: Callable[[], float],
        *,
        attached: bool = False,
    ) -> None:
        self.plan = plan
        self.attached = attached  # to an engine of somebody else's
        self._first_plan = plan
        self.store = store
        self.conversation = Conversation(system=plan.generation.system)
        self.feed = Feed(connect(plan), clock)
        self.request_id = ""  # of the answer that grows in the chat
        self.view: ChatView
        self.on_store_fault: Callable[[SkippyError], None] = lambda error: None
        self._connect = connect
        self._task: asyncio.Task[None] | None = None
        self._before_edit: Conversation | None = None  # while its last prompt is being edited
        self._worked: RunPlan | None = None  # the last plan whose engine was ready before it was replaced
        self._changing: asyncio.Task[None] | None = None  # until the engine of a changed plan is ready

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited or comes in."""
        return self._task is not None and not self._task.done()

    @property
    def editing(self) -> bool:
        """Whether the last prompt was taken back and can be given back."""
        return self._before_edit is not None

    @property
    def strategy(self) -> str:
        """Where drafts come from: as the plan says, or the engine of somebody else until we change it."""
        model = self.feed.state.model
        if self.attached and self.plan is self._first_plan and model is not None:
            return model.strategy
        return self.plan.speculation.strategy

    # -- asking --------------------------------------------------------------------------------------

    async def ask(self, text: str) -> None:
        """Begin a turn; does not wait for its answer. Raises SkippyError while another one comes."""
        self._refuse_while_busy()
        self._before_edit = None
        self._task = asyncio.create_task(self._ask(text))

    async def retry(self) -> None:
        """Another answer to the last prompt, with another seed unless the model is greedy."""
        self._refuse_while_busy()
        prompt = self.conversation.last("user")
        if prompt is None:
            raise SkippyError("there is no prompt to answer again", hint="ask something first")
        self._before_edit = None
        sampling = self.plan.generation.sampling
        if sampling.temperature > 0:
            await self.change("seed", sampling.seed + 1)
        if self.conversation.turns[-1].role == "assistant":
            self.conversation = self.conversation.without_last("assistant")
        await self.view.remove_after_last_prompt()
        self._task = asyncio.create_task(self._answer())

    async def take_back(self) -> str:
        """Take the last prompt and its answer out of the chat, to be edited; returns the prompt."""
        self._refuse_while_busy()
        prompt = self.conversation.last("user")
        if prompt is None:
            raise SkippyError("there is no prompt to edit", hint="ask something first")
        self._before_edit = self._before_edit or self.conversation
        self.conversation = self.conversation.without_last("user")
        await self.view.remove_after_last_prompt(prompt_too=True)
        return prompt.content

    async def give_back(self) -> bool:
        """Put back what was taken to be edited. False if nothing was."""
        before, self._before_edit = self._before_edit, None
        if before is None:
            return False
        self.conversation = replace(self.conversation, turns=before.turns)
        await self.view.show(self.conversation)
        return True

    async def stop(self) -> bool:
        """Stop the answer; what came of it is kept. False if there is none."""
        if not self.busy:
            return False
        assert self._task is not None
        if self.request_id:
            await self.feed.cancel(self.request_id)
        else:
            self._task.cancel()  # the engine has not been asked yet
        return True

    async def answer_once(
        self, prompt: str, strategy: str, session: str, on_start: Callable[[str], None]
    ) -> Request:
        """An answer outside the chat, for comparisons; `on_start` gets its id. Raises SkippyError."""
        await self.feed.ready()
        request = replace(self._request([{"role": "user", "content": prompt}], session), strategy=strategy)
        on_start(request.request)
        answered = await self.feed.answer(request)
        if answered is None:
            raise SkippyError(self._refusal())
        return answered

    def _refuse_while_busy(self) -> None:
        if self.busy:
            raise SkippyError("an answer is still coming", hint="Esc stops it")

    async def _ask(self, text: str) -> None:
        self.conversation = self.conversation.with_turn(Turn("user", text))
        await self.view.add_prompt(text)
        await asyncio.to_thread(self._store, self.store.add_prompt, text)
        await self._answer()

    async def _answer(self) -> None:
        answered: Request | None = None
        failure = ""
        try:
            await self.view.begin_answer()
            if self._changing is not None:
                await asyncio.wait({self._changing})
            await self.feed.ready()
            request = self._request(self.conversation.messages(), self.conversation.id)
            self.request_id = request.request
            answered = await self.feed.answer(request)
            failure = self._failure_of(answered)
        except SkippyError as error:
            failure = str(error)
            answered = self._partial()
        except asyncio.CancelledError:
            failure = "stopped before the engine was ready"
        finally:
            self.request_id = ""
        await self.view.end_answer(answered)
        if failure:
            await self.view.add_failure(failure)
        if answered is not None and is_shown(answered):
            self.conversation = self.conversation.with_turn(_turn_of(answered))
        await self._save()

    def _request(self, messages: list[dict[str, str]], session: str) -> GenerateRequest:
        generation = replace(self.plan.generation, system=self.conversation.system)
        return request_of(replace(self.plan, generation=generation), messages, session)

    def _failure_of(self, answered: Request | None) -> str:
        if answered is None:
            return self._refusal()
        finished = answered.finished
        if finished is None or finished.finish_reason != "error":
            return ""
        error = finished.result.get("error", {})
        return str(SkippyError(error.get("message", "the answer failed"), hint=error.get("hint", "")))

    def _refusal(self) -> str:
        errors = [notice for notice in self.feed.state.notices if notice.level == "error"]
        return (
            str(SkippyError(errors[-1].message, hint=errors[-1].hint))
            if errors
            else "the engine gave no answer"
        )

    def _partial(self) -> Request | None:
        """What came of an answer whose engine was lost."""
        request = self.feed.state.request
        return request if request is not None and request.id == self.request_id else None

    # -- settings ------------------------------------------------------------------------------------

    async def change(self, name: str, value: object) -> str:
        """Change a setting; returns when it takes effect, in words. Raises SkippyError."""
        return await self.use(settings.change(self.plan, name, value))

    async def use(self, plan: RunPlan) -> str:
        """Go on with another plan; what only a new engine can take on starts one."""
        old = self.plan
        if plan == old:
            return "as it is already"
        emulation = plan.topology.emulation
        as_now = replace(old.topology, emulation=emulation)
        if (plan.model, plan.topology, plan.compute) != (old.model, as_now, old.compute):
            if self.attached:
                raise SkippyError("only the engine's own plan says this", hint="start without --attach")
            self._refuse_while_busy()
            await asyncio.to_thread(check_plan, plan)
            await self._change_engine(plan)
            return "with a new engine, which is starting"
        self.plan = plan
        if emulation != old.topology.emulation:
            if self.feed.failure is None:
                await self.feed.set_emulation(emulation)
            return "from the next answer on: its links are opened anew, so the whole prompt is read again"
        if plan.speculation != old.speculation:
            if self.feed.failure is None:
                await self.feed.set_values(asdict(plan.speculation))
            return "from the next window on"
        return "from the next answer on"

    @property
    def changing(self) -> bool:
        """Whether the engine of a changed plan is not ready yet."""
        return self._changing is not None and not self._changing.done()

    async def _change_engine(self, plan: RunPlan) -> None:
        if self.feed.is_ready:
            self._worked = self.plan
        await self._end_changing()
        self.plan = plan
        await self.feed.replace(self._connect(plan))
        self._changing = asyncio.create_task(self._go_back_if_it_fails())

    async def _go_back_if_it_fails(self) -> None:
        """An engine that does not start must not take the one away that did."""
        try:
            await self.feed.started()
        except SkippyError as error:
            worked = self._worked
            if worked is None:
                await self.view.add_failure(f"{error}; /model demo runs the default model")
                return
            self.plan = replace(
                self.plan, model=worked.model, topology=worked.topology, compute=worked.compute
            )
            await self.view.add_failure(f"{error}; the engine with {worked.model} is started again")
            await self.feed.replace(self._connect(self.plan))

    async def _end_changing(self) -> None:
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.wait({self._changing})

    async def set_system(self, text: str) -> None:
        """Another system message for this chat."""
        self.conversation = replace(self.conversation, system=text)
        await self._save()

    # -- chats ---------------------------------------------------------------------------------------

    async def new_chat(self) -> None:
        """Leave this chat for an empty one."""
        self._refuse_while_busy()
        self._leave_answer()
        self.conversation = Conversation(system=self.plan.generation.system)
        await self.view.show(self.conversation)

    def _leave_answer(self) -> None:
        self._before_edit = None
        self.feed.forget_answer()

    async def clear(self) -> None:
        """Forget the turns of this chat."""
        self._refuse_while_busy()
        self._leave_answer()
        self.conversation = replace(self.conversation, turns=())
        await self._save()
        await self.view.show(self.conversation)

    async def resume(self, id: str) -> None:
        """Go on with a chat that was kept."""
        self._refuse_while_busy()
        conversation = await asyncio.to_thread(self.store.load, id)
        if conversation is None:
            raise SkippyError("this chat is gone")
        self._leave_answer()
        self.conversation = conversation
        await self.view.show(conversation)

    async def rename(self, title: str) -> None:
        """Another title for this chat."""
        self.conversation = replace(self.conversation, title=title)
        await self._save()

    async def _save(self) -> None:
        model = self.feed.state.model
        if model is not None:
            self.conversation = replace(self.conversation, model=model.name)
        if self.conversation.turns:
            kept = await asyncio.to_thread(self._store, self.store.save, self.conversation)
            if kept is not None and kept.id == self.conversation.id:
                self.conversation = replace(self.conversation, created=kept.created, updated=kept.updated)

    def _store(self, keep: Callable[[Any], Any], value: Any) -> Any:
        """A full disk must not end a chat: it is told, and the chat goes on."""
        try:
            return keep(value)
        except SkippyError as error:
            self.on_store_fault(error)
            return None

    async def close(self) -> None:
        """Leave; called once, at the end."""
        if self.busy:
            assert self._task is not None
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._end_changing()
        await self.feed.close()
        self.store.close()


def is_shown(answered: Request) -> bool:
    """Whether an answer has a place in the chat: one that was stopped has, also before its first token."""
    stopped = answered.finished is not None and answered.finished.finish_reason == "cancelled"
    return bool(answered.tokens) or stopped


def _turn_of(answered: Request) -> Turn:
    result = answered.finished.result if answered.finished is not None else {"finish_reason": "error"}
    return Turn(
        "assistant", answered.text, {key: value for key, value in result.items() if key not in _NOT_KEPT}
    )
