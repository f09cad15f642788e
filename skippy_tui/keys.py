"""Esc and the key after it.

A terminal sends Esc as one byte, and Alt with a key as that byte before the key's own. What comes together
can be either: somebody who types fast, a slow line and tmux (which holds Esc back for a while) all put Esc
and the next key into one piece. Nothing is bound to Alt with a letter here, so that is Esc and the letter.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.events import Key

ESCAPE = "\x1b"
# These go on: they begin the sequences of other keys, and answers of a terminal. Alone, they time out.
_BEGINNINGS = "[OP]^_X"
# What many terminals send for Alt with an arrow: a word to the left or to the right.
_WORD_KEYS = {"alt+b": "ctrl+left", "alt+f": "ctrl+right"}


class KeyParser(XTermParser):
    """Reads Esc with any printable character as Alt with it, as Textual does with most letters.

    Textual takes some of them for other keys, and loses the Esc of those that are neither letter nor digit.
    """

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:
        character = sequence[-1:]
        is_pair = len(sequence) == 2 and sequence[0] == ESCAPE and character not in _BEGINNINGS
        if (alt or is_pair) and character.isprintable():
            for key in super()._sequence_to_key_events(character):
                yield Key(f"alt+{key.key}", character)
        else:
            yield from super()._sequence_to_key_events(sequence, alt)


def pressed(event: Key, *, writing: bool) -> list[Key]:
    """The keys behind one that was read. Where a text is being written, some of them move by words.

    A terminal that tells Alt apart sends no character with it: then it is what it says.
    """
    if not event.key.startswith("alt+") or not event.is_printable:
        return [event]
    if writing and event.key in _WORD_KEYS:
        return [Key(_WORD_KEYS[event.key], None)]
    return [Key("escape", ESCAPE), Key(event.key.removeprefix("alt+"), event.character)]
