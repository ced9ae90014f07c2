"""The embedded engine: an opener that answers in process, as a real vLLM would.

`Embedded` plays the step model in real time, with one timer a step, and tells each answer to its
sink. `SimAdapter` speaks to an engine of this kind that is behind a port.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, ClassVar, cast

import msgspec

from forebay.policies.contracts import ConfigError, EngineFailed, EngineUnreachable, Route

from .base import Load, ModelCard, Probe
from .sim_engine import SimEngine, SimSettings
from .sim_events import open_publisher, shape_events
from .sim_job import Job, Received, Reply
from .sim_plain import VERSION
from .sim_routes import answer
from .sim_stream import Collector, Nobody, SimStream
from .vllm import Vllm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.scheduler.engine_sequence import StepResult

    from .base import Sink
    from .sim_job import Choice

DOWN_S = 1.0
"""How long a dead engine takes to come back."""
_BURST = 64
_JSON = (("content-type", "application/json"),)
_encode = msgspec.json.encode
_SSE = b"text/event-stream; charset=utf-8"


class SimAdapter(Vllm):
    """Speaks to an embedded engine behind a port, which is shaped like vLLM.

    The body field `sim` fixes one answer; it steers no scheduling, and so passes through.
    """

    engine: ClassVar[str] = "sim"


class Embedded:
    """One embedded engine, as an opener. Lives on the loop that it is first opened on."""

    def __init__(  # noqa: PLR0913 - all but the first are named settings
        self,
        engine: SimEngine | None = None,
        *,
        model: str | Sequence[str] = "sim",
        seed: int = 0,
        profile: str = "demo",
        fault: str | None = None,
        kv_events: str | None = None,
        kv_replay: str | None = None,
    ) -> None:
        """Make an engine of these settings, or play one that was made elsewhere.

        Raises ConfigError for a profile or fault that does not exist, or an endpoint that is taken.
        """
        try:
            self.engine = engine or SimEngine(
                SimSettings(
                    models=(model,) if isinstance(model, str) else tuple(model),
                    seed=seed,
                    profile=profile,
                    fault=fault,
                    events=kv_events,
                    replay=kv_replay,
                )
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._events = open_publisher(self.engine)
        self.engine.running = lambda: self.running
        self.engine.forget = self._forget
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[Job, SimStream] = {}
        self._streaming: dict[Job, None] = {}
        self._stalled: set[Job] = set()
        self._timer: asyncio.Handle | None = None
        self._pending: StepResult | None = None
        self._due = 0.0
        self._down = False

    def open(
        self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes, sink: Sink
    ) -> SimStream:
        """Answer one request; see `Opener.open`."""
        loop = self._loop = asyncio.get_running_loop()
        if self._events is not None:
            self._events.watch(loop)
        stream = SimStream(sink, loop, self._left)
        received = Received(method, path.partition("?")[0], headers, body)
        loop.call_soon(self._receive, stream, received)
        return stream

    async def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str = "POST",
        headers: Sequence[tuple[str, str]] = (),
    ) -> Collector:
        """Send one request with this JSON body (bytes as they are), and wait for its whole answer.

        For tests and notebooks; an answer that broke off has its `error` set.
        """
        raw = body if isinstance(body, bytes) else b"" if body is None else _encode(body)
        collector = Collector()
        self.open(method, path, headers or _JSON, raw, collector)
        await collector.ended.wait()
        return collector

    def close(self) -> None:
        """Stop publishing events; answers under way go on."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def probe(self) -> Probe:
        """Say what it is; raises EngineUnreachable while it is down."""
        self._check_up()
        engine = self.engine
        return Probe(
            engine=SimAdapter.engine,
            version=VERSION,
            models=tuple(ModelCard(name, engine.max_model_len) for name in engine.settings.models),
            limit=engine.profile.max_num_seqs,
            routes=frozenset(Route),
            started=engine.started,
        )

    def load(self) -> Load:
        """Say how busy it is; raises EngineUnreachable while it is down."""
        self._check_up()
        model = self.engine.model
        return Load(running=self.running, waiting=model.waiting, kv_use=model.kv_use)

    @property
    def running(self) -> int:
        """Sequences in the batch; those of a step under way and those that hang counted."""
        finished = self._pending.finished if self._pending is not None else ()
        ending = sum(not cast("Choice", sequence.id).done for sequence in finished)
        return self.engine.model.running + ending + len(self._stalled)

    def die(self, back_after_s: float = DOWN_S) -> None:
        """Lose everything, as a crashed process does, and come back after so long."""
        if self._down:
            return
        self._down = True
        streams = list(self._streams.values())
        self._streams.clear()
        self._streaming.clear()
        self._stalled.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._pending = None
        self.engine.reset()
        for stream in streams:
            stream.fail(EngineFailed("the engine broke off: it died and is starting again"))
        asyncio.get_running_loop().call_later(back_after_s, self._come_back)

    def _receive(self, stream: SimStream, received: Received) -> None:
        if stream.over:
            return
        if self._down:
            stream.fail(EngineUnreachable("the engine refused the connection: it is starting"))
            return
        found = answer(self.engine, received)
        if isinstance(found, Reply):
            stream.sent = True
            _tell(stream, found)
            return
        if found.fault == "refuse":
            stream.fail(EngineUnreachable("the engine refused the connection"))
            return
        stream.sent = True
        if found.early is not None:
            _tell(stream, Reply(found.early))
            assert self._loop is not None
            stream = SimStream(Nobody(), self._loop, self._left)
        stream.job = found
        self._streams[found] = stream
        delay = self.engine.profile.overhead_s
        assert self._loop is not None
        if delay:
            self._loop.call_later(delay, self._start, found)
        else:
            self._start(found)

    def _start(self, job: Job) -> None:
        stream = self._streams.get(job)
        if stream is None:
            return
        if job.fault in _REFUSALS:
            del self._streams[job]
            _tell(stream, _REFUSALS[job.fault])
            return
        if job.fault == "stall":
            self._stalled.add(job)
            return
        stream.slow = 10.0 if job.fault == "slow" else 1.0
        self.engine.begin(job)
        if job.writer.stream:
            self._streaming[job] = None
            stream.head(200, [(b"content-type", _SSE)])
        if job.fault == "poison":
            self.die()
            return
        self._wake()

    def _left(self, stream: SimStream) -> None:
        """Abort what a caller that went away had asked for."""
        job = stream.job
        if job is None or self._streams.pop(job, None) is None:
            return
        self._forget(job)
        self.engine.abort(job)

    def _forget(self, job: Job) -> None:
        self._streams.pop(job, None)
        self._streaming.pop(job, None)
        self._stalled.discard(job)

    def _wake(self) -> None:
        if self._timer is None:
            assert self._loop is not None
            self._due = self._loop.time()
            self._timer = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Tell what the step that is now over did, and begin the next one."""
        loop, self._timer = self._loop, None
        assert loop is not None
        if self._pending is not None:
            result, self._pending = self._pending, None
            self._deliver(result)
        for _ in range(max(1, _BURST // (1 + len(self._streaming)))):
            if self._down or not self.engine.model.busy:
                return
            result = self._step()
            if result.duration_s:
                self._pending = result
                # A late timer is made up for, a loop that stood still is not.
                self._due = max(self._due, loop.time() - 0.1) + result.duration_s
                self._timer = loop.call_at(self._due, self._turn)
                return
            self._deliver(result)
        if not self._down and self._timer is None:
            self._timer = loop.call_soon(self._turn)

    def _step(self) -> StepResult:
        """Take one step; where none takes time and nobody streams, all up to the next finish."""
        instant = self.engine.profile.step_s == 0 and not self._streaming
        return self.engine.model.step(inf if instant else 0.0)

    def _deliver(self, result: StepResult) -> None:
        if self._events is not None and result.events:
            size = self.engine.profile.block_tokens
            self._events.publish(shape_events(result.events, self.engine.tokens_of, size))
        for sequence in result.finished:
            choice = cast("Choice", sequence.id)
            if choice.done:
                continue  # its caller left while its last step was under way
            self.engine.finish(choice)
            job = choice.job
            if job is not None and not job.left and job not in self._streaming:
                self._complete(job)
        for job in list(self._streaming):
            if job in self._streaming:
                self._push(job)

    def _complete(self, job: Job) -> None:
        """Tell a whole answer."""
        stream = self._streams.get(job)
        if stream is None:
            return  # an earlier answer of this step took the engine down
        if job.fault == "restart":
            self.die()
            return
        usage = job.usage()
        body = job.writer.whole(usage)
        if job.fault in _BREAKS:
            stream.head(200, _headers(job.content_type, len(body)))
            stream.data(body[: len(body) // 2])
            self._break(job)
            return
        self._forget(job)
        if job.on_end is not None:
            job.on_end(usage)
        _tell(stream, Reply(body, content_type=job.content_type))

    def _push(self, job: Job) -> None:
        """Tell the new tokens of a stream."""
        model, writer, stream = self.engine.model, job.writer, self._streams[job]
        chunks: list[bytes] = []
        for choice in job.choices:
            sequence, told = choice.sequence, choice.told
            made = model.produced(sequence) if sequence is not None else 0
            if made > told:
                if not stream.begun:
                    stream.begun = True
                    chunks.append(writer.head())
                chunks.append(writer.tokens(choice, told, made))
                choice.told = made
        if not chunks:
            return
        stream.data(b"".join(chunks))
        if job.fault is not None and self._is_due(job):
            self._break(job)
        elif not job.left and job in self._streaming:
            usage = job.usage()
            tail = writer.tail(usage)
            self._forget(job)
            if job.on_end is not None:
                job.on_end(usage)
            stream.data(tail)
            stream.end()

    def _is_due(self, job: Job) -> bool:
        """Whether a stream's fault comes now."""
        told = sum(choice.told for choice in job.choices)
        whole = sum(len(choice.ids) for choice in job.choices)
        return job.fault in ("stall_after_first", "restart") or (
            job.fault == "cut" and (2 * told >= whole or not job.left)
        )

    def _break(self, job: Job) -> None:
        """Break an answer off, in its fault's way."""
        stream = self._streams.get(job)
        if stream is None:
            return
        if job.fault == "restart":
            self.die()
            return
        self.engine.abort(job)
        self._streaming.pop(job, None)
        if job.fault == "stall_after_first":
            self._stalled.add(job)
            return
        self._forget(job)
        stream.fail(EngineFailed("the engine broke off in the middle of its answer"))

    def _check_up(self) -> None:
        if self._down:
            raise EngineUnreachable("the engine refused the connection: it is starting")

    def _come_back(self) -> None:
        self.engine.reset()
        if self._events is not None:
            self._events.restart()
        self._down = False


_BREAKS = frozenset({"cut", "stall_after_first"})
_REFUSALS = {
    "error503": Reply(
        b'{"error":{"message":"The engine has too many requests.","type":"Service Unavailable",'
        b'"param":null,"code":503}}',
        503,
    ),
    "error500": Reply(
        b'{"error":{"message":"Internal server error.","type":"InternalServerError",'
        b'"param":null,"code":500}}',
        500,
    ),
}


def _headers(content_type: bytes, size: int) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", content_type), (b"content-length", b"%d" % size)]


def _tell(stream: SimStream, reply: Reply) -> None:
    stream.head(reply.status, _headers(reply.content_type, len(reply.body)))
    if reply.body:
        stream.data(reply.body)
    stream.end()
