"""PyTorch, which only training needs: where it is looked for, and on which device it computes."""

from __future__ import annotations

import importlib.util

from engine.errors import BackendError, UsageError, install_hint


def require_torch() -> None:
    """Raise BackendError, naming the extra, unless PyTorch is installed. Nothing is imported."""
    if importlib.util.find_spec("torch") is None:
        raise BackendError("training needs PyTorch, which is not installed", hint=install_hint("train"))


def choose_device(name: str | None) -> str:
    """The device to train on: `name`, or the best that is there. Raises UsageError for one that is not."""
    require_torch()
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"PyTorch cannot compute on {name!r}", hint="try --device cpu") from error
    return name
