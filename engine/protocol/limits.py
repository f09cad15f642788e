"""What a frame may hold. Both peers compute the same limits from Hello and Welcome, so no frame that one of
them sends can be too large for the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.protocol.messages import Hello, Role, Welcome

KIB = 1024

FIRST_FRAME_BYTES = 64 * KIB
"""Largest Hello: before it nothing is known about the peer."""

CONTROL_BYTES = 1024 * KIB
"""Largest frame without activations: a Welcome, a grammar, an error."""

MAX_ROWS = 65_535
"""Most rows that any agreement may allow in one frame."""

MAX_CONTEXT = 2**31 - 1
"""Most positions of a sequence: llama.cpp counts them in int32."""

MAX_DRAFT_TOKENS = 255
"""Longest native MTP draft that may travel in a reply."""

MAX_STAGES = 255
"""Most stages in a chain, hence most stage times in a frame."""

MAX_CHUNK_BYTES = 256 * KIB
"""Most bytes of a slice, or of a probe, in one frame."""

MAX_HEADER_BYTES = CONTROL_BYTES - KIB
"""Largest header of a model to be timed: its metadata without the vocabulary, and its tensor table."""

MAX_PROBE_BYTES = 64 * KIB * KIB
"""Most bytes that one probe link may carry."""

MAX_SLICE_BYTES = 2**50
"""Largest slice that may be announced; what fits is a question of the node's disk."""

MAX_LAYERS = 65_535
MAX_THREADS = 4096
MAX_NODE_CONTEXT = 2**20
MAX_NODE_SEQUENCES = 64
MAX_BATCH_ROWS = 4096
MAX_HELD = 256  # slices, and models, that a node names
MAX_TEXT = 4096  # characters of a name, an address or a token

_FIXED_BYTES = 64  # more than the fixed fields of any frame
_STAGE_TIME_BYTES = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What two peers agreed on; the row counts are per frame, `context` is positions per session."""

    window_rows: int = 1
    prefill_rows: int = 1
    context: int = MAX_CONTEXT
    sequences: int = 1

    @staticmethod
    def agreed(hello: Hello, welcome: Welcome) -> Limits:
        """What the opener asked for on a lane; on the other links what the stage at the far end allows."""
        if hello.role is Role.LANE or not welcome.stages:
            return Limits(hello.window_rows, hello.prefill_rows, hello.context, hello.sequences)
        stage = welcome.stages[-1]
        return Limits(stage.window_rows, stage.prefill_rows, stage.context, stage.sequences)

    def lane_frame_bytes(self, n_embd: int) -> int:
        """Largest frame that may travel forward on a lane: a full chunk in f32, the widest wire type."""
        rows = max(self.window_rows, self.prefill_rows)
        frame = _FIXED_BYTES + MAX_STAGES * _STAGE_TIME_BYTES + rows * 4 + rows * n_embd * 4
        return max(CONTROL_BYTES, frame)


NO_ROWS = Limits(window_rows=0, prefill_rows=0)
"""Before the handshake: no frame with rows is legal."""
