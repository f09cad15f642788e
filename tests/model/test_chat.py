"""Chat templates render as models know them, and a hostile one gets nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import SkippyError
from engine.model.chat import ChatTemplate, template_of
from engine.model.file import ModelFile
from engine.model.header import check_header
from engine.model.writer import GgufContent, copied, encode_value
from tests.model.gguf_files import write_small_model

CHATML = """\
{% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Is 1 < 2 & "so on"?'},
]


def render(source: str, messages: list[dict[str, Any]] = MESSAGES, **options: bool) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages, **options)


def test_chatml() -> None:
    prompt = '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nIs 1 < 2 & "so on"?<|im_end|>\n'
    assert render(CHATML) == prompt + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == prompt


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}x{{ eos_token }}", "<s>x</s>"),
        ("{{ messages[0] | tojson }}", '{"role": "system", "content": "Be brief."}'),
        ("{{ '<&\\'é' | tojson }}", '"<&\'é"'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        (
            "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "system",
        ),
        (
            "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %};{% endfor %}",
            "system;user;",
        ),
        ("{% if tools is none and documents is none %}no tools{% endif %}", "no tools"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("  {%- set ns = namespace(n=0) %}\n  {% set ns.n = 3 %}\n{{ '-' * ns.n }}", "---"),
        ("{% for i in range(3) %}{{ 2 * i }}{% endfor %}", "024"),
    ],
)
def test_what_templates_of_the_field_use(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_template_that_refuses_the_messages_is_quoted() -> None:
    source = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(SkippyError, match="Conversation roles must alternate; use --raw"):
        render(source)


ESCAPES = [
    "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''.__class__.__base__.__subclasses__()[0] }}",
    "{{ messages.append.__self__.__class__ }}",
    "{{ raise_exception.__globals__['os'].system('touch ' ~ bos_token) }}",
    "{{ strftime_now.__globals__.__builtins__.open(bos_token, 'w') }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os').system('touch ' ~ bos_token) }}",
    "{{ cycler.__init__.__globals__.os.popen('touch ' ~ bos_token).read() }}",
    "{{ lipsum.__globals__['os'].popen('touch ' ~ bos_token).read() }}",
    "{{ (joiner | attr('__init__') | attr('__globals__')).os.getcwd() }}",
    "{{ '{0.__class__.__mro__[1]}'.format(messages) }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__name__.__class__.__mro__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_leave_the_sandbox(source: str, tmp_path: Path) -> None:
    """C29: attributes that lead to `os` are an error, and nothing is executed."""
    touched = tmp_path / "touched"
    with pytest.raises(SkippyError, match="chat template"):
        ChatTemplate(source, bos=str(touched), eos="").render(MESSAGES)
    assert not touched.exists()


@pytest.mark.parametrize("method", ["append({})", "pop()", "clear()", "insert(0, {})"])
def test_a_template_cannot_change_the_messages(method: str) -> None:
    messages = [dict(message) for message in MESSAGES]
    with pytest.raises(SkippyError, match="chat template"):
        render(f"{{{{ messages.{method} }}}}", messages)
    assert messages == MESSAGES


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * 'x' }}",
        "{{ [0] * 1000000000 }}",
        "{{ 9 ** 999999999 }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
        "x" * (1 << 20),
    ],
)
def test_a_template_cannot_grow_without_bound(source: str) -> None:
    with pytest.raises(SkippyError, match="chat template"):
        render(source)


@pytest.mark.parametrize("source", ["{% for %}", "{{ unclosed", "{% nosuchtag %}", "{{ 1 | nosuchfilter }}"])
def test_a_source_that_is_no_template_is_an_error_at_once(source: str) -> None:
    with pytest.raises(SkippyError, match="chat template"):
        ChatTemplate(source, bos="", eos="")


def test_what_a_template_says_cannot_act_on_a_terminal() -> None:
    with pytest.raises(SkippyError) as caught:
        render("{{ raise_exception('\x1b]52;c;aGk=\x07' ~ 'x' * 60000) }}")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_the_template_of_a_model_knows_its_tokens(tmp_path: Path) -> None:
    small = write_small_model(tmp_path / "small.gguf")
    assert template_of(ModelFile.open(small)) is None
    header = check_header(small)
    metadata = {key: value.encoded for key, value in header.metadata.items()}
    string, number = header.metadata["general.name"].type, header.metadata["llama.block_count"].type
    metadata["tokenizer.chat_template"] = encode_value("{{ bos_token }}|{{ eos_token }}", string)
    metadata["tokenizer.ggml.bos_token_id"] = encode_value(7, number)
    metadata["tokenizer.ggml.eos_token_id"] = encode_value(1_000_000, number)  # out of range: no text
    path = tmp_path / "chat.gguf"
    with path.open("wb") as file:
        GgufContent(metadata, [copied(tensor, tensor.name) for tensor in header.tensors]).write(file)
    template = template_of(ModelFile.open(path))
    assert template is not None
    assert template.render([]) == "token 7|"
