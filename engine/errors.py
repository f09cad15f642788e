"""Every error a person can meet: what happened, where, and what to do next.

A `SkippyError` is printed as one line. `code` is stable and meant for scripts and for the wire; `exit_code`
is what a command ends with; `hint` is the next step.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class SkippyError(Exception):
    """Base of all errors that are shown to people instead of a traceback."""

    code = "failed"
    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        """One line: the cause, then the next step.

        Messages may quote a file or a peer, so whatever could act on a terminal is shown as "?".
        """
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


class UsageError(SkippyError):
    """The call itself is wrong: an unknown flag, a value out of range, options that exclude each other."""

    code = "usage"
    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A setting of the configuration is wrong; the message names the key and the allowed values."""

    code = "config"


class ModelFileError(SkippyError):
    """A file is missing, no GGUF, truncated or malformed; the message names the file and the field."""

    code = "model-file"


class ArchitectureRefused(SkippyError):
    """The architecture cannot be split; the message lists those that can."""

    code = "architecture"


class CutRefused(SkippyError):
    """This architecture can be split, but not at this layer."""

    code = "cut"


class CacheError(SkippyError):
    """The slice cache cannot be written or read (full disk, read-only, damaged)."""

    code = "cache"


class PackageError(SkippyError):
    """A package of a model is damaged, incomplete or unsafe; `code` names the broken rule."""

    code = "package"


class BackendError(SkippyError):
    """llama.cpp refused a call, or the installed llama-cpp-python lacks one that staging needs."""

    code = "backend"


class TrimRefused(BackendError):
    """The memory of a context could not be rolled back to a position."""

    code = "trim"


class ContextFull(SkippyError):
    """A prompt (or a position) does not fit in the context."""

    code = "context"


class ProtocolError(SkippyError):
    """A peer sent something that the protocol does not allow."""

    code = "protocol"


class HandshakeRefused(ProtocolError):
    """Two peers do not fit together; the message names both values."""

    code = "handshake"


class LinkError(SkippyError):
    """A connection could not be made or broke; the message names the address."""

    code = "link"


class Unauthorized(LinkError):
    """The peer refused our token, or we refused its token (HTTP 401)."""

    code = "unauthorized"


class EngineLost(LinkError):
    """The engine process went away, or does not answer; the message says how it ended."""

    code = "engine-lost"


class StageLost(LinkError):
    """A stage went away while it was needed; the message names stage, address and cause.

    `stage` is its place in the chain, -1 if that is not known.
    """

    code = "stage-lost"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None, stage: int = -1) -> None:
        super().__init__(message, hint=hint, code=code)
        self.stage = stage


class Busy(SkippyError):
    """All sequences are in use; try again."""

    code = "busy"


def reported_error(message: str, *, hint: str = "", code: str = SkippyError.code) -> SkippyError:
    """An error that another process told us of: with the exit code of its kind."""
    error = SkippyError(message, hint=hint, code=code)
    error.exit_code = next((kind.exit_code for kind in _kinds(SkippyError) if kind.code == code), EXIT_FAILED)
    return error


def reason_of(error: Exception) -> str:
    """Why something failed: of an error of the system its words, without number and file name."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def install_hint(extra: str) -> str:
    """How to get an extra of this project. No package index has it; a `skippy` there is another project.

    Editable, as `make setup` does it.
    """
    return f"in the checkout: .venv/bin/pip install --editable '.[{extra}]'"


def _kinds(base: type[SkippyError]) -> list[type[SkippyError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in _kinds(child))]
