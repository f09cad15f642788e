"""`skippy-engine`: tools over the engine. Each one imports what it needs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import engine
from engine.cli.errors import run_command
from engine.cli.options import Parser, add_setting
from engine.cli.package_options import add_package
from engine.cli.plan_options import add_plan
from engine.cli.serve_options import add_serve
from engine.cli.stage_options import add_stage
from engine.cli.train_head import add_train_head
from engine.config.settings import SETTINGS

PROGRAM = "skippy-engine"


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Entry point; `program` is what the call is named in messages."""
    return run_command(program, lambda: _run(argv, program))


def _run(argv: Sequence[str] | None, program: str) -> int:
    arguments = _parser(program).parse_args(argv)
    tool: Callable[[argparse.Namespace], int] = arguments.tool
    return tool(arguments)


def _parser(program: str) -> Parser:
    parser = Parser(
        prog=program, description="Serve layers of a model, check that a split is exact, and more."
    )
    parser.add_argument("--version", action="version", version=f"skippy {engine.__version__}")
    tools = parser.add_subparsers(title="tools", metavar="TOOL", required=True, parser_class=Parser)
    add_stage(tools)
    add_serve(tools)
    _add_verify(tools)
    _add_bench(tools)
    add_package(tools)
    add_plan(tools)
    _add_models(tools)
    add_train_head(tools)
    _add_where(tools)
    _add_config(tools)
    return parser


def _add_verify(tools: argparse._SubParsersAction[Parser]) -> None:
    parser = tools.add_parser("verify", help="compare a split model with the whole one, logit by logit")
    parser.add_argument("model", metavar="MODEL", help="demo or a GGUF file")
    parser.add_argument(
        "--splits", metavar="N[,N...]", help="first layers of stages 1.. (default: every cut in two)"
    )
    add_setting(parser, SETTINGS["wire"])
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(tool=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from engine.cli.verify import run_verify

    return run_verify(arguments.model, arguments.splits, arguments.wire, as_json=arguments.json)


def _add_bench(tools: argparse._SubParsersAction[Parser]) -> None:
    from engine.cli.bench_options import add_bench_options

    parser = tools.add_parser("bench", help="measure strategies beside plain decoding and llama.cpp alone")
    add_bench_options(parser)
    parser.set_defaults(tool=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from engine.cli.bench import run_bench

    return run_bench(arguments)


def _add_models(tools: argparse._SubParsersAction[Parser]) -> None:
    parser = tools.add_parser("models", help="what can be run here, and how to get the rest")
    parser.add_argument("--fetch", metavar="NAME", choices=("demo",), help="make a model available: demo")
    parser.add_argument("--config", metavar="FILE", help="another skippy.toml")
    parser.add_argument("--json", action="store_true", help="a JSON list on standard output")
    parser.set_defaults(tool=_models)


def _models(arguments: argparse.Namespace) -> int:
    from engine.cli.models import run_models

    return run_models(arguments.fetch, arguments.config, as_json=arguments.json)


def _add_where(tools: argparse._SubParsersAction[Parser]) -> None:
    parser = tools.add_parser("where", help="the folders of configuration, data, cache and logs")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(tool=_where)


def _where(arguments: argparse.Namespace) -> int:
    import orjson

    from engine.model import paths

    folders = {
        "config": str(paths.config_dir() / "skippy.toml"),
        "data": str(paths.data_dir()),
        "cache": str(paths.cache_dir()),
        "log": str(paths.log_dir()),
    }
    if arguments.json:
        print(orjson.dumps(folders).decode())
    else:
        for name, path in folders.items():
            print(f"{name:<7} {path}")
    return 0


def _add_config(tools: argparse._SubParsersAction[Parser]) -> None:
    parser = tools.add_parser("config", help="check a skippy.toml, or describe all of its keys")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Parser)
    check = actions.add_parser("check", help="check a file; the first fault is named")
    check.add_argument("file", metavar="FILE")
    check.set_defaults(tool=_check_config)
    schema = actions.add_parser("schema", help="the JSON Schema of skippy.toml")
    schema.set_defaults(tool=_config_schema)


def _check_config(arguments: argparse.Namespace) -> int:
    from engine.config.layers import read_config_file
    from engine.config.resolve import resolve_plan

    path = Path(arguments.file)
    names = [None, *read_config_file(path).models]
    for name in names:
        resolve_plan({"model": name}, path)
    print(f"{path}: good, {len(names) - 1} models")
    return 0


def _config_schema(arguments: argparse.Namespace) -> int:
    import orjson

    from engine.config.schema import config_schema

    print(orjson.dumps(config_schema(), option=orjson.OPT_INDENT_2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
