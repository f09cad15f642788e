"""A loaded model and a llama.cpp context over it: rows in, logits and hidden states out, trim.

The one place that calls llama_decode. Whatever llama.cpp would answer with a failed assertion, and so with
the end of the process, is checked here before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from engine.compute.bindings import (
    CONTEXT_TYPE_MTP,
    FLASH_ATTENTION_ON,
    NO_GPU,
    SPLIT_MODE_NONE,
    Batch,
    bindings,
)
from engine.compute.logs import SINK, reason
from engine.compute.options import ComputeOptions
from engine.errors import BackendError, TrimRefused

Hidden = NDArray[np.float32]

_CAUSES = {1: "no room in the cache", 2: "computation aborted", -1: "invalid batch", -3: "computation failed"}
_MROPE_SECTIONS = 4  # time, height, width, extra: for text the first three are the position


class Outputs(Enum):
    """Which rows of a batch get logits."""

    ALL = "all"
    LAST = "last"
    NONE = "none"


class LoadedModel:
    """The weights of one GGUF file in llama.cpp.

    `gpu_layers` counts from the last layer, head included; -1 is all. Without any, no GPU takes part: else
    llama.cpp would lend it large batches and hold its memory. `gpu_device` is the only GPU to use, -1: all.
    `devices` are those of llama.cpp to use instead of the GPUs of this machine (`engine.compute.rpc`).
    """

    def __init__(
        self,
        path: Path,
        *,
        gpu_layers: int = 0,
        gpu_device: int = -1,
        exact: bool = False,
        devices: Sequence[int] = (),
    ) -> None:
        llama = bindings()
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers
        if gpu_layers == 0 or gpu_device >= 0:
            parameters.split_mode = SPLIT_MODE_NONE
            parameters.main_gpu = gpu_device if gpu_layers else NO_GPU
        parameters.load_mtp = True
        device_list = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
        if devices:
            parameters.devices = ctypes.cast(device_list, ctypes.c_void_p)
        if exact:
            parameters.use_extra_bufts = False  # repacked weights have other kernels for batches
            os.environ["GGML_CPU_TILED_MM"] = "0"  # as K-quants have; ggml reads it at its first product
        with SINK.errors() as errors:
            self.handle: Any = llama.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.handle:
            raise BackendError(
                f"llama.cpp cannot load {path}: {reason(errors)}", hint="check file and memory"
            )
        self.path = path
        self.vocabulary: Any = llama.llama_model_get_vocab(self.handle)
        self.n_embd = int(llama.llama_model_n_embd(self.handle))
        self.n_vocab = int(llama.llama_vocab_n_tokens(self.vocabulary))

    def is_end(self, token: int) -> bool:
        """Whether a token ends an answer."""
        return bool(bindings().llama_vocab_is_eog(self.vocabulary, token))

    def close(self) -> None:
        """Free the weights; contexts over them must be closed before."""
        if self.handle:
            bindings().llama_model_free(self.handle)
            self.handle = None


class GraphRows:
    """Rows of a decode on their way into or out of the graph: of one sequence, in order, graph by graph."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor
        self.values: Hidden = np.empty((0, 0), dtype=np.float32)
        self.done_bytes = 0
        self._address = 0

    def begin(self, values: Hidden) -> None:
        self.values, self._address, self.done_bytes = values, values.ctypes.data, 0

    def copy(self, tensor: int, n_bytes: int, transfer: Any) -> None:
        """Transfer the next rows, unless there are not so many: then the decode is refused."""
        if self.done_bytes + n_bytes <= self.values.nbytes:
            transfer(tensor, self._address + self.done_bytes, 0, n_bytes)
        self.done_bytes += n_bytes


class GraphAccess:
    """Copies a tensor out of the graph, or rows over one, while llama.cpp computes it (`cb_eval`).

    llama.cpp asks for every node of the graph whether its data is wanted: `ask` must stay minimal.
    """

    def __init__(self, *, output: str = "", input: str = "") -> None:
        llama = bindings()
        wanted = frozenset(tensor.encode() for tensor in (output, input) if tensor)
        input_name = input.encode()
        name, n_bytes = llama.ggml_get_name, llama.ggml_nbytes
        read, write = llama.ggml_backend_tensor_get, llama.ggml_backend_tensor_set
        self.input = GraphRows(input) if input else None
        self.output = GraphRows(output) if output else None

        def observe(tensor: int, ask: bool, _user_data: Any) -> bool:
            found = name(tensor)
            if ask:
                return found in wanted
            if self.input is not None and found == input_name:
                self.input.copy(tensor, n_bytes(tensor), write)
            elif self.output is not None:
                self.output.copy(tensor, n_bytes(tensor), read)
            return True

        self.callback = llama.ggml_backend_sched_eval_callback(observe)


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What a context is for, besides the options of its stage."""

    options: ComputeOptions
    graph: GraphAccess | None = None
    mrope: bool = False  # four positions a row in batches of hidden states
    mtp_of: LlamaContext | None = None  # the trunk, if this context runs the NextN block


class LlamaContext:
    """One llama.cpp context. Every call concerns one sequence; its rows are consecutive positions."""

    def __init__(self, model: LoadedModel, request: ContextRequest) -> None:
        self._llama = bindings()
        self.model = model
        self._request = request
        self._handle: Any = None
        with SINK.errors() as errors:
            self._handle = self._llama.llama_init_from_model(model.handle, self._parameters())
        if not self._handle:
            raise BackendError(
                f"llama.cpp cannot make a context for {model.path.name}: {reason(errors)}",
                hint="try a smaller context or fewer sequences",
            )
        self.max_rows = int(self._llama.llama_n_batch(self._handle))
        self.pairs_single_rows = False  # compute single rows as batches of two (engine/compute/exactness.py)
        self._outputs = 0  # rows with logits of the last decode
        self._hidden_states = False
        self._make_batch()

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer; using a closed context is an error, not a crash."""
        if not self._handle:
            raise BackendError("this stage is closed", hint="open it again")
        return self._handle

    def _parameters(self) -> Any:
        options, mtp = self._request.options, self._request.mtp_of
        parameters = self._llama.llama_context_default_params()
        # llama.cpp divides n_ctx among the sequences.
        context = options.context + options.exact  # one more, to pair the last row
        parameters.n_ctx = context * options.sequences
        parameters.n_seq_max = options.sequences
        parameters.n_batch = options.batch_rows
        parameters.n_ubatch = options.graph_rows
        parameters.n_threads = options.single_row_threads
        parameters.n_threads_batch = options.threads
        parameters.flash_attn_type = FLASH_ATTENTION_ON
        parameters.swa_full = True  # a window-sized cache would break deep trims silently
        parameters.kv_unified = False
        if self._request.graph is not None:
            parameters.cb_eval = self._request.graph.callback
        if mtp is not None:
            parameters.ctx_type = CONTEXT_TYPE_MTP
            parameters.ctx_other = mtp.handle
            parameters.n_outputs_max = options.sequences  # its last row only, but no fewer than sequences
        return parameters

    def _make_batch(self) -> None:
        """The arrays of a batch, made once. All rows share one sequence number, so they share its address."""
        rows = self.max_rows
        self._steps = np.arange(rows, dtype=np.int32)
        self._tokens = np.zeros(rows, dtype=np.int32)
        self._stand_ins = np.zeros(rows, dtype=np.int32)  # token 0 is in every vocabulary
        self._positions = np.zeros(_MROPE_SECTIONS * rows, dtype=np.int32)
        self._sequence = np.zeros(1, dtype=np.int32)
        self._ones = np.ones(rows, dtype=np.int32)
        self._sequences = np.full(rows, self._sequence.ctypes.data, dtype=np.uintp)
        self._marks = {kind: np.full(rows, kind is Outputs.ALL, dtype=np.int8) for kind in Outputs}
        self._mark_address = {kind: marks.ctypes.data for kind, marks in self._marks.items()}
        self._token_address = self._tokens.ctypes.data
        self._stand_in_address = self._stand_ins.ctypes.data
        self._batch = Batch(
            pos=self._positions.ctypes.data,
            n_seq_id=self._ones.ctypes.data,
            seq_id=self._sequences.ctypes.data,
        )

    def decode(
        self,
        sequence: int,
        start: int,
        rows: int,
        outputs: Outputs,
        *,
        tokens: Sequence[int] | None = None,
        hidden: Hidden | None = None,
    ) -> None:
        """Run `rows` rows of a sequence from position `start`: tokens, hidden states, or (MTP) both.

        `hidden` is C-contiguous float32 (rows, n_embd). The caller has checked positions and token ids.
        If the graph's output is read, all rows must be marked: llama.cpp crops the last layer to those.
        Raises BackendError if llama.cpp refuses; the cache then ends at `start`.
        """
        if not 0 < rows <= self.max_rows:
            raise BackendError(f"{rows} rows in one call, but this context takes 1 to {self.max_rows}")
        if rows == 1 and self.pairs_single_rows:
            tokens = None if tokens is None else (tokens[0], tokens[0])
            hidden = None if hidden is None else np.concatenate((hidden, hidden))
            marked = Outputs.NONE if outputs is Outputs.NONE else Outputs.ALL
            self._decode(sequence, start, 2, marked, tokens, hidden)
            self.trim(sequence, start + 1)
            self._outputs = min(self._outputs, 1)
        else:
            self._decode(sequence, start, rows, outputs, tokens, hidden)

    def _decode(
        self,
        sequence: int,
        start: int,
        rows: int,
        outputs: Outputs,
        tokens: Sequence[int] | None,
        hidden: Hidden | None,
    ) -> None:
        batch = self._batch
        batch.n_tokens = rows
        self._set_input(rows, tokens, hidden)
        self._sequence[0] = sequence
        self._set_positions(start, rows, batch.token is None)
        if outputs is Outputs.LAST:
            marks = self._marks[outputs]
            marks[:rows] = 0
            marks[rows - 1] = 1
        batch.logits = self._mark_address[outputs]
        self._outputs = rows if outputs is Outputs.ALL else int(outputs is Outputs.LAST)
        graph = self._request.graph
        if graph is not None and graph.output is not None:
            graph.output.begin(np.empty((rows, self.model.n_embd), dtype=np.float32))
        code = self._llama.llama_decode(self.handle, batch)
        if code != 0:
            cause = _CAUSES.get(code, "out of memory or internal error")
            self._refuse(sequence, start, f"{rows} rows at position {start}: {cause} (code {code})")
        for side in (graph.input, graph.output) if graph is not None else ():
            if side is not None and side.done_bytes != side.values.nbytes:
                found = f"{side.tensor} has {side.done_bytes} bytes for {rows} rows"
                self._refuse(sequence, start, f"{found}, not {side.values.nbytes}")

    def _set_input(self, rows: int, tokens: Sequence[int] | None, hidden: Hidden | None) -> None:
        """Point the batch at its rows; where hidden states replace the graph's input, at stand-in tokens."""
        batch, graph = self._batch, self._request.graph
        batch.token = batch.embd = None
        if tokens is not None:
            self._tokens[:rows] = tokens
            batch.token = self._token_address
        if hidden is not None:
            if graph is not None and graph.input is not None:
                graph.input.begin(hidden)
                batch.token = self._stand_in_address
            else:
                batch.embd = hidden.ctypes.data

    def _set_positions(self, start: int, rows: int, only_hidden: bool) -> None:
        positions = self._positions
        if rows == 1:
            positions[0] = start
        else:
            np.add(self._steps[:rows], start, out=positions[:rows])
        if only_hidden and self._request.mrope:
            sections = positions[: _MROPE_SECTIONS * rows].reshape(_MROPE_SECTIONS, rows)
            sections[1:3] = sections[0]
            sections[3] = 0

    def _refuse(self, sequence: int, start: int, why: str) -> NoReturn:
        self._outputs = 0
        self._llama.llama_memory_seq_rm(self._llama.llama_get_memory(self.handle), sequence, start, -1)
        raise BackendError(f"llama.cpp could not compute {self.model.path.name}: {why}")

    def logits(self) -> NDArray[np.float32]:
        """Logits of the marked rows of the last decode, a view (marked rows, n_vocab) until the next one."""
        return _view(self._llama.llama_get_logits(self.handle), self._outputs, self.model.n_vocab)

    def provide_hidden_states(self, wanted: bool, *, of_outputs: bool = False) -> None:
        """Whether decodes also give NextN rows: of every row, or of the marked rows only."""
        if wanted != self._hidden_states:
            self._llama.llama_set_embeddings_nextn(self.handle, wanted, of_outputs)
            self._hidden_states = wanted

    def hidden_states(self, rows: int) -> Hidden:
        """NextN rows of the last decode, a view (rows, n_embd) until the next one."""
        return _view(self._llama.llama_get_embeddings_nextn(self.handle), rows, self.model.n_embd)

    def layer_rows(self, rows: int) -> Hidden:
        """Rows of the last decode that were read from the graph, (rows, n_embd); they stay as they are."""
        assert self._request.graph is not None
        assert self._request.graph.output is not None
        return self._request.graph.output.values[:rows]

    def trim(self, sequence: int, keep: int) -> None:
        """Remove the positions from `keep` on. Raises TrimRefused if the memory cannot be rolled back."""
        memory = self._llama.llama_get_memory(self.handle)
        if not self._llama.llama_memory_seq_rm(memory, sequence, keep, -1):
            raise TrimRefused(
                f"the memory of {self.model.path.name} cannot be rolled back to position {keep}",
                hint="its recurrent state has no history; speculation must stay off",
            )

    def close(self) -> None:
        if self._handle:
            self._llama.llama_free(self._handle)
            self._handle = None


def _view(address: int | None, rows: int, columns: int) -> NDArray[np.float32]:
    """Memory of llama.cpp as an array, without a copy."""
    if not address or not rows:
        raise BackendError("the last call produced no such rows")
    memory: Any = (ctypes.c_float * (rows * columns)).from_address(address)
    values: NDArray[np.float32] = np.frombuffer(memory, dtype=np.float32)
    return values.reshape(rows, columns)
