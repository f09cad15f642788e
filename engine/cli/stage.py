"""`skippy-engine stage` and `skippy-tui --engine-only`: a headless stage."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from engine.cli.options import config_file_of, flags_of
from engine.config.resolve import TOKEN_VARIABLE, read_token, resolve_plan
from engine.errors import UsageError
from engine.stage.process import StageSettings, parse_layers, parse_listen, run


def run_stage(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl+C. Raises SkippyError."""
    first, end = parse_layers(arguments.layers)
    host, port = parse_listen(arguments.listen)
    plan = resolve_plan(flags_of(arguments), config_file_of(None))
    compute = plan.compute
    token_file = arguments.token_file
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together", hint="give both PEM files")
    run(
        StageSettings(
            model=plan.model,
            first=first,
            end=end,
            host=host,
            port=port,
            token=read_token(Path(token_file)) if token_file else os.environ.get(TOKEN_VARIABLE, ""),
            tls_cert=_absolute(arguments.tls_cert),
            tls_key=_absolute(arguments.tls_key),
            tls_ca=plan.topology.tls_ca,
            insecure=arguments.insecure,
            threads=compute.threads,
            exact=compute.exact,
            gpu_layers=compute.gpu_layers,
            context=compute.context,
            sequences=compute.sequences,
            batch_rows=compute.prefill_rows,
        )
    )
    return 0


def _absolute(file: str | None) -> str:
    return str(Path(file).expanduser().absolute()) if file else ""
