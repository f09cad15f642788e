"""`skippy-engine stage` and `skippy-tui --engine-only`: a headless stage."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import engine.compute  # noqa: F401 - before NumPy
from engine.cli.gpu import warn_without_gpu
from engine.cli.options import config_file_of, flags_of
from engine.config.layers import read_config_file
from engine.config.resolve import TOKEN_VARIABLE, read_token, resolve_plan
from engine.config.settings import SETTINGS
from engine.errors import UsageError
from engine.model.demo import DEMO
from engine.stage.process import StageSettings, parse_layers, parse_listen, run


def run_stage(arguments: argparse.Namespace) -> int:
    """Serve layers, or wait for some, until SIGTERM or Ctrl+C. Raises SkippyError."""
    if arguments.layers is None:
        return _wait_for_layers(arguments)
    first, end = parse_layers(arguments.layers)
    host, port = parse_listen(arguments.listen)
    plan = resolve_plan(flags_of(arguments), config_file_of(None))
    compute = plan.compute
    warn_without_gpu(compute.gpu_layers)
    certificate, key = _certificate(arguments)
    run(
        StageSettings(
            model=plan.model,
            first=first,
            end=end,
            host=host,
            port=port,
            token=_token(arguments),
            tls_cert=certificate,
            tls_key=key,
            tls_ca=plan.topology.tls_ca,
            insecure=arguments.insecure,
            threads=compute.threads,
            exact=compute.exact,
            gpu_layers=compute.gpu_layers,
            gpu_device=compute.gpu_device,
            context=compute.context,
            sequences=compute.sequences,
            batch_rows=compute.prefill_rows,
            slice_cache_gib=compute.slice_cache_gib,
        )
    )
    return 0


def _wait_for_layers(arguments: argparse.Namespace) -> int:
    from engine.stage.node import run as run_node
    from engine.stage.node_options import NodeOptions

    if arguments.model is not None:
        raise UsageError(
            "--model needs --layers", hint="say which, or leave out --model to wait for an engine's choice"
        )
    for flag in ("exact", "context", "sequences"):
        if getattr(arguments, flag) is not None:
            raise UsageError(
                f"{SETTINGS[flag].flag} needs --layers",
                hint="of a machine that waits, the engine in front decides",
            )
    host, port = parse_listen(arguments.listen)
    plan = resolve_plan({**flags_of(arguments), "model": None}, config_file_of(None))
    warn_without_gpu(plan.compute.gpu_layers)
    certificate, key = _certificate(arguments)
    run_node(
        NodeOptions(
            host=host,
            port=port,
            stage_port=_port(arguments.stage_port),
            token=_token(arguments),
            insecure=arguments.insecure,
            tls_cert=certificate,
            tls_key=key,
            tls_ca=plan.topology.tls_ca,
            accept_slices=_accepts(arguments),
            folders=tuple(map(_folder, arguments.models)),
            files=_configured_models(),
            threads=plan.compute.threads,
            gpu_layers=plan.compute.gpu_layers,
            gpu_device=plan.compute.gpu_device,
            slice_cache_gib=plan.compute.slice_cache_gib,
        )
    )
    return 0


def _accepts(arguments: argparse.Namespace) -> bool:
    """Without a token anybody could send something, so there it has to be said."""
    asked: bool | None = arguments.accept_slices
    return asked if asked is not None else not arguments.insecure


def _configured_models() -> tuple[str, ...]:
    """The files of `[models]` in `skippy.toml`."""
    config_file = config_file_of(None)
    if config_file is None:
        return ()
    models = read_config_file(config_file).models.values()
    return tuple(layer.values["model"] for layer in models if layer.values.get("model", DEMO) != DEMO)


def _folder(name: str) -> str:
    folder = _absolute(name)
    if not Path(folder).is_dir():
        raise UsageError(f"--models {name} is no folder", hint="give one that holds model files")
    return folder


def _port(port: int) -> int:
    if not 0 <= port <= 65_535:
        raise UsageError(f"--stage-port {port} is no port", hint="give a number from 1 to 65535")
    return port


def _token(arguments: argparse.Namespace) -> str:
    file = arguments.token_file
    return read_token(Path(file)) if file else os.environ.get(TOKEN_VARIABLE, "")


def _certificate(arguments: argparse.Namespace) -> tuple[str, str]:
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together", hint="give both PEM files")
    return _absolute(arguments.tls_cert), _absolute(arguments.tls_key)


def _absolute(file: str | None) -> str:
    return str(Path(file).expanduser().absolute()) if file else ""
