"""A model's chat template as pieces of tokens, so that conversations can be generated turn by turn."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ModelFileError
from engine.model.chat import ChatTemplate, template_of
from engine.model.file import ModelFile
from engine.model.tokenizer import Tokenizer

_USER, _ANSWER, _NEXT = "user-turn-goes-here", "answer-goes-here", "next-turn-goes-here"


@dataclass(frozen=True, slots=True)
class ChatPieces:
    """What stands between the texts of a conversation.

    `opening` comes before the first user turn, `to_answer` between a user turn and its answer, `to_user`
    between an answer and the next user turn. Both begin with `end`, with which the model ends a turn.
    """

    opening: tuple[int, ...]
    to_answer: tuple[int, ...]
    to_user: tuple[int, ...]
    end: int

    def prompt(self, question: list[int]) -> list[int]:
        """Tokens of a first question, up to where the answer begins."""
        return [*self.opening, *question, *self.to_answer]


def chat_pieces(model: ModelFile, tokenizer: Tokenizer) -> ChatPieces:
    """The pieces of a model's chat template. Raises ModelFileError if they cannot be told apart."""
    template = template_of(model)
    if template is None:
        raise ModelFileError(f"{model.name} has no chat template", hint="heads are trained on conversations")
    opening, to_answer, to_user = _between(model, template)
    written = tokenizer.bos >= 0 and opening.startswith(_show(tokenizer, tokenizer.bos))
    first = tokenizer.encode(opening, special=True, add_bos=False if written else None)
    answer, user = (tokenizer.encode(text, special=True, add_bos=False) for text in (to_answer, to_user))
    if not (answer and user and answer[0] == user[0] and tokenizer.is_end(user[0])):
        raise ModelFileError(f"the chat template of {model.name} does not end each turn with an end token")
    return ChatPieces(tuple(first), tuple(answer), tuple(user), user[0])


def _between(model: ModelFile, template: ChatTemplate) -> tuple[str, str, str]:
    messages = [
        {"role": "user", "content": _USER},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _NEXT},
    ]
    text = template.render(messages)
    opening, found_user, rest = text.partition(_USER)
    to_answer, found_answer, rest = rest.partition(_ANSWER)
    to_user, found_next, _ = rest.partition(_NEXT)
    if not (found_user and found_answer and found_next):
        raise ModelFileError(f"the chat template of {model.name} changes the texts of turns")
    return opening, to_answer, to_user


def _show(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.piece(token, special=True).decode("utf-8", "replace")
