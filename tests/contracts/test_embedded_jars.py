"""The broker's jars and the Java that runs them: checked, fetched once, refused in words."""

import shutil
from pathlib import Path

import pytest

from services.embedded.jars import DIGESTS, JarsError, broker_jars, expected, fault
from services.embedded.java import JavaError, find_java
from services.settings import load


@pytest.fixture(scope="module")
def jars() -> Path:
    return broker_jars(load().cache_dir)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Maven on PATH, and a proxy that nobody answers for."""
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def a_java(directory: Path, version: str) -> Path:
    """Write a program that tells its version as Java does."""
    directory.mkdir()
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    return java


def test_the_list_names_the_broker_and_44_jars_it_needs() -> None:
    assert len(expected()) == 45
    assert "kafka_2.13-4.4.0.jar" in expected()
    assert all(len(sha256) == 64 for sha256 in expected().values())


def test_what_is_in_the_cache_is_what_the_list_says(jars: Path) -> None:
    assert fault(jars) is None


def test_an_altered_jar_is_named(jars: Path, tmp_path: Path) -> None:
    copy = tmp_path / "jars"
    shutil.copytree(jars, copy)
    altered = copy / "kafka-clients-4.4.0.jar"
    content = bytearray(altered.read_bytes())
    content[-1] ^= 1
    altered.write_bytes(content)
    told = fault(copy)
    assert told is not None
    assert "kafka-clients-4.4.0.jar has the SHA-256" in told


def test_a_missing_jar_and_one_too_many_are_named(jars: Path, tmp_path: Path) -> None:
    copy = tmp_path / "jars"
    shutil.copytree(jars, copy)
    (copy / "re2j-1.8.jar").rename(copy / "re2j-1.9.jar")
    assert fault(copy) == "re2j-1.9.jar was not asked for"
    (copy / "re2j-1.9.jar").unlink()
    assert fault(copy) == "re2j-1.8.jar is missing"


@pytest.mark.usefixtures("offline")
def test_an_altered_jar_in_the_cache_is_not_used(jars: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    copy = cache / jars.name
    shutil.copytree(jars, copy)
    (copy / "re2j-1.8.jar").write_bytes(b"something else")
    with pytest.raises(JarsError):
        broker_jars(cache)


@pytest.mark.usefixtures("offline")
def test_a_fetch_without_a_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JarsError, match=r"Is the network up.*HEADWAY_KAFKA"):
        broker_jars(tmp_path / "cache")
    left = [path.name for path in (tmp_path / "cache").iterdir()]
    assert left == ["jars.lock"]


def test_a_cache_that_cannot_be_written_is_told() -> None:
    with pytest.raises(JarsError, match="HEADWAY_CACHE"):
        broker_jars(DIGESTS / "under-a-file")


def test_a_java_that_is_too_old_is_refused_when_it_was_asked_for(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaError, match="is Java 11; the broker needs Java 17 or later"):
        find_java(str(old))


def test_java_8_is_not_taken_for_java_1(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "1.8.0_292")
    with pytest.raises(JavaError, match="is Java 8;"):
        find_java(str(old))


def test_a_java_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="no-java"):
        find_java(str(tmp_path / "no-java"))


def test_the_packaged_java_is_used_where_the_one_on_path_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = a_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", str(old.parent))
    java, version = find_java(None)
    assert java != str(old)
    assert version >= 17
