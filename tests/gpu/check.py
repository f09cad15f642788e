"""`make gpu-check`: what stages compute on this machine's GPU, and how fast they are.

Every tiny model of the conformance tests and the default model are split on the GPU and compared with the
whole on the GPU; the default model also between GPU and CPU. Then `skippy-engine bench` runs all strategies
over two stages on the GPU. What was found is printed and kept in DIR. llama-cpp-python must have been built
for the GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engine.compute  # noqa: F401 - before NumPy
from engine.bench.machine import machine
from engine.compute.bindings import bindings
from engine.compute.exactness import measure_row_exactness
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.model.demo import DEMO, demo_available, demo_model
from engine.model.file import ModelFile
from engine.model.slices import whole_model
from tests.conformance.cases import HYBRID, LONG, MODELS

TOLERANCE = 0.05
"""Of the logits' standard deviation, between chains on the same device. A wrong slice is off by more than the
deviation itself; the cut may keep llama.cpp from fusing two kernels, which changes the last bits."""

SAME_TOKENS = 0.98
"""Of the rows, between chains on different devices: their kernels round activations of quantised models
differently, so that single logits differ by as much as their deviation."""

ON_GPU = ("gpu", "gpu", "gpu")
CHAINS = (ON_GPU, ("gpu", "cpu", "gpu"), ("gpu", "gpu", "cpu"), ("cpu", "gpu", "gpu"))
"""(device of the whole, devices of the stages)"""

STRATEGIES = "auto,mtp,ngram-simple,ngram-cache,ngram-suffix,mtp-simple,mtp-cache,mtp-suffix"
BENCHES = (
    ("--emulate-rtt-ms", "0,20", "--category", "chat,coding,copy", "--max-tokens", "96", "--baseline"),
    ("--emulate-rtt-ms", "100", "--category", "chat,copy", "--max-tokens", "48"),
)


@dataclass(frozen=True)
class Comparison:
    """One chain of one model beside the whole, or why there is none."""

    model: str
    devices: Sequence[str]
    found: dict[str, Any]

    @property
    def good(self) -> bool:
        if "refused" in self.found:
            return True
        if len(set(self.devices)) > 1:
            return bool(self.found.get("same_token", 0.0) >= SAME_TOKENS)
        difference = max(self.found.get("difference", float("inf")), self.found.get("draft_difference", 0.0))
        return bool(difference <= TOLERANCE * self.found.get("spread", 0.0))

    def line(self) -> str:
        chain = f"whole on {self.devices[0]}, stages on {', '.join(self.devices[1:])}"
        if "difference" not in self.found:
            return f"{self.model:<20} {chain:<40} {self.found}"
        numbers = " ".join(f"{name} {value:.4g}" for name, value in self.found.items())
        return f"{self.model:<20} {chain:<40} {numbers}{'' if self.good else '  TOO FAR'}"


def comparisons(names: Sequence[str], chains: Sequence[Sequence[str]]) -> list[Comparison]:
    """All chains of all models. Whatever kills the process that computes is a result too."""
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as directory:
        process: subprocess.Popen[str] | None = None
        for name in names:
            for devices in chains:
                process = process or _start(Path(directory))
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps({"model": name, "devices": devices}) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                result = json.loads(line) if line else {"died": process.wait()}
                found.append(Comparison(name, devices, result))
                print(found[-1].line(), flush=True)
                process = process if line else None
        if process is not None:
            process.communicate()
    return found


def _start(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu.chains", str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def row_exactness() -> dict[str, bool]:
    """Whether rows of a window equal single rows of the default model, bit for bit, by device."""
    found = {}
    for device, layers in (("gpu", -1), ("cpu", 0)):
        stage = Stage(
            whole_model(ModelFile.open(demo_model())), ComputeOptions(context=256, gpu_layers=layers)
        )
        found[device] = measure_row_exactness(stage)
        stage.close()
    return found


def benches(out: Path) -> int:
    """Two stages on the GPU at several round trips; returns how many runs failed."""
    failed = 0
    for number, options in enumerate(BENCHES):
        command = [sys.executable, "-m", "engine.cli.main", "bench", "--gpu-layers", "-1", "--threads", "1"]
        command += ["--strategies", STRATEGIES, "--repeat", "1", "--limit", "1"]
        command += ["--out", str(out / f"bench-{number}"), *options]
        print(" ".join(command[1:]), flush=True)
        failed += subprocess.run(command, check=False).returncode != 0
    return failed


def gpu_name() -> str:
    """The GPU and its driver, as nvidia-smi tells them."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), metavar="DIR")
    parser.add_argument("--no-bench", action="store_true", help="compare only")
    arguments = parser.parse_args()
    if not bindings().llama_supports_gpu_offload():
        sys.exit("llama-cpp-python was built without a GPU: CMAKE_ARGS=-DGGML_CUDA=on make clean setup")
    arguments.out.mkdir(parents=True, exist_ok=True)
    about = {**machine(), "gpu": gpu_name()}
    print(about, flush=True)
    skipped = {model.name for model in (*LONG, *HYBRID)}
    tiny = comparisons([name for name in MODELS if name not in skipped], [ON_GPU])
    real = comparisons([DEMO], CHAINS) if demo_available() else []
    exact = row_exactness() if demo_available() else {}
    print(f"rows of a window equal single rows: {exact}", flush=True)
    bad = [one for one in (*tiny, *real) if not one.good]
    record = {
        "machine": about,
        "row_exact": exact,
        "comparisons": [{"model": c.model, "devices": c.devices, **c.found} for c in (*tiny, *real)],
    }
    (arguments.out / "comparisons.json").write_text(json.dumps(record, indent=1))
    print(f"{len(tiny) + len(real)} chains, {len(bad)} too far from the whole", flush=True)
    failed = 0 if arguments.no_bench else benches(arguments.out)
    return 1 if bad or failed else 0


if __name__ == "__main__":
    sys.exit(main())
