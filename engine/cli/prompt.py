"""`skippy-prompt`: one answer for a prompt given as an argument or on standard input, otherwise a REPL."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import engine
from engine.cli.errors import run_command
from engine.cli.options import (
    Parser,
    add_node_option,
    add_settings,
    config_file_of,
    flags_with_stages,
    nodes_of,
)
from engine.config.resolve import plan_to_toml, resolve_plan
from engine.errors import UsageError

PROGRAM = "skippy-prompt"


def main(argv: Sequence[str] | None = None, engine_command: Sequence[str] | None = None) -> int:
    """Entry point; `engine_command` starts another engine than ours."""
    return run_command(PROGRAM, lambda: _run(argv, engine_command))


def _run(argv: Sequence[str] | None, engine_command: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    plan = resolve_plan(
        flags_with_stages(
            arguments, token_needs="--stage, --node or --topology", token_hint="local stages need no token"
        ),
        config_file_of(arguments.config),
        nodes_of(arguments),
    )
    if arguments.print_config:
        print(plan_to_toml(plan), end="")
        return 0
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without UTF-8
    prompt = _prompt_text(arguments.prompt, raw=plan.generation.raw)
    # Only now: none of this is needed for --help, --print-config or a wrong call.
    from engine.cli.setup import FrontEnd

    front_end = FrontEnd(
        program=PROGRAM,
        plan=plan,
        engine_command=engine_command,
        log_format=arguments.log_format or ("pretty" if arguments.log_level else ""),
        log_level=arguments.log_level,
        json=arguments.json,
    )
    if prompt is None:
        from engine.cli.repl import run_repl

        return asyncio.run(run_repl(front_end))
    from engine.cli.one_shot import run_one_shot

    return asyncio.run(run_one_shot(front_end, prompt))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [OPTIONS] [PROMPT]",
        word_hint=f'the prompt must be in quotes: {PROGRAM} "Why is the sky blue?"',
        description="Answer a prompt with a model that is cut by layers into stages. Without a prompt, and "
        "with a terminal as standard input: a REPL. A setting is taken from its flag, else from skippy.toml.",
    )
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; else standard input")
    parser.add_argument("--version", action="version", version=f"skippy {engine.__version__}")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="one JSON object on standard output, nothing else"
    )
    output.add_argument("--log-format", choices=("pretty", "json"), help="events as lines on standard error")
    output.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="least level of these events (default: debug, all of them, for json; info for pretty)",
    )
    config = parser.add_argument_group("configuration")
    config.add_argument("--config", metavar="FILE", help="another skippy.toml")
    config.add_argument("--print-config", action="store_true", help="show the resolved plan as TOML and stop")
    config.add_argument("--topology", metavar="FILE", help="TOML file with [[stages]], instead of --stage")
    add_node_option(config)
    config.add_argument(
        "--token-file", metavar="FILE", help="file with the token of the stages of --stage, or of --node"
    )
    add_settings(parser)
    return parser


def _prompt_text(argument: str | None, *, raw: bool) -> str | None:
    """The prompt of a one-shot call; None asks for a REPL. Raises UsageError when it is empty or no text."""
    if argument is None:
        if sys.stdin.isatty():
            return None
        data = sys.stdin.buffer.read()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8: byte {error.start} cannot be read") from error
        text = text if raw else text.strip()
    else:
        text = argument
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError("the prompt is not valid UTF-8") from error
    if not text.strip():
        raise UsageError("the prompt is empty", hint="give it as an argument or on standard input")
    return text


if __name__ == "__main__":
    sys.exit(main())
