"""`skippy-engine verify`: a split model against the whole one, on a fixed text."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

import engine.compute  # noqa: F401 - before NumPy
from engine.compute.verify import Verification, VerifyReport, verify_split
from engine.config.settings import SETTINGS, Setting
from engine.errors import EXIT_FAILED, EXIT_OK, CutRefused, UsageError
from engine.model.file import ModelFile
from engine.model.packages.source import open_model
from engine.model.paths import cache_dir
from engine.protocol.messages import WireType

PROGRESS_LINES = 10  # on a standard error that is no terminal


def run_verify(model_name: str, splits: str | None, wire: str | None, *, as_json: bool) -> int:
    """Print what was found; 1 on any difference with the f32 wire. Without `splits`: every cut in two."""
    model = open_model(model_name)
    wire_type = WireType(_parsed("--wire", SETTINGS["wire"], wire) if wire is not None else WireType.F32)
    if splits is None:
        reports, refused = _every_cut(model, wire_type)
    else:
        reports, refused = (
            [verify_split(model, _parsed("--splits", SETTINGS["split"], splits), wire_type)],
            [],
        )
    summary = _summary(reports)
    if splits is None:
        summary["refused"] = refused
    if as_json:
        print(orjson.dumps(summary).decode())
    else:
        _print_table(reports, refused)
    exact = all(report.exact for report in reports)
    return EXIT_FAILED if not exact and wire_type is WireType.F32 else EXIT_OK


def _parsed(flag: str, setting: Setting, text: str) -> Any:
    try:
        return setting.kind.parse(text)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from error


def _every_cut(model: ModelFile, wire: WireType) -> tuple[list[VerifyReport], list[int]]:
    """Slices of cuts that nobody asked for are not kept: all together they are many times the model."""
    reports: list[VerifyReport] = []
    refused: list[int] = []
    verification = Verification(model)
    cache_dir().mkdir(parents=True, exist_ok=True)
    for cut in range(1, model.n_layers):
        try:
            with TemporaryDirectory(prefix="verify-", dir=cache_dir()) as folder:
                reports.append(verification.compare((cut,), wire, cache_dir=Path(folder)))
        except CutRefused:
            refused.append(cut)
        _show_progress(cut, model.n_layers - 1)
    if not reports:
        raise CutRefused(f"{model.name} cannot be cut in two anywhere", hint="give several --splits")
    return reports, refused


def _show_progress(cut: int, cuts: int) -> None:
    """One line that changes on a terminal, and is gone at the end; elsewhere about ten lines in all."""
    if sys.stderr.isatty():
        line = f"cut {cut} of {cuts}" if cut < cuts else ""
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif cut * PROGRESS_LINES // cuts > (cut - 1) * PROGRESS_LINES // cuts:
        print(f"cut {cut} of {cuts}", file=sys.stderr, flush=True)


def _summary(reports: list[VerifyReport]) -> dict[str, Any]:
    """The report itself if there is one; the worst of several, with each of them in `cuts`."""
    if len(reports) == 1:
        return asdict(reports[0])
    mtp = [report.mtp_max_logit_diff for report in reports if report.mtp_max_logit_diff is not None]
    return {
        "splits": sorted({split for report in reports for split in report.splits}),
        "wire": reports[0].wire,
        "max_logit_diff": max(report.max_logit_diff for report in reports),
        "argmax_agreement": min(report.argmax_agreement for report in reports),
        "mtp_max_logit_diff": max(mtp) if mtp else None,
        "positions": sum(report.positions for report in reports),
        "cuts": [asdict(report) for report in reports],
    }


def _print_table(reports: list[VerifyReport], refused: list[int]) -> None:
    print(f"{'cut at':<12} {'largest logit difference':<26} {'same argmax':<12} MTP logits")
    for report in reports:
        cuts = ",".join(map(str, report.splits))
        mtp = "-" if report.mtp_max_logit_diff is None else f"{report.mtp_max_logit_diff:g}"
        print(f"{cuts:<12} {report.max_logit_diff:<26g} {report.argmax_agreement:<12.1%} {mtp}")
    if refused:
        print(f"this architecture cannot be cut at {', '.join(map(str, refused))}")
    print(_verdict(reports))


def _verdict(reports: list[VerifyReport]) -> str:
    """`29 cuts, 4,350 positions: no difference`; a report with several cuts is one split."""
    count = f"{len(reports)} cuts" if len(reports) > 1 else "1 split"
    compared = f"{count}, {sum(report.positions for report in reports):,} positions"
    different = sum(not report.exact for report in reports)
    if not different:
        return f"{compared}: no difference"
    largest = max(max(report.max_logit_diff, report.mtp_max_logit_diff or 0.0) for report in reports)
    return f"{compared}: logits differ in {different} of {len(reports)}, by up to {largest:g}"
