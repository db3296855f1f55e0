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
# slf4j-simple writes to standard error, so that the broker's log says why a start failed; with
# slf4j-nop it ends without a word.
COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
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

    Two processes may ask at once: one fetches, the other waits. The directory is named after the
    list of digests, so that a change of the list never takes jars away from a broker that runs.

    Raises:
        JarsError: they cannot be fetched, or a file is not the expected one.
    """
    list_digest = hashlib.sha256(DIGESTS.read_bytes()).hexdigest()[:12]
    home = cache_dir / f"kafka-{KAFKA_VERSION}-{list_digest}"
    if fault(home) is None:
        return home
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with (cache_dir / "jars.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if fault(home) is not None:
                _fetch(cache_dir, home)
    except OSError as error:
        raise JarsError(
            f"the broker's jars cannot be kept in {cache_dir}: {error.strerror}; make room there,"
            " or name another directory in HEADWAY_CACHE"
        ) from error
    return home


def fault(directory: Path) -> str | None:
    """Return what is wrong with the jars in `directory`, or None: each is there, and as expected.

    All 43 MB are read each time, which takes a tenth of a second: a jar is code that we run.
    """
    wanted = expected()
    unasked = sorted({jar.name for jar in directory.glob("*.jar")} - wanted.keys())
    if unasked:
        return f"{unasked[0]} was not asked for"
    for name, sha256 in wanted.items():
        jar = directory / name
        if not jar.is_file():
            return f"{name} is missing"
        with jar.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != sha256:
            return f"{name} has the SHA-256 {found}, but {sha256} is expected"
    return None


def _fetch(cache_dir: Path, home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="fetching-") as name:
        work = Path(name)
        maven = shutil.which("mvn")
        complaint = with_maven(maven, work, work / "by-maven") if maven else "is not on PATH"
        fetched = work / "by-maven"
        if complaint is not None:
            # jgo may reach what this Maven does not, and needs none.
            fetched = work / "by-jgo"
            fetched.mkdir()
            try:
                with_jgo(work, fetched)
            except JarsError as error:
                raise JarsError(f"{error}. (Maven: {complaint})") from error
        wrong = fault(fetched)
        if wrong is not None:
            raise JarsError(
                f"of the broker's jars, {wrong}: what was fetched was altered or damaged on its"
                " way, and is not used. Try again, and look at the Maven mirror if it stays so"
            )
        if home.exists():
            home.rename(work / "replaced")
        fetched.rename(home)


def with_maven(maven: str, work: Path, target: Path) -> str | None:
    """Fetch into `target` with the Maven at `maven`; return its complaint, or None for success."""
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
            text=True,
            timeout=FETCH_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if ran.returncode == 0:
        return None
    errors = [line for line in (ran.stdout + ran.stderr).splitlines() if "ERROR" in line]
    return errors[0].strip() if errors else f"exit code {ran.returncode}"


def with_jgo(work: Path, target: Path) -> None:
    """Fetch into `target` with jgo's resolver, whose own repository is kept in `work`.

    Raises:
        JarsError: it could not; the sentence holds the resolver's reason.
    """
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
