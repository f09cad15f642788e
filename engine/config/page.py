"""docs/configuration.md, made from the tables of settings: `make docs` writes it, a test compares it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from engine.config.manifest import MANIFEST_NAME
from engine.config.nodes import NODE_KEYS, NodeSettings
from engine.config.package_speculation import NOT_IN_PACKAGES
from engine.config.settings import TABLES, Described, Setting, settings_of
from engine.config.ui import UI_DEFAULTS, UI_SETTINGS

_HEAD = f"""\
# Configuration

<!-- Made from engine/config by `make docs`; edit there. -->

Every setting is a flag of `skippy-prompt` and `skippy-tui` and a key of `skippy.toml`, which is looked for in
the folder that `skippy-engine where` prints; `--config FILE` names another. All of it is resolved once, at
start, into one plan. Setting by setting the first of these that says something holds:

1. the flag of the call,
2. the entry of the model, `[models.NAME]`, for the model that `--model NAME` or `model` names,
3. `[defaults]`,
4. the package of the model (`{MANIFEST_NAME}`, see [packages](packages.md)),
5. the default below.

`stages`, `split`, `remote` and `use_nodes` say together where the layers run: whoever says one of them
replaces what a lower source says of the others. What a package says also gives way where it does not go
together with what a person says: `--window-max 2` needs no `--window-min` beside a package that says 3.

```toml
[defaults]
model = "big"

[defaults.speculative]
strategy = "mtp-suffix"

[models.big]
path = "models/big.gguf"          # from the folder of this file; a GGUF, or the folder of a package

[models.big.speculative]
window_max = 8

[[nodes]]
name = "server"
url = "ws://192.168.1.20:9555"
token_file = "token.txt"
```

- `skippy-prompt --print-config` shows the plan of a call as a `skippy.toml` that gives the same plan.
- `skippy-engine config check FILE` checks a file, with every model in it.
- `skippy-engine config schema` prints the JSON Schema of the file, for editors.

A key that is not known is an error that names the nearest one that is, and what that takes. A value out of
range is an error that names the key and the range. Both end with exit code 2.
"""

_NODES = """\
## `[[nodes]]`

Machines that wait for layers, one entry each. They are used by a run with `use_nodes` (`--use-nodes`);
`--node` names some in the call instead.
"""

_UI = """\
## `[ui]`

How the app looks when it starts. No engine reads it.
"""


def configuration_page() -> str:
    """The page in Markdown."""
    parts = [_HEAD]
    for table, title in TABLES.items():
        heading = f"`[defaults.{table}]` and `[models.NAME.{table}]`: {title}" if table else "`[defaults]`"
        rows = [_setting_row(setting) for setting in settings_of(table)]
        parts.append(f"## {heading}\n\n{_table(('key', 'flag', 'default', 'takes', 'meaning'), rows)}")
    in_package = [f"`{s.name}`" for s in settings_of("speculative") if s.name not in NOT_IN_PACKAGES]
    parts.append(f"A package can say `strategy`, {', '.join(in_package)}.\n")
    node = NodeSettings("", "")
    defaults = {
        key: "required" if entry.required else _shown(getattr(node, key)) for key, entry in NODE_KEYS.items()
    }
    parts.append(f"{_NODES}\n{_described(NODE_KEYS, defaults)}")
    parts.append(
        f"{_UI}\n{_described(UI_SETTINGS, {key: _shown(value) for key, value in UI_DEFAULTS.items()})}"
    )
    return "\n".join(parts)


def _setting_row(setting: Setting) -> tuple[str, ...]:
    default = _shown(setting.default)
    return f"`{setting.name}`", f"`{setting.flag}`", default, setting.kind.allowed, setting.help


def _described(entries: Mapping[str, Described], defaults: Mapping[str, str]) -> str:
    rows = [(f"`{key}`", defaults[key], entry.kind.allowed, entry.help) for key, entry in entries.items()]
    return _table(("key", "default", "takes", "meaning"), rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value in ("", ()) else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
