"""Shows a demo while it goes on: a live panel in a terminal, else a line every few seconds."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from services.cli import _demo_words as words
from services.cli._demo_run import Watch
from services.lab.scheduling import LINES

FRAME_S = 0.25
LINE_S = 5.0
RATE_WINDOW_S = 5.0
# One sample a column of the sparkline.
DEPTH_SAMPLE_S = 1.0
DEPTH_SAMPLES = 60
SPARKS = "▁▂▃▄▅▆▇█"
BAR_CHARS = 20
LABEL_CHARS = 10
# The phase in which requests are sent at their times.
SENDING = "sending"


def sparkline(values: list[int]) -> str:
    """Return a character a value, as high as it is beside the highest."""
    highest = max(values, default=0)
    if not highest:
        return SPARKS[0] * len(values)
    return "".join(SPARKS[value * (len(SPARKS) - 1) // highest] for value in values)


@dataclass(slots=True)
class Progress:
    """What is shown. `phase` is what goes on now.

    Args:
        console: where it is shown.
    """

    console: Console
    phase: str = "starting"
    watch: Watch | None = None
    began_s: float = field(default_factory=time.monotonic)
    _depth: deque[int] = field(default_factory=lambda: deque[int](maxlen=DEPTH_SAMPLES))
    _rate: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def tell(self, sentence: str) -> None:
        """Say one thing, above the panel if there is one."""
        self.console.print(f"  {sentence}", highlight=False, markup=False)

    def enter(self, phase: str) -> None:
        """Say what goes on from now on."""
        self.phase = phase
        self.tell(phase)

    @contextlib.asynccontextmanager
    async def of(self, watch: Watch, phase: str) -> AsyncGenerator[None]:
        """Show the run of `watch` meanwhile."""
        self.enter(phase)
        self.watch = watch
        self.began_s = time.monotonic()
        self._rate.clear()
        self._depth.clear()
        showing = asyncio.create_task(self._show())
        try:
            yield
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    async def _show(self) -> None:
        sampled_s = lined_s = time.monotonic()
        live = Live(console=self.console, auto_refresh=False, transient=True)
        with live if self.console.is_terminal else self.console:
            while True:
                await asyncio.sleep(FRAME_S)
                now_s = time.monotonic()
                self._sample(now_s)
                if now_s - sampled_s >= DEPTH_SAMPLE_S:
                    sampled_s = now_s
                    self._depth.append(len(self._known().occupancy.waiting))
                if self.console.is_terminal:
                    live.update(self._panel(now_s), refresh=True)
                elif now_s - lined_s >= LINE_S:
                    lined_s = now_s
                    self.tell(self._line(now_s))

    def _known(self) -> Watch:
        assert self.watch is not None  # noqa: S101 - start came first
        return self.watch

    def _sample(self, now_s: float) -> None:
        self._rate.append((now_s, self._known().occupancy.output_tokens))
        while now_s - self._rate[0][0] > RATE_WINDOW_S:
            self._rate.popleft()

    def _tokens_per_s(self) -> float:
        (first_s, first), (last_s, last) = self._rate[0], self._rate[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def _line(self, now_s: float) -> str:
        watch = self._known()
        seen, scheduling = watch.occupancy, watch.scheduling
        line = (
            f"{now_s - self.began_s:4.0f} s  {self._now()} {watch.sent}/{watch.total}:"
            f" wait {len(seen.waiting)}, run {len(seen.running)},"
            f" done {len(watch.results)}, {self._tokens_per_s():.0f} tokens/s,"
            f" KV {seen.kv_use:.0%}"
        )
        if scheduling.preemptions:
            line += f", preempted {scheduling.preemptions}"
        for job in scheduling.jobs.values():
            line += f", job {job.report.completed}/{job.report.items}"
        return line

    def _now(self) -> str:
        watch = self._known()
        sent = self.phase == SENDING and watch.sent == watch.total
        return "all sent" if sent else self.phase

    def _panel(self, now_s: float) -> RenderableType:
        watch = self._known()
        seen = watch.occupancy
        counts = Table.grid(padding=(0, 3))
        counts.add_row(
            Text(f"{now_s - self.began_s:5.0f} s  {self._now()}", style="bold"),
            _count("sent", f"{watch.sent}/{watch.total}"),
            _count("waiting", len(seen.waiting)),
            _count("running", len(seen.running)),
            _count("done", len(watch.results)),
            _count("tokens/s", f"{self._tokens_per_s():.0f}"),
        )
        depth = list(self._depth)
        lines = [
            _bar("KV", seen.kv_use, "green", "of the blocks reserved"),
            Text.assemble(
                _label("waiting"),
                (sparkline(depth), "cyan"),
                (f"  at most {max(depth, default=0)} in the last {len(depth)} s", "dim"),
            ),
            _tiers(watch),
        ]
        for name, job in watch.scheduling.jobs.items():
            report = job.report
            share = report.completed / report.items
            lines.append(_bar("job", share, "magenta", words.progress(name, job)))
        if watch.scheduling.last is not None:
            lines.append(
                Text.assemble(
                    _label("preempted"),
                    f"{watch.scheduling.preemptions}; the last: ",
                    (words.left_shortly(watch.scheduling.last), "yellow"),
                )
            )
        for model, windows in watch.scheduling.windows.items():
            told = f"{model}: {words.batches(windows)}"
            lines.append(Text.assemble(_label("batches"), told))
        for line in lines:
            line.truncate(self.console.width, overflow="ellipsis")
        return Group(counts, *lines)


def _tiers(watch: Watch) -> Text:
    """Return how many run and wait, by tier; items of jobs stand below all tiers."""
    lines = watch.scheduling.lines
    running = Counter(lines.get(one) for one in watch.occupancy.running)
    waiting = Counter(lines.get(one) for one in watch.occupancy.waiting)
    told = [(line, running[line], waiting[line]) for line in LINES]
    parts = [f"{line} {runs}+{waits}" for line, runs, waits in told if runs or waits]
    return Text.assemble(_label("tiers"), "   ".join(parts), ("   running + waiting", "dim"))


def _bar(label: str, share: float, style: str, said: str) -> Text:
    filled = round(share * BAR_CHARS)
    return Text.assemble(
        _label(label),
        ("█" * filled, style),
        ("░" * (BAR_CHARS - filled), "dim"),
        f" {share:4.0%} ",
        said,
    )


def _label(label: str) -> tuple[str, str]:
    return (f"  {label:<{LABEL_CHARS}}", "dim")


def _count(label: str, value: object) -> Text:
    return Text.assemble((f"{label} ", "dim"), str(value))
