"""Kinds of values: how one is read from a flag, checked, and described in the JSON Schema.

`parse` takes the text of a flag, `check` a value that is already typed (TOML, JSON, or our own code); both
return the value as a plan holds it and raise ValueError with the end of a sentence: "must be ...".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

Schema = dict[str, Any]


class Kind(Protocol):
    """What a setting may hold."""

    @property
    def metavar(self) -> str:
        """How the value is written in help texts."""

    @property
    def allowed(self) -> str:
        """What values there are, in words: `a whole number between 1 and 64`."""

    def parse(self, text: str) -> Any:
        """The value that the text of a flag stands for."""

    def check(self, value: Any) -> Any:
        """The same value, as a plan holds it."""

    def schema(self) -> Schema:
        """JSON Schema of the value."""


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return close[0] if close else ""


def _bounds(minimum: float, maximum: float | None) -> str:
    return (
        f", {_number(minimum)} or more"
        if maximum is None
        else f" between {_number(minimum)} and {_number(maximum)}"
    )


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.15g}"


@dataclass(frozen=True)
class Whole:
    """A whole number within limits, both included."""

    minimum: int = 0
    maximum: int | None = None
    metavar: str = "N"

    def parse(self, text: str) -> int:
        try:
            return self.check(int(text))
        except ValueError as error:
            raise ValueError(f"must be {self.allowed}, not {text!r}") from error

    def check(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be {self.allowed}, not {value!r}")
        if value < self.minimum or (self.maximum is not None and value > self.maximum):
            raise ValueError(f"must be {self.allowed}, not {value}")
        return value

    def schema(self) -> Schema:
        limits = {} if self.maximum is None else {"maximum": self.maximum}
        return {"type": "integer", "minimum": self.minimum, **limits}

    @property
    def allowed(self) -> str:
        return f"a whole number{_bounds(self.minimum, self.maximum)}"


@dataclass(frozen=True)
class Number:
    """A finite number within limits, both included."""

    minimum: float = 0.0
    maximum: float | None = None
    metavar: str = "X"

    def parse(self, text: str) -> float:
        try:
            return self.check(float(text))
        except ValueError as error:
            raise ValueError(f"must be {self.allowed}, not {text!r}") from error

    def check(self, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"must be {self.allowed}, not {value!r}")
        number = float(value)
        highest = float("inf") if self.maximum is None else self.maximum
        # Written so that NaN, and an infinity without a limit, fail.
        if not (self.minimum <= number <= highest and number != float("inf")):
            raise ValueError(f"must be {self.allowed}, not {value!r}")
        return number

    def schema(self) -> Schema:
        limits = {} if self.maximum is None else {"maximum": self.maximum}
        return {"type": "number", "minimum": self.minimum, **limits}

    @property
    def allowed(self) -> str:
        return f"a number{_bounds(self.minimum, self.maximum)}"


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    metavar: str = "NAME"

    @property
    def allowed(self) -> str:
        return f"one of {', '.join(self.words)}"

    def parse(self, text: str) -> str:
        return self.check(text)

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            meant = closest(value, self.words) if isinstance(value, str) else ""
            hint = f"; did you mean {meant}?" if meant else ""
            raise ValueError(f"must be {self.allowed}, not {value!r}{hint}")
        return value

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Switch:
    """On or off."""

    metavar: str = ""
    allowed: str = "true or false"

    def parse(self, text: str) -> bool:
        words = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
        if text.lower() not in words:
            raise ValueError(f"must be on or off, not {text!r}")
        return words[text.lower()]

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"must be {self.allowed}, not {value!r}")
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text:
    """Any text. With `is_file`, a path: the resolver makes it absolute."""

    metavar: str = "TEXT"
    is_file: bool = False

    @property
    def allowed(self) -> str:
        return "a file name" if self.is_file else "a text"

    def parse(self, text: str) -> str:
        return text

    def check(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be {self.allowed}, not {value!r}")
        return value

    def schema(self) -> Schema:
        return {"type": "string"}


@dataclass(frozen=True)
class Url:
    """The address of a stage or node."""

    metavar: str = "ws://HOST:PORT"
    allowed: str = "a URL that begins with ws:// or wss://"

    def parse(self, text: str) -> str:
        return self.check(text)

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value.startswith(("ws://", "wss://")):
            raise ValueError(f"must begin with ws:// or wss://, not {value!r}")
        return value

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^wss?://"}


@dataclass(frozen=True)
class Items:
    """Several values of one kind. As a flag: separated by commas, or with `repeated` the flag given again."""

    item: Kind
    repeated: bool = False
    ascending: bool = False

    @property
    def allowed(self) -> str:
        order = ", ascending" if self.ascending else ""
        return f"a list, each item {self.item.allowed}{order}"

    @property
    def metavar(self) -> str:
        return self.item.metavar if self.repeated else f"{self.item.metavar}[,{self.item.metavar}...]"

    def parse(self, text: str) -> tuple[Any, ...]:
        return self.check([self.item.parse(part.strip()) for part in text.split(",")])

    def check(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list, not {value!r}")
        values = tuple(self.item.check(item) for item in value)
        if self.ascending and any(a >= b for a, b in pairwise(values)):
            raise ValueError(f"must ascend, not {', '.join(map(str, values))}")
        return values

    def schema(self) -> Schema:
        return {"type": "array", "items": self.item.schema()}


@dataclass(frozen=True)
class Address:
    """Where a running stage listens: a URL, or a table with `url`, `token_file` and `standby` (more URLs).

    As a flag, the standbys follow the URL after commas.
    """

    metavar: str = "ws://HOST:PORT[,ws://...]"
    allowed: str = "a URL or a table of url, token_file and standby"

    def parse(self, text: str) -> Mapping[str, Any]:
        url, *standby = (part.strip() for part in text.split(","))
        return self.check({"url": url, "standby": standby} if standby else url)

    def check(self, value: Any) -> Mapping[str, Any]:
        table = {"url": value} if isinstance(value, str) else value
        if (
            not isinstance(table, Mapping)
            or not set(table) <= {"url", "token_file", "standby"}
            or "url" not in table
        ):
            raise ValueError(f"must be {self.allowed}, not {value!r}")
        standby = table.get("standby", [])
        if not isinstance(standby, list | tuple):
            raise ValueError(f"must hold a list of URLs as standby, not {standby!r}")
        for url in (table["url"], *standby):
            Url().check(url)
        if not isinstance(table.get("token_file", ""), str):
            raise ValueError(f"must hold a text as token_file, not {table['token_file']!r}")
        return {**table, "standby": tuple(standby)} if standby else dict(table)

    def schema(self) -> Schema:
        text = {"type": "string"}
        url = Url().schema()
        properties = {"url": url, "token_file": text, "standby": {"type": "array", "items": url}}
        table = {
            "type": "object",
            "properties": properties,
            "required": ["url"],
            "additionalProperties": False,
        }
        return {"anyOf": [url, table]}


@dataclass(frozen=True)
class TokenBias:
    """A token id and what is added to its logit: `[15, -1.5]`, as a flag `15=-1.5`."""

    metavar: str = "TOKEN=BIAS"
    allowed: str = "a pair of token id and number"

    def parse(self, text: str) -> tuple[int, float]:
        token, _, bias = text.partition("=")
        try:
            return self.check([int(token), float(bias)])
        except ValueError as error:
            raise ValueError(f"must be TOKEN=BIAS such as 15=-1.5, not {text!r}") from error

    def check(self, value: Any) -> tuple[int, float]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(f"must be {self.allowed}, not {value!r}")
        return Whole().check(value[0]), Number(minimum=-1e9, maximum=1e9).check(value[1])

    def schema(self) -> Schema:
        pair = [{"type": "integer", "minimum": 0}, {"type": "number"}]
        return {"type": "array", "prefixItems": pair, "minItems": 2, "maxItems": 2}
