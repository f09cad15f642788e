"""TLS for links: the certificate of a stage, and whom an opener trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

from engine.errors import UsageError


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """For a stage that listens on `wss://`: its certificate chain and private key, PEM files.

    UsageError naming the file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(_file(certificate, "--tls-cert"), _file(key, "--tls-key"))
    except ssl.SSLError as error:
        raise UsageError(
            f"{certificate} and {key} are no certificate and its private key: {error.reason or error}",
            hint="give both as PEM files",
        ) from error
    return context


def client_context(authority: str) -> ssl.SSLContext:
    """For whoever dials `wss://`: trusts the certificates of the PEM file `authority`, or, if that is empty,
    those that the system trusts. The name in the certificate must be the host that was dialled.

    UsageError naming the file if it cannot be used.
    """
    if not authority:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=_file(authority, "--tls-ca"))
    except ssl.SSLError as error:
        raise UsageError(
            f"{authority} holds no certificate: {error.reason or error}", hint="give --tls-ca a PEM file"
        ) from error


def _file(path: str, flag: str) -> str:
    """The path, once the file turned out to be readable."""
    try:
        with Path(path).open("rb"):
            return path
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror or error}") from error
