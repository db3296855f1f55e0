"""The broker's jars: fetched once per user, checked against committed digests. No broker here.

Maven fetches them where there is one, else jgo's own resolver, which warns of a wrong checksum but
goes on; so each file is checked here, whoever fetched it, and only a whole set is put in place.
"""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KAFKA_VERSION = "4.4.0"
COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-nop:1.7.36")
DIGESTS = Path(__file__).with_name("jars.sha256")
FETCH_S_MAX = 600
_FETCHERS = 8
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>headway</groupId><artifactId>broker</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""


class JarsError(RuntimeError):
    """The jars could not be had or are not what they should be; the sentence says what to do."""


def expected() -> dict[str, str]:
    """Return the SHA-256 of each jar by its file name."""
    pairs = (line.split() for line in DIGESTS.read_text().splitlines())
    return {name: sha256 for sha256, name in pairs}


def broker_jars(cache_dir: Path) -> Path:
    """Return the directory that holds the broker's jars, all checked; fetch them if need be.

    Two processes may ask at once: one fetches, the other waits.

    Raises:
        JarsError: they cannot be fetched, or a file is not the expected one.
    """
    home = cache_dir / f"kafka-{KAFKA_VERSION}"
    if _is_whole(home):
        return home
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with (cache_dir / "jars.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_whole(home):
                _fetch(cache_dir, home)
    except OSError as error:
        raise JarsError(
            f"the broker's jars cannot be kept in {cache_dir}: {error.strerror}; make room there,"
            " or name another directory in HEADWAY_CACHE"
        ) from error
    return home


def _is_whole(home: Path) -> bool:
    """Return whether the directory holds every jar; its content was checked when it was put there.

    The size is compared too, so that a file that was cut short is fetched again.
    """
    sizes = home / "sizes"
    if not sizes.exists():
        return False
    recorded = dict(line.rsplit(" ", 1) for line in sizes.read_text().splitlines())
    if recorded.keys() != expected().keys():
        return False
    jars = {name: home / name for name in recorded}
    return all(
        jar.exists() and jar.stat().st_size == int(recorded[name]) for name, jar in jars.items()
    )


def _fetch(cache_dir: Path, home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="fetching-") as name:
        fetched = Path(name) / "jars"
        fetched.mkdir()
        maven = shutil.which("mvn")
        if maven is None or not _with_maven(maven, Path(name), fetched):
            _with_jgo(Path(name), fetched)
        check(fetched)
        lines = [f"{jar.name} {jar.stat().st_size}" for jar in sorted(fetched.glob("*.jar"))]
        (fetched / "sizes").write_text("\n".join(lines))
        if home.exists():
            shutil.rmtree(home)
        fetched.rename(home)


def check(directory: Path) -> None:
    """Compare every jar with its digest; drop jars that are not asked for.

    Raises:
        JarsError: one is missing or differs.
    """
    wanted = expected()
    for jar in directory.glob("*.jar"):
        if jar.name not in wanted:
            jar.unlink()
    for name, sha256 in wanted.items():
        jar = directory / name
        if not jar.exists():
            raise JarsError(f"the broker's jar {name} was not fetched; try again")
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != sha256:
            raise JarsError(
                f"the broker's jar {name} has the SHA-256 {found}, but {sha256} is expected: it"
                " was altered or damaged on its way, and is not used. Try again, and look at the"
                " Maven mirror if it stays so"
            )


def _with_maven(maven: str, work: Path, target: Path) -> bool:
    """Fetch by Maven; return False where it fails, for jgo may reach what Maven does not."""
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
        "</dependency>".format(*coordinate.split(":"))
        for coordinate in COORDINATES
    )
    pom = work / "pom.xml"
    pom.write_text(_POM.format(dependencies=dependencies))
    try:
        ran = subprocess.run(
            [
                *(maven, "-q", "-B", "-f", str(pom)),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={target}",
                "-DincludeScope=runtime",
            ],
            capture_output=True,
            timeout=FETCH_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ran.returncode == 0


def _with_jgo(work: Path, target: Path) -> None:
    from jgo.maven import MavenContext  # noqa: PLC0415 - takes 0.3 s and is needed once per user

    try:
        context = MavenContext(repo_cache=work / "repository")
        dependencies = [context.create_dependency(coordinate) for coordinate in COORDINATES]
        direct, transitive = context.resolver.resolve(dependencies)
        wanted = [
            dependency.artifact
            for dependency in (*direct, *transitive)
            if dependency.scope in {None, "compile", "runtime"}
        ]
        with ThreadPoolExecutor(_FETCHERS) as pool:
            for path in pool.map(_resolve, wanted):
                shutil.copy2(path, target / path.name)
    except Exception as error:
        # The resolver raises whatever its HTTP client does; the reason goes into the sentence.
        raise JarsError(
            f"the broker's jars could not be fetched: {error}. Is the network up? Behind a mirror,"
            " install Maven with its settings; or name a running Kafka in HEADWAY_KAFKA"
        ) from error


def _resolve(artifact: Any) -> Path:
    return Path(artifact.resolve())
