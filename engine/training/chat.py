"""A model's chat template as token pieces, so that text can be generated turn by turn without rendering it."""

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
    between an answer and the next user turn. `end` is the token with which the model ends a turn.
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
    encode = tokenizer.encode
    written = tokenizer.bos >= 0 and opening.startswith(_show(tokenizer, tokenizer.bos))
    return ChatPieces(
        opening=tuple(encode(opening, special=True, add_bos=False if written else None)),
        to_answer=tuple(encode(to_answer, special=True, add_bos=False)),
        to_user=tuple(encode(to_user, special=True, add_bos=False)),
        end=_end_token(model, tokenizer, to_user),
    )


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


def _end_token(model: ModelFile, tokenizer: Tokenizer, to_user: str) -> int:
    """The first token after an answer, if the model ends answers with it."""
    tokens = tokenizer.encode(to_user, special=True, add_bos=False)
    if not tokens or not tokenizer.is_end(tokens[0]):
        raise ModelFileError(f"the chat template of {model.name} does not end an answer with an end token")
    return tokens[0]


def _show(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.piece(token, special=True).decode("utf-8", "replace")
