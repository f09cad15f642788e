"""Do two peers fit together? Every refusal names both values."""

from __future__ import annotations

import math

from engine.errors import HandshakeRefused
from engine.protocol.limits import MAX_CONTEXT, MAX_ROWS, MAX_STAGES
from engine.protocol.messages import Hello, Role, StageInfo, Welcome

MAX_EMULATED_MS = 60_000.0
NODE_ROLES = frozenset({Role.NODE, Role.PROBE})
"""Links to a machine that waits for layers: nobody's layers are in its Welcome."""

_UPGRADE = "give every machine the same model file"


def check_hello(hello: Hello, info: StageInfo) -> None:
    """HandshakeRefused unless a stage that is `info` can serve this opener.

    A lane must match in everything. A return or control link needs only the fingerprint, and that only if it
    names one. A stage has its layers and takes no others.
    """
    if hello.role in NODE_ROLES:
        raise HandshakeRefused(
            f"this is a stage, which serves layers {info.first_layer}:{info.end_layer} of {info.model_name} "
            "and takes no others",
            hint="name it with --stage instead of --node, or start it without a model",
        )
    if hello.role is not Role.LANE:
        if hello.fingerprint and hello.fingerprint != info.fingerprint:
            _differ("model fingerprint", hello.fingerprint, info.fingerprint, _UPGRADE)
        return
    _check_model(hello, info)
    _check_layers(hello, info)
    _check_at_most("window rows", hello.window_rows, info.window_rows, MAX_ROWS)
    _check_at_most("prefill rows", hello.prefill_rows, info.prefill_rows, MAX_ROWS)
    _check_at_most("context", hello.context, info.context, MAX_CONTEXT)
    _check_at_most("sequences", hello.sequences, info.sequences, MAX_ROWS)
    emulation = hello.emulation
    for name, value, most in (
        ("emulated rtt_ms", emulation.rtt_ms, MAX_EMULATED_MS),
        ("emulated jitter_ms", emulation.jitter_ms, MAX_EMULATED_MS),
        ("emulated mbps", emulation.mbps, math.inf),
    ):
        if not 0 <= value <= most:
            raise HandshakeRefused(f"{name} is {value:g}, it must be from 0 to {most:g}")


def check_welcome(hello: Hello, welcome: Welcome) -> None:
    """HandshakeRefused unless the stages that answered are the rest of the model, without a gap."""
    if hello.role in NODE_ROLES and not welcome.stages:
        return
    if not 1 <= len(welcome.stages) <= MAX_STAGES:
        raise HandshakeRefused(f"{len(welcome.stages)} stages answered, 1 to {MAX_STAGES} are possible")
    if hello.role is not Role.LANE:
        return
    expected = 1 + len(hello.route)
    if len(welcome.stages) != expected:
        raise HandshakeRefused(f"{len(welcome.stages)} stages answered, {expected} were asked for")
    next_layer = hello.first_layer
    for stage in welcome.stages:
        _check_model(hello, stage)
        if stage.first_layer != next_layer or stage.end_layer <= stage.first_layer:
            _layer_gap(next_layer, stage)
        next_layer = stage.end_layer
    if next_layer != hello.n_layers:
        raise HandshakeRefused(
            f"the last stage ends with layer {next_layer} of {hello.n_layers}",
            hint=f"add a stage for layers {next_layer}:{hello.n_layers}",
        )


def _check_model(hello: Hello, info: StageInfo) -> None:
    if hello.fingerprint != info.fingerprint:
        _differ("model fingerprint", hello.fingerprint, info.fingerprint, _UPGRADE)
    if hello.architecture != info.architecture:
        _differ("architecture", hello.architecture, info.architecture, _UPGRADE)
    if hello.n_embd != info.n_embd:
        _differ("n_embd", hello.n_embd, info.n_embd, _UPGRADE)
    if hello.n_layers != info.n_layers:
        _differ("number of layers", hello.n_layers, info.n_layers, _UPGRADE)


def _check_layers(hello: Hello, info: StageInfo) -> None:
    if hello.first_layer != info.first_layer:
        _layer_gap(hello.first_layer, info)
    if not hello.route and info.end_layer != info.n_layers:
        raise HandshakeRefused(
            f"this stage holds layers {info.first_layer}:{info.end_layer} of {info.n_layers} and no stage "
            "comes after it",
            hint=f"add a stage for layers {info.end_layer}:{info.n_layers}",
        )
    if hello.route and info.end_layer >= info.n_layers:
        raise HandshakeRefused(
            f"this stage already ends with the last layer {info.n_layers}, but {len(hello.route)} more "
            "stages are to follow",
            hint="leave them out",
        )


def _layer_gap(expected: int, info: StageInfo) -> None:
    raise HandshakeRefused(
        f"layers must go on with {expected}, but the stage holds {info.first_layer}:{info.end_layer}",
        hint="give the stages in order, each beginning where the one before it ends",
    )


def _differ(what: str, ours: object, theirs: object, hint: str) -> None:
    raise HandshakeRefused(f"{what} differs: the coordinator has {ours}, the stage {theirs}", hint=hint)


def _check_at_most(what: str, asked: int, allowed: int, bound: int) -> None:
    if not 1 <= asked <= min(allowed, bound):
        raise HandshakeRefused(
            f"the coordinator wants {what} {asked}, the stage allows 1 to {min(allowed, bound)}",
            hint="lower the setting or start the stage with a larger one",
        )
