"""`skippy-engine stage` and `skippy-tui --engine-only`: a headless stage."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.cli.options import config_file_of, flags_of
from engine.config.resolve import read_token, resolve_plan
from engine.stage.process import StageSettings, parse_layers, parse_listen, run


def run_stage(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl+C. Raises SkippyError."""
    first, end = parse_layers(arguments.layers)
    host, port = parse_listen(arguments.listen)
    plan = resolve_plan(flags_of(arguments), config_file_of(None))
    compute = plan.compute
    token_file = arguments.token_file
    run(
        StageSettings(
            model=plan.model,
            first=first,
            end=end,
            host=host,
            port=port,
            token=read_token(Path(token_file)) if token_file is not None else "",
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
