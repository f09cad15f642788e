"""Manifests for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from engine.config.manifest import MANIFEST_NAME

WINDOWS = {"default": "fixed", "min_window": 2, "max_window": 5, "initial_window": 3, "pipeline_depth": 2}
EXTENSION = {"initial_tokens": 3, "max_tokens": 7, "tail_backoff_proposals": 4}

MANIFEST: dict[str, Any] = {
    "schema": 1,
    "format": "layer-package",
    "model": {
        "name": "Small",
        "architecture": "mimo2",
        "fingerprint": "0123456789abcdef" * 2,
        "layers": 6,
        "nextn_layers": 1,
        "embedding_length": 32,
        "tied": False,
    },
    "front": {"path": "front.gguf", "bytes": 10, "sha256": "a" * 64},
    "slices": [
        {"path": "layers-0-2.gguf", "bytes": 10, "sha256": "b" * 64, "layers": [0, 2]},
        {"path": "layers-2-4.gguf", "bytes": 10, "sha256": "c" * 64, "layers": [2, 4]},
        {"path": "layers-4-6.gguf", "bytes": 10, "sha256": "d" * 64, "layers": [4, 6]},
    ],
    "generation": {
        "speculative_decoding": {
            "default": "mtp-cache",
            "proposers": {
                "mtp": {"type": "native-mtp", "prediction_depth": 2, "layer_indices": [6]},
                "ngram-simple": {
                    "type": "ngram-simple",
                    "ngram_min": 5,
                    "ngram_max": 6,
                    "max_proposal_tokens": 20,
                },
                "ngram-cache": {
                    "type": "ngram-cache",
                    "ngram_min": 2,
                    "ngram_max": 3,
                    "max_proposal_tokens": 12,
                    "history_scope": "request",
                },
            },
            "strategies": {
                "mtp": {"type": "native-mtp", "proposer": "mtp", "window_policy": WINDOWS},
                "ngram-simple": {"type": "ngram-simple", "proposer": "ngram-simple"},
                "mtp-cache": {
                    "type": "composite",
                    "primary": "mtp",
                    "extender": "ngram-cache",
                    "extension_policy": EXTENSION,
                    "window_policy": WINDOWS,
                },
            },
            "settings": {"draft_min": 1},
        }
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The manifest with one value set; `path` leads to it, with dots. None takes the key out."""
    manifest = orjson.loads(orjson.dumps(MANIFEST))  # no part of it is shared
    place: Any = manifest
    *parts, last = path.split(".")
    for part in parts:
        place = place[int(part) if isinstance(place, list) else part]
    key: Any = int(last) if isinstance(place, list) else last
    if value is None:
        del place[key]
    else:
        place[key] = value
    return manifest


def put(directory: Path, manifest: Any = MANIFEST) -> Path:
    """A folder with this manifest and no files."""
    directory.mkdir(exist_ok=True)
    (directory / MANIFEST_NAME).write_bytes(orjson.dumps(manifest))
    return directory
