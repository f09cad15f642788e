"""`skippy-engine train-head`: a NextN block for a dense llama model, from the model's own text."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from engine.cli.options import Parser
from engine.errors import EXIT_OK, UsageError
from engine.training.settings import RunFolder, TrainingSettings

_HELP = {
    "sequences": "sequences that the model writes for training",
    "rows": "tokens of a sequence",
    "steps": "training steps",
    "batch": "sequences of a step",
    "minutes": "end after this time, with the schedule fitted to it (0: no limit)",
    "learning_rate": "highest learning rate",
    "unroll": "drafted tokens in a row that are trained",
    "hard": "weight of the model's own choice against its whole distribution, 0 to 1",
    "seed": "seed of texts and order",
}


def add_train_head(tools: argparse._SubParsersAction[Parser]) -> None:
    """The command line of the tool."""
    parser = tools.add_parser(
        "train-head", help="train a native MTP head for a dense llama model (needs the extra `train`)"
    )
    parser.add_argument("model", metavar="MODEL", help="demo or a GGUF file")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the run and of what it makes")
    parser.add_argument("--start", metavar="HEAD.gguf", help="begin with this head instead of the last layer")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    parser.add_argument("--device", metavar="NAME", help="of PyTorch: cuda, cuda:1, cpu (default: the best)")
    parser.add_argument(
        "--eval-tokens", metavar="N", type=int, default=160, help="tokens of a judged answer (0: judge none)"
    )
    parser.add_argument(
        "--gpu-layers", metavar="N", type=int, default=0, help="of the judged model (-1: all)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    for field in fields(TrainingSettings):
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            type=type(field.default),
            default=field.default,
            metavar="N",
            help=f"{_HELP[field.name]} (default {field.default:g})",
        )
    parser.set_defaults(tool=run_train_head)


def run_train_head(arguments: argparse.Namespace) -> int:
    """Train, write head and model, and judge the drafts. Raises SkippyError."""
    from engine.model.demo import DEMO, demo_weights
    from engine.model.file import ModelFile
    from engine.training.backend import require_torch

    require_torch()
    settings = TrainingSettings(**{f.name: getattr(arguments, f.name) for f in fields(TrainingSettings)})
    if arguments.eval_tokens < 0:
        raise UsageError(f"--eval-tokens is {arguments.eval_tokens}, but must be at least 0")
    source = ModelFile.open(demo_weights() if arguments.model == DEMO else Path(arguments.model).expanduser())
    folder = RunFolder(Path(arguments.out).expanduser())
    folder.prepare(resume=arguments.resume)
    from engine.training.run import train_head

    target = train_head(
        source,
        folder,
        settings,
        device=arguments.device,
        start=Path(arguments.start).expanduser() if arguments.start else None,
        report=_report,
    )
    summary: dict[str, Any] = {"head": str(folder.head), "model": str(target)}
    if arguments.eval_tokens:
        summary["acceptance"] = _judge(target, arguments.eval_tokens, arguments.gpu_layers)
    if arguments.json:
        print(orjson.dumps(summary).decode())
    else:
        _print(summary)
    return EXIT_OK


def _judge(target: Path, tokens: int, gpu_layers: int) -> dict[str, Any]:
    """Acceptance on the held-out questions: single drafts by category, and each place of drafts of three."""
    from engine.compute.options import ComputeOptions
    from engine.model.file import ModelFile
    from engine.training.acceptance import held_out_questions, measure, total

    model, questions = ModelFile.open(target), held_out_questions()
    options = ComputeOptions(context=2048, gpu_layers=gpu_layers)
    found: dict[str, Any] = {}
    for draft in (1, 3):
        _report(f"judging drafts of {draft} on {len(questions)} held-out questions")
        counts = measure(model, questions, draft=draft, tokens=tokens, options=options)
        summed = total(counts.values())
        found[f"drafts_of_{draft}"] = {
            "verified": summed.verified,
            "rates": summed.rates,
            "first_by_category": {category: one.rates[0] for category, one in counts.items() if one.rates},
        }
    return found


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(summary: dict[str, Any]) -> None:
    print(f"head   {summary['head']}\nmodel  {summary['model']}")
    for name, found in summary.get("acceptance", {}).items():
        rates = " ".join(f"{rate:.1%}" for rate in found["rates"])
        print(f"{name.replace('_', ' ')}: right {rates}")
        for category, rate in found["first_by_category"].items():
            print(f"  {category:<15} {rate:.1%}")
