"""A real Apache Kafka broker as a child process, on 127.0.0.1, for one user. Knows no topic.

A single node that is its own controller. Its settings make a restart after kill -9 serve within a
few seconds, and keep it small. Data and ports are remembered in the state directory.
"""

import json
import os
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from services.embedded.jars import broker_jars
from services.embedded.java import find_java
from services.embedded.processes import Child
from services.settings import Settings

START_S_MAX = 60.0
STOP_S_MAX = 15.0
POLL_S = 0.05
# Java 24 warns on every start without these.
_JAVA_QUIET_FROM = 24
# SIGTERM is how it is stopped: 128 + 15.
EXIT_STOPPED = 143
FREE_BYTES_MIN = 256 * 1024 * 1024

_HEAP = ("-Xms64m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=64m")
_SMALL = ("-XX:ReservedCodeCacheSize=64m", "-XX:MaxMetaspaceSize=96m", "-Xss512k")

_PROPERTIES = """\
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
    """

    settings: Settings
    directory: Path
    port: int | None = None
    _child: Child | None = field(default=None, init=False)
    _port: int = field(default=0, init=False)

    @property
    def bootstrap(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self._port}"

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
            if answers_kafka("127.0.0.1", self._port):
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

    # Preparation

    def _prepare(self) -> Child:
        jars = broker_jars(self.settings.cache_dir)
        java, version = find_java(self.settings.java)
        data = self.directory / "data"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._check_room()
            controller = self._choose_ports()
            properties = self.directory / "server.properties"
            text = _PROPERTIES.format(port=self._port, controller=controller, data=data)
            properties.write_text(text)
        except OSError as error:
            raise BrokerError(
                f"the broker's directory {self.directory} cannot be written: {error.strerror};"
                " choose another with --state or HEADWAY_STATE"
            ) from error
        command = [java, *_java_options(version), "-cp", f"{jars}/*"]
        if not (data / "meta.properties").exists():
            self._format(command, properties)
        environ = {"MALLOC_ARENA_MAX": "2"}
        argv = [*command, "kafka.Kafka", str(properties)]
        return Child(argv, self.directory / "broker.log", environ)

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
        last: dict[str, int] = {}
        if remembered.exists():
            try:
                last = json.loads(remembered.read_text())
            except ValueError:
                last = {}
        if self.port is not None and not is_free(self.port):
            raise BrokerError(
                f"port {self.port} on 127.0.0.1 is taken by another program; choose another port"
            )
        self._port = self.port or free_port(last.get("port"))
        controller = free_port(last.get("controller"))
        remembered.write_text(json.dumps({"port": self._port, "controller": controller}))
        return controller

    def _format(self, command: list[str], properties: Path) -> None:
        """Format the data directory, once. Half-formatted means: not formatted."""
        tool = [*command, "kafka.tools.StorageTool"]
        made = _run([*tool, "random-uuid"])
        cluster_id = made.stdout.strip().splitlines()[-1] if made.stdout.strip() else ""
        arguments = ["format", "-t", cluster_id, "-c", str(properties), "--ignore-formatted"]
        told = _run([*tool, *arguments])
        if made.returncode or told.returncode:
            lines = (told.stderr + told.stdout + made.stderr).strip().splitlines()
            raise BrokerError(
                f"the broker's storage in {self.directory} cannot be formatted:"
                f" {lines[-1] if lines else 'the tool said nothing'}"
            )

    def _reason(self) -> str:
        lines = self._child.last_lines(400) if self._child else []
        for line in lines:
            for sign, sentence in _REASONS.items():
                if sign in line:
                    return f"{sentence} ({line.strip()})"
        log = self._child.log if self._child else self.directory
        return f"{' | '.join(lines[-3:]) or 'it wrote nothing'}. Its log is {log}"


_REASONS = {
    "Address already in use": "its port is taken by another program; stop that one",
    "No space left on device": "the disk is full; make room and start again",
    "UnsupportedClassVersionError": "the Java is too old; name a Java 17 or later in HEADWAY_JAVA",
    "OutOfMemoryError": "it ran out of memory",
}


def is_free(port: int) -> bool:
    """Return whether nothing listens on `port` of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(wanted: int | None) -> int:
    """Return `wanted` if nothing listens there, else a port that is free now."""
    if wanted and is_free(wanted):
        return wanted
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers_kafka(host: str, port: int, seconds: float = 1.0) -> bool:
    """Return whether a Kafka broker answers there: an ApiVersions request, version 0."""
    client = b"headway"
    body = struct.pack(">hhih", 18, 0, 1, len(client)) + client
    try:
        with socket.create_connection((host, port), timeout=seconds) as peer:
            peer.sendall(struct.pack(">i", len(body)) + body)
            header = peer.recv(10)
    except OSError:
        return False
    # Length, correlation id, error code.
    return len(header) == 10 and struct.unpack(">iih", header)[1:] == (1, 0)  # noqa: PLR2004 - its packed size


def _java_options(version: int) -> list[str]:
    quiet = ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
    return [*_HEAP, *_SMALL, *(quiet if version >= _JAVA_QUIET_FROM else [])]


def _run(argv: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=START_S_MAX,
            check=False,
            env={**os.environ},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerError(f"{argv[0]} did not run: {error}") from error
