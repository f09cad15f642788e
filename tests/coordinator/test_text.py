"""Tokens become text: characters over several tokens, stop strings over several windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.coordinator.text import AnswerText


def answer(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """Feed one token per piece; returns the texts given out and whether it stopped."""
    text = AnswerText(lambda token: pieces[token], stops)
    given_out: list[str] = []
    for token in range(len(pieces)):
        part, stopped = text.feed(token)
        given_out.append(part)
        if stopped:
            return given_out, True
    given_out.append(text.flush())
    return given_out, False


@given(st.text(alphabet="a👩‍💻日本é\n", max_size=20))
def test_bytes_fed_one_by_one_give_the_text_back(text: str) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    given_out, _ = answer(pieces)
    assert "".join(given_out) == text


def test_half_a_character_at_the_end_is_dropped() -> None:
    given_out, _ = answer([b"a", "日".encode()[:2]])
    assert "".join(given_out) == "a"


def test_a_stop_string_over_several_tokens_is_never_shown() -> None:
    given_out, stopped = answer([b"say E", b"N", b"D", b"x", b"y"], ("END",))
    assert stopped
    assert given_out == ["say ", "", ""]


def test_text_that_only_looked_like_a_stop_is_given_out_later() -> None:
    given_out, stopped = answer([b"E", b"N", b"Q"], ("END",))
    assert not stopped
    assert given_out == ["", "", "ENQ", ""]


def test_held_text_is_given_out_at_the_end() -> None:
    given_out, stopped = answer([b"the E", b"N"], ("END",))
    assert not stopped
    assert given_out == ["the ", "", "EN"]


def test_the_earliest_of_several_stops_wins() -> None:
    given_out, stopped = answer([b"a;b\nc"], ("\n", ";"))
    assert stopped
    assert given_out == ["a"]


@given(
    st.text(alphabet="abcEND", max_size=30),
    st.lists(st.sampled_from(["END", "EE", "ab", "N"]), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_the_text_is_what_stands_before_the_first_stop(text: str, stops: list[str], width: int) -> None:
    pieces = [text[at : at + width].encode() for at in range(0, len(text), width)]
    given_out, stopped = answer(pieces, tuple(stops))
    # A stop is seen as soon as its last character is there, whatever stood behind it in the same token.
    for end in range(len(text) + 1):
        seen = text[: min(len(text), -(-end // width) * width)]
        starts = [at for stop in stops if (at := seen.find(stop)) >= 0]
        if starts:
            assert stopped
            assert "".join(given_out) == seen[: min(starts)]
            return
    assert not stopped
    assert "".join(given_out) == text
