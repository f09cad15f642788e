"""From a request to prompt tokens, and from tokens back to bytes."""

from __future__ import annotations

from engine.client.requests import GenerateRequest
from engine.errors import UsageError
from engine.model.chat import template_of
from engine.model.file import ModelFile
from engine.model.tokenizer import Tokenizer


class PromptBuilder:
    """The tokenizer and the chat template of a model."""

    def __init__(self, model: ModelFile) -> None:
        self.tokenizer = Tokenizer(model.path)
        self.template = template_of(model)
        self._name = model.name

    def tokens(self, request: GenerateRequest) -> list[int]:
        """Prompt tokens of a request. Raises UsageError for an empty prompt or a model without a template."""
        if request.prompt is not None:
            tokens = self.tokenizer.encode(request.prompt, special=True)
        else:
            tokens = self._chat_tokens(request)
        if not tokens:
            raise UsageError("the prompt is empty", hint="write something to answer")
        return tokens

    def _chat_tokens(self, request: GenerateRequest) -> list[int]:
        if self.template is None:
            raise UsageError(
                f"{self._name} has no chat template", hint="use --raw to send the prompt as it is"
            )
        text = self.template.render(list(request.messages))
        # Many templates write the beginning-of-sequence token themselves; it must not stand there twice.
        bos = self.tokenizer.bos
        written = bos is not None and text.startswith(self.show(bos))
        return self.tokenizer.encode(text, special=True, add_bos=False if written else None)

    def piece(self, token: int) -> bytes:
        return self.tokenizer.piece(token)

    def show(self, token: int) -> str:
        """A token as text for people: in events, not in answers."""
        return self.tokenizer.piece(token, special=True).decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        return self.tokenizer.is_end(token)

    def close(self) -> None:
        self.tokenizer.close()
