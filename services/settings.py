"""Where things are: from flags, then the environment, then a place of this user. Decides nothing.

HEADWAY_KAFKA       host:port,… of a real Kafka; without it, an embedded broker.
HEADWAY_CLICKHOUSE  http://user:password@host:port of a real ClickHouse; without it, embedded.
HEADWAY_STATE       directory for the embedded parts' data.
HEADWAY_CACHE       directory for what is fetched once per user.
HEADWAY_JAVA        the Java to run the embedded broker with.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

KAFKA = "HEADWAY_KAFKA"
CLICKHOUSE = "HEADWAY_CLICKHOUSE"
STATE = "HEADWAY_STATE"
CACHE = "HEADWAY_CACHE"
JAVA = "HEADWAY_JAVA"


class SettingsError(ValueError):
    """A setting is not usable; the sentence names it and says what it should be."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are.

    Attributes:
        kafka: bootstrap servers of a real Kafka, or None for the embedded one.
        clickhouse: URL of a real ClickHouse, or None for the embedded one.
        state_dir: where the embedded parts keep their data.
        cache_dir: what is fetched once per user, such as the broker's jars.
        java: the Java executable that was asked for, or None to look for one.
    """

    kafka: str | None
    clickhouse: str | None
    state_dir: Path
    cache_dir: Path
    java: str | None


def load(
    state_dir: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings; `state_dir` is the flag, which wins over the environment.

    Raises:
        SettingsError: a variable holds something that cannot be used.
    """
    kafka = environ.get(KAFKA, "").strip() or None
    if kafka is not None:
        _check_bootstrap(kafka)
    clickhouse = environ.get(CLICKHOUSE, "").strip() or None
    if clickhouse is not None:
        _check_url(clickhouse)
    home = Path(environ.get("HOME") or Path.home())
    data_home = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    cache_home = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    chosen = state_dir or environ.get(STATE) or data_home / "headway"
    return Settings(
        kafka=kafka,
        clickhouse=clickhouse,
        state_dir=Path(chosen).expanduser().absolute(),
        cache_dir=Path(environ.get(CACHE) or cache_home / "headway").expanduser().absolute(),
        java=environ.get(JAVA, "").strip() or None,
    )


def _check_bootstrap(servers: str) -> None:
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit():
            raise SettingsError(
                f"{KAFKA} holds {server.strip()!r}; it should be host:port, or several of them"
                " with commas between"
            )


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(
            f"{CLICKHOUSE} holds {url!r}; it should be a URL such as http://127.0.0.1:8123"
        )
