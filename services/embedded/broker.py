"""A real Apache Kafka broker as a child process, on 127.0.0.1, for one user. Knows no topic.

A single node that is its own controller. Its settings make a restart after kill -9 serve within a
few seconds, and keep it small. Data and ports are remembered in the state directory.
"""

import base64
import json
import os
import shutil
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from services.embedded.jars import broker_jars
from services.embedded.java import find_java
from services.embedded.ports import HOST, PortsError, free_port, is_free
from services.embedded.processes import Child, lock_file
from services.embedded.serving import cluster_id
from services.settings import Settings

START_S_MAX = 60.0
STOP_S_MAX = 15.0
POLL_S = 0.05
# Java 24 warns on every start without these.
_JAVA_QUIET_FROM = 24
# SIGTERM is how it is stopped: 128 + 15.
EXIT_STOPPED = 143
FREE_BYTES_MIN = 256 * 1024 * 1024
# How long a port that this broker had may take to become free again.
PORT_S_MAX = 5.0
# How long a broker whose holder was killed may take to end: its watcher makes it after 10 s.
LOCK_S_MAX = 15.0
_LOG_LINES = 400

_JVM = (
    *("-Xms64m", "-Xmx192m", "-XX:+UseSerialGC"),
    # The optimizing compiler costs more than it saves for the first minutes, on two cores: 25 µs of
    # CPU a message instead of 11 over 40 s, and a start that takes twice as long.
    "-XX:TieredStopAtLevel=1",
    # Each of the 4 threads that write holds one record outside the heap, and must not keep it.
    *("-XX:MaxDirectMemorySize=96m", "-Djdk.nio.maxCachedBufferSize=1048576"),
    *("-XX:ReservedCodeCacheSize=64m", "-XX:MaxMetaspaceSize=96m", "-Xss512k"),
    # A broker without memory must end, to be started again, and not linger.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    # What goes wrong is in the log; what goes well is not.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
)

# Requests that wait are bounded in bytes: by default, ten producers of 15 MB records are enough to
# end a broker of this heap.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
broker.heartbeat.interval.ms=200
broker.session.timeout.ms=1000
message.max.bytes=16777216
log.message.timestamp.type=LogAppendTime
log.retention.hours=168
log.segment.bytes=134217728
log.cleaner.dedupe.buffer.size=16777216
queued.max.request.bytes=50331648
socket.request.max.bytes=50331648
num.io.threads=4
num.network.threads=2
num.recovery.threads.per.data.dir=2
"""


class BrokerError(RuntimeError):
    """The broker does not run; the sentence says why and what to do."""


@dataclass(slots=True)
class Broker:
    """One embedded broker.

    Args:
        settings: where the jars are cached, and which Java to use.
        directory: of its data, properties and log.
        port: to listen on; by default the one it had before, or a free one.

    Attributes:
        notice: what the operator should know of the last start, or None: another port than before.
    """

    settings: Settings
    directory: Path
    port: int | None = None
    notice: str | None = field(default=None, init=False)
    _child: Child | None = field(default=None, init=False)
    _port: int = field(default=0, init=False)

    @property
    def bootstrap(self) -> str:
        """What clients connect to."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the JVM, or 0 before the start."""
        return self._child.pid if self._child else 0

    @property
    def alive(self) -> bool:
        """Whether the JVM runs."""
        return self._child is not None and self._child.alive

    def rss_mb(self) -> float:
        """Return the JVM's resident memory in MB (2^20 bytes)."""
        return psutil.Process(self.pid).memory_info().rss / 2**20

    def child(self) -> Child:
        """Return its process, prepared but not started: what a supervisor may keep alive.

        Raises:
            JarsError, JavaError, BrokerError: it cannot be prepared.
        """
        if self._child is None:
            self._child = self._prepare()
        return self._child

    def start(self) -> None:
        """Start the broker and return once it serves.

        Raises:
            JarsError, JavaError, ChildError: what it needs is not there.
            BrokerError: it did not come up; the last lines of its log are in the sentence.
        """
        child = self.child()
        if not child.alive:
            child.start()
        self.wait_until_serving()

    def wait_until_serving(self, seconds: float = START_S_MAX) -> None:
        """Wait until the broker answers a Kafka request.

        Raises:
            BrokerError: it ended, or it did not answer in time.
        """
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            if cluster_id(HOST, self._port) == self._cluster_id():
                return
            if not self.alive:
                raise BrokerError(f"the broker ended while starting: {self._reason()}")
            time.sleep(POLL_S)
        raise BrokerError(
            f"the broker did not serve on {self.bootstrap} within {seconds:g} s: {self._reason()}"
        )

    def stop(self) -> int | None:
        """Stop the broker in an orderly way; return its exit code (143 is success)."""
        if self._child is None:
            return None
        self._child.terminate()
        code = self._child.wait(STOP_S_MAX)
        if code is None:
            self._child.kill()
            code = self._child.wait(STOP_S_MAX)
        self._child.close()
        self._child = None
        return code

    def kill(self) -> None:
        """End the broker at once, as kill -9 does, and wait until it is gone."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(STOP_S_MAX)
            self._child.close()
            self._child = None

    def restart(self) -> None:
        """Stop the broker if it runs, start it again on the same port, and wait until it serves.

        Raises:
            BrokerError: as `start`.
        """
        self.stop()
        self.start()

    # Preparation

    def _prepare(self) -> Child:
        jars = broker_jars(self.settings.cache_dir)
        java, version = find_java(self.settings.java)
        command = [java, *_java_options(version), "-cp", f"{jars}/*"]
        properties = self.directory / "server.properties"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._wait_for_lock()
            self._check_room()
            controller = self._choose_ports()
            if not (self._data / "meta.properties").exists():
                self._format(command, controller)
            properties.write_text(self._properties(controller, self._data))
        except PortsError as error:
            raise BrokerError(f"the broker has no port: {error}") from error
        except OSError as error:
            raise BrokerError(
                f"the broker's directory {self.directory} cannot be written: {error.strerror};"
                " make room there, or choose another with --state or HEADWAY_STATE"
            ) from error
        argv = [*command, "kafka.Kafka", str(properties)]
        # Fewer arenas of the C library: they hold memory that the JVM has given back.
        environ = {"MALLOC_ARENA_MAX": "2"}
        return Child(argv, self.directory / "broker.log", environ, lock=self._lock)

    def _wait_for_lock(self) -> None:
        """Wait for the end of a broker that still runs here.

        Kafka locks its data only after it has written to its metadata log: a second broker would
        damage that log before it gave up.
        """
        until_s = time.monotonic() + LOCK_S_MAX
        while (descriptor := lock_file(self._lock)) is None:
            if time.monotonic() > until_s:
                raise BrokerError(
                    f"another broker runs on the same directory, {self.directory}; stop that one"
                )
            time.sleep(POLL_S)
        os.close(descriptor)

    @property
    def _lock(self) -> Path:
        return self.directory / "lock"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _properties(self, controller: int, data: Path) -> str:
        return PROPERTIES.format(port=self._port, controller=controller, data=data)

    def _cluster_id(self) -> str:
        """Return the id that the storage was formatted with: another broker has another one."""
        text = (self._data / "meta.properties").read_text()
        lines = (line.partition("=") for line in text.splitlines())
        return next((value for key, _, value in lines if key == "cluster.id"), "")

    def _check_room(self) -> None:
        room = psutil.disk_usage(str(self.directory)).free
        if room < FREE_BYTES_MIN:
            raise BrokerError(
                f"{self.directory} has {room // 2**20} MB left, and the broker needs"
                f" {FREE_BYTES_MIN // 2**20} MB to start: make room, or choose another directory"
                " with --state or HEADWAY_STATE"
            )

    def _choose_ports(self) -> int:
        """Settle on the broker's port, and return the controller's; the last ones if still free."""
        remembered = self.directory / "ports.json"
        last = _remembered_ports(remembered)
        self.notice = None
        fixed = self._port or self.port
        if fixed:
            # Clients have this address already, or somebody asked for it: no other one will do.
            _wait_until_free(fixed)
            self._port = fixed
        else:
            self._port = free_port(last.get("port"))
            if last.get("port") not in {None, self._port}:
                self.notice = (
                    f"port {last['port']}, which the broker had before, is taken by another"
                    f" program; it is on {self._port} now"
                )
        controller = free_port(last.get("controller"))
        while controller == self._port:
            controller = free_port()
        draft = remembered.with_suffix(".draft")
        draft.write_text(json.dumps({"port": self._port, "controller": controller}))
        draft.replace(remembered)
        return controller

    def _format(self, command: list[str], controller: int) -> None:
        """Format the storage, once: beside its place, and moved there when whole."""
        if self._data.exists() and any(self._data.iterdir()):
            raise BrokerError(
                f"{self._data} holds something, but not the meta.properties of a broker's storage,"
                " so it is left as it is: put that file back, or move the directory away to start"
                " with empty topics"
            )
        draft = self.directory / "data.draft"
        shutil.rmtree(draft, ignore_errors=True)
        properties = self.directory / "format.properties"
        properties.write_text(self._properties(controller, draft))
        made_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = [*command, "kafka.tools.StorageTool", "format", f"--cluster-id={made_id}"]
        told = _run([*tool, "-c", str(properties)])
        if told.returncode or not (draft / "meta.properties").exists():
            lines = (told.stdout + told.stderr).strip().splitlines()
            whole = [line for line in lines if not line.startswith(("\t", " "))]
            raise BrokerError(
                f"the broker's storage in {self.directory} cannot be formatted:"
                f" {whole[-1] if whole else 'the tool said nothing'}"
            )
        if self._data.exists():
            self._data.rmdir()
        draft.rename(self._data)
        properties.unlink()

    def _reason(self) -> str:
        lines = self._child.last_lines(_LOG_LINES) if self._child else []
        for line in lines:
            for sign, sentence in _REASONS.items():
                if sign in line:
                    return f"{sentence} ({line.strip()})"
        log = self._child.log if self._child else self.directory
        told = " | ".join(line.strip() for line in lines[-3:]) or "it wrote nothing"
        return f"{told}. Its log is {log}"


# What the JVM and Kafka write, and what it means for an operator.
_REASONS = {
    "Address already in use": "its port is taken by another program; stop that one",
    "No space left on device": "the disk is full; make room and start again",
    "Failed to acquire lock on file": "another broker runs on the same directory; stop that one",
    "UnsupportedClassVersionError": "the Java is too old; name a Java 17 or later in HEADWAY_JAVA",
    "OutOfMemoryError": "it ran out of memory",
    "Could not reserve enough space": "this machine has too little memory left for it",
}


def _remembered_ports(path: Path) -> dict[str, int]:
    """Return the ports of the last start; none if there was none, or the file is damaged."""
    try:
        found = json.loads(path.read_text())
        return {name: int(found[name]) for name in ("port", "controller")}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _wait_until_free(port: int) -> None:
    until_s = time.monotonic() + PORT_S_MAX
    while not is_free(port):
        if time.monotonic() > until_s:
            raise BrokerError(
                f"port {port} on {HOST} is taken by another program; stop that one, or choose"
                " another port"
            )
        time.sleep(POLL_S)


def _java_options(version: int) -> list[str]:
    quiet = ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
    return [*_JVM, *(quiet if version >= _JAVA_QUIET_FROM else [])]


def _run(argv: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=START_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerError(f"{argv[0]} did not run: {error}") from error
