"""One prompt, one answer, as text or as JSON."""

from __future__ import annotations

import sys
from typing import Any

import orjson

from engine.cli.errors import print_error
from engine.cli.interrupts import Interrupts
from engine.cli.output import AnswerWriter
from engine.cli.session import Session
from engine.cli.setup import FrontEnd, request_of
from engine.client.requests import GenerateRequest
from engine.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, SkippyError, reported_error
from engine.view import Request


async def run_one_shot(front_end: FrontEnd, prompt: str) -> int:
    """Answer one prompt; returns the exit code. Raises SkippyError if the engine cannot be started."""
    with Interrupts() as interrupts:
        writer = None if front_end.json else AnswerWriter(sys.stdout)
        session = front_end.session(interrupts, writer)
        try:
            await session.open()
            request = request_of(front_end.plan, [{"role": "user", "content": prompt}], session="one-shot")
            return await _answer(front_end, session, request, interrupts, writer)
        finally:
            await session.client.close()


async def _answer(
    front_end: FrontEnd,
    session: Session,
    request: GenerateRequest,
    interrupts: Interrupts,
    writer: AnswerWriter | None,
) -> int:
    failure: SkippyError | None = None
    try:
        await session.answer(request)
    except SkippyError as error:
        failure = error
    finally:
        if writer is not None:
            writer.end_line()
    answered = session.state.request
    if front_end.json:
        print(orjson.dumps(_json_result(answered, failure)).decode())
    if interrupts.asked:
        print_error(front_end.program, "interrupted")
        return EXIT_INTERRUPTED
    if failure is not None:
        raise failure
    return _exit_code(session)


def _exit_code(session: Session) -> int:
    """Of an answer that ended; what was wrong has been printed as a notice."""
    request, errors = session.state.request, [n for n in session.state.notices if n.level == "error"]
    if request is not None and request.finished is not None and request.finished.finish_reason != "error":
        return EXIT_OK
    return reported_error("", code=errors[-1].code).exit_code if errors else EXIT_FAILED


def _json_result(request: Request | None, failure: SkippyError | None) -> dict[str, Any]:
    """The engine's result; of an answer that was cut off, at least what was received."""
    received: dict[str, Any] = {"text": "", "token_ids": [], "finish_reason": "error"}
    if request is not None:
        received = {
            "text": request.text,
            "token_ids": [token.id for token in request.tokens],
            "finish_reason": request.finished.finish_reason if request.finished is not None else "error",
        }
    if failure is not None:
        received["error"] = {"code": failure.code, "message": failure.message, "hint": failure.hint}
    result = request.finished.result if request is not None and request.finished is not None else {}
    return {**received, **result}
