"""How a stage computes: sizes, threads, devices."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UsageError

MAX_SEQUENCES = 256  # llama.cpp's LLAMA_MAX_SEQ
UNTILED_ROWS = 63  # from 64 rows on, attention on a CPU takes another kernel (ggml_fa_tile_config::Q)


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Settings of one stage.

    `context` counts tokens per sequence; `batch_rows` is the most rows of one call. `exact` makes every row
    come out the same, bit for bit, in a batch of any size, at the price of speed (see
    `engine.compute.exactness`).
    """

    context: int
    sequences: int = 1
    threads: int = 1
    exact: bool = False
    gpu_layers: int = 0  # -1: all; 0: no GPU is touched
    gpu_device: int = -1  # the only GPU to use, by llama.cpp's number; -1: layers are spread over all
    batch_rows: int = 128

    def __post_init__(self) -> None:
        for name in ("context", "sequences", "threads", "batch_rows"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.sequences > MAX_SEQUENCES:
            raise UsageError(f"{self.sequences} sequences are more than the {MAX_SEQUENCES} of llama.cpp")

    @property
    def row_exact(self) -> bool:
        """Whether rows of a window can equal single rows, bit for bit; `Stage.row_exact` says if they do.

        Attention of a single row over 512 or more cached tokens is split among threads and sums in another
        order than a batch does; kernels of a GPU differ by batch shape.
        """
        return (self.threads == 1 or self.exact) and self.gpu_layers == 0

    @property
    def single_row_threads(self) -> int:
        return 1 if self.exact else self.threads

    @property
    def graph_rows(self) -> int:
        """Rows that llama.cpp computes at once."""
        return min(self.batch_rows, UNTILED_ROWS) if self.exact else self.batch_rows
