"""Command lines made from the table of settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from engine.config.kinds import Address, Items, Switch, Text, Url, closest
from engine.config.layers import layer_of_flags, read_topology_file
from engine.config.nodes import NodeSettings
from engine.config.settings import SETTINGS, TABLES, Setting, settings_of
from engine.config.tables import absolute
from engine.errors import UsageError
from engine.planning.lock import is_lock, node_of, read_lock


class Parser(argparse.ArgumentParser):
    """Wrong calls become a `UsageError` of one line that names the nearest option.

    `word_hint` is said of a word too many, instead of where the options are listed.
    """

    def __init__(self, *, word_hint: str = "", **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._help_hint = f"{self.prog} --help lists what there is"
        self._word_hint = word_hint or self._help_hint

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=self._help_hint)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            raise self._unknown(unknown[0])
        return parsed, unknown

    def _unknown(self, word: str) -> UsageError:
        if not word.startswith("-"):
            return UsageError(f"{word!r} is one word too many", hint=self._word_hint)
        flag = closest(word.partition("=")[0], [f for f in self._option_string_actions if f[:2] == "--"])
        return UsageError(f"unknown option {word}", hint=f"did you mean {flag}?" if flag else self._help_hint)


def add_settings(parser: argparse.ArgumentParser, tables: Iterable[str] = TABLES) -> None:
    """One flag for each setting. A flag that is not given is None."""
    for table in tables:
        group = parser.add_argument_group(TABLES[table])
        for setting in settings_of(table):
            add_setting(group, setting)


def add_setting(group: argparse._ActionsContainer, setting: Setting) -> None:
    """The flag of one setting."""
    kind = setting.kind
    options: dict[str, Any] = {"dest": setting.name, "default": None, "help": _help(setting)}
    if isinstance(kind, Switch):
        group.add_argument(setting.flag, action=argparse.BooleanOptionalAction, **options)
    elif isinstance(kind, Items) and kind.repeated:
        group.add_argument(setting.flag, action="append", metavar=kind.metavar, **options)
    else:
        group.add_argument(setting.flag, metavar=kind.metavar, **options)


def _help(setting: Setting) -> str:
    words = getattr(setting.kind, "words", ())
    choices = f": {', '.join(words)}" if words else ""
    default = setting.default
    shown = "" if isinstance(default, bool) or default in ("", ()) else f" (default {default})"
    return f"{setting.help}{choices}{shown}".replace("%", "%%")


def flags_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings among parsed arguments, by name; None where a flag was not given."""
    names = [setting.name for table in TABLES for setting in settings_of(table)]
    return {name: getattr(arguments, name, None) for name in names}


def config_file_of(path: str | None) -> Path | None:
    """The `skippy.toml` to read: the given one, or the user's own if there is one."""
    if path is not None:
        return Path(path).expanduser()
    from engine.model.paths import config_dir

    own = config_dir() / "skippy.toml"
    return own if own.is_file() else None


def flags_with_stages(arguments: argparse.Namespace, *, token_needs: str, token_hint: str) -> dict[str, Any]:
    """The settings of the call, the stages of `--topology` and their token included.

    `token_needs` names the options that give `--token-file` something to be for. Raises UsageError.
    """
    flags = flags_of(arguments)
    if arguments.topology is not None:
        if flags["remote"] is not None:
            raise UsageError(
                "--stage and --topology exclude each other", hint="name all stages in one of them"
            )
        _take_topology(flags, Path(arguments.topology).expanduser())
    if arguments.token_file is not None:
        if flags["remote"]:
            flags["remote"] = tuple(_with_token_file(item, arguments.token_file) for item in flags["remote"])
        elif not nodes_of(arguments):
            raise UsageError(f"--token-file needs {token_needs}", hint=token_hint)
    return flags


def _take_topology(flags: dict[str, Any], path: Path) -> None:
    """Running stages, or a pinned plan: then its model and its cuts, which exclude those of the call."""
    if not is_lock(path):
        flags["remote"] = read_topology_file(path)
        return
    lock = read_lock(path)
    for name in ("stages", "split"):
        if flags[name] is not None:
            flag = SETTINGS[name].flag
            raise UsageError(f"{flag} and {path.name} exclude each other", hint="it holds a pinned plan")
    if lock.stages[0].url:
        raise UsageError(
            f"{path.name} puts the first layers on {lock.stages[0].node}, but a run computes them here",
            hint="make a plan for real nodes: skippy-engine plan MODEL --nodes FILE --lock FILE",
        )
    flags["fingerprint"] = lock.fingerprint
    cuts = tuple(stage.first for stage in lock.stages[1:])
    flags |= {"split": cuts} if cuts else {"stages": 1}


def add_node_option(group: argparse._ActionsContainer) -> None:
    """`--node`, for front ends."""
    group.add_argument(
        "--node",
        metavar=Url().metavar,
        action="append",
        default=[],
        help="a machine that waits for layers; give one for each. All of them are asked, timed and probed "
        "before they are assigned their layers, on each of them unless --stages says fewer",
    )


def nodes_of(arguments: argparse.Namespace) -> tuple[NodeSettings, ...]:
    """The machines that `--node` names, by their address, or those of a pinned plan. Raises UsageError."""
    file = absolute(Text(is_file=True), arguments.token_file or "", Path.cwd())
    if arguments.topology is not None and is_lock(path := Path(arguments.topology).expanduser()):
        if arguments.node:
            raise UsageError(f"--node and {path.name} exclude each other", hint="it holds a pinned plan")
        return pinned_nodes(path, file)
    nodes = named_nodes(arguments.node, file)
    if nodes:
        _check_count(arguments, len(nodes))
    return nodes


def _check_count(arguments: argparse.Namespace, nodes: int) -> None:
    """Raise UsageError if the call asks for layers on more nodes than it names, or cuts for fewer."""
    asked = layer_of_flags({"stages": arguments.stages, "split": arguments.split}).values
    stages, cuts = asked.get("stages", 1), len(asked.get("split", ()))
    if stages > nodes + 1:
        raise UsageError(
            f"--stages {stages} needs {stages - 1} nodes besides this machine, and --node names {nodes}",
            hint=f"name more nodes, or give --stages {nodes + 1}",
        )
    if cuts not in (0, nodes):
        raise UsageError(
            f"--split needs one cut for each --node: {nodes}, not {cuts}",
            hint="this machine has the layers before the first cut",
        )


def pinned_nodes(path: Path, token_file: str) -> tuple[NodeSettings, ...]:
    """The nodes of a pinned plan. `token_file`, if there is one, counts for each. Raises ConfigError."""
    stages = (stage for stage in read_lock(path).stages if stage.url)
    nodes = (node_of(stage, path.absolute().parent) for stage in stages)
    return tuple(replace(node, token_file=token_file or node.token_file) for node in nodes)


def named_nodes(given: Iterable[str], token_file: str) -> tuple[NodeSettings, ...]:
    """Nodes called by their address. Raises UsageError for what is none, or is given twice."""
    try:
        urls = [Url().check(url) for url in given]
    except ValueError as error:
        raise UsageError(f"--node {error}") from error
    twice = next((url for url in urls if urls.count(url) > 1), None)
    if twice is not None:
        raise UsageError(f"--node {twice} is given twice")
    return tuple(NodeSettings(name=url.partition("://")[2], url=url, token_file=token_file) for url in urls)


def _with_token_file(stage: str | Mapping[str, Any], token_file: str) -> dict[str, Any]:
    try:
        table = Address().parse(stage) if isinstance(stage, str) else stage
    except ValueError as error:
        raise UsageError(f"--stage {error}") from error
    return {"token_file": token_file, **table}
