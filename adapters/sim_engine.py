"""The embedded engine's inside: settings, state, and planning of answers. No time passes here.

An answer is known whole when it is planned (text, length and finish follow from the seed and the
request alone); the step model then decides when each of its tokens is told.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from struct import pack
from typing import TYPE_CHECKING, cast

import msgspec

from forebay.scheduler.engine_kv import chain_hashes
from forebay.scheduler.engine_model import EngineModel
from forebay.scheduler.engine_profiles import find_profile
from forebay.scheduler.engine_sequence import Sequence

from .sim_job import FAULTS, Choice, Job, Part, SimError
from .sim_schema import fill
from .sim_text import prose, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from .sim_job import Ask, Received
    from .sim_responses import StoredResponse

_STORED_MOST = 1000
_EMPTY_TOKEN = 0
_DRAWS = Random("lengths of answers")  # noqa: S311 - a mock
# Log-normal, a median of 55 tokens, from 4 to 400.
_LENGTHS = [min(400, max(4, round(_DRAWS.lognormvariate(4.0, 0.7)))) for _ in range(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """One embedded engine's settings. Raises ValueError for a wrong profile or fault."""

    models: tuple[str, ...] = ("sim",)
    seed: int = 0
    profile: str = "demo"
    fault: str | None = None
    """NAME[:SHARE]: this share of the requests (default all) goes wrong."""
    priority: bool = True
    events: str | None = None
    """ZMQ endpoint to publish KV events at."""
    replay: str | None = None
    """ZMQ endpoint to replay them at."""
    topic: str = ""

    def __post_init__(self) -> None:
        find_profile(self.profile)
        if self.fault is not None:
            read_fault(self.fault)


def read_fault(text: str) -> tuple[str, float]:
    """Read NAME[:SHARE]; raises ValueError."""
    name, colon, share = text.partition(":")
    if name not in FAULTS:
        raise ValueError(f"no fault {name!r}: take one of {', '.join(FAULTS)}")
    try:
        part = float(share) if colon else 1.0
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise ValueError(f"fault {text!r}: the share after the colon must be a number from 0 to 1")
    return name, part


class SimEngine:
    """State of one embedded engine: model, counters, stored responses.

    `clock` tells Unix time, for what answers and metrics say of it.
    """

    def __init__(self, settings: SimSettings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.profile = find_profile(settings.profile)
        self.max_model_len = min(
            self.profile.max_model_len, self.profile.num_blocks * self.profile.block_tokens
        )
        self._clock = clock
        self._fault, self._share = read_fault(settings.fault) if settings.fault else (None, 0.0)
        self._faults = Random(settings.seed)  # noqa: S311 - chooses which requests fail, no secret
        self._count = 0
        self.running: Callable[[], int] = lambda: self.model.running
        """Sequences in the batch; who plays the model may know better."""
        self.forget: Callable[[Job], None] = lambda _: None
        """Told of a job that is dropped from within."""
        self.reset()

    def reset(self) -> None:
        """Begin as a new process: nothing cached, counted or stored."""
        self.model = EngineModel(
            self.profile,
            priority=self.settings.priority,
            events=self.settings.events is not None,
        )
        self.started = self._clock()
        self.prompt_tokens = 0
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.responses: dict[str, StoredResponse] = {}

    def created(self) -> int:
        """Return the time of now, as answers tell it."""
        return int(self._clock())

    def now(self) -> float:
        """Return Unix time."""
        return self._clock()

    def next_id(self, prefix: str, received: Received) -> str:
        """Make an answer's id: the caller's request id where there is one, as vLLM does."""
        return f"{prefix}-{received.header('x-request-id') or self.next_hex()}"

    def next_hex(self) -> str:
        """Return 32 hexadecimal digits, others at each call and the same in each run."""
        self._count += 1
        return blake2b(pack("<qq", self.settings.seed, self._count), digest_size=16).hexdigest()

    def check_model(self, name: str | None) -> str:
        """Return the model's name; raises SimError (404) for one that is not served."""
        if name is None:
            return self.settings.models[0]
        if name not in self.settings.models:
            raise SimError(f"The model `{name}` does not exist.", status=404, param="model")
        return name

    def store(self, response_id: str, stored: StoredResponse) -> None:
        """Keep a response; the oldest goes when there are too many."""
        self.responses[response_id] = stored
        if len(self.responses) > _STORED_MOST:
            del self.responses[next(iter(self.responses))]

    def plan(self, ask: Ask) -> Job:
        """Decide the whole answer; raises SimError where the engine would refuse.

        The caller sets the job's writer.
        """
        self._check(ask)
        fault = ask.sim.fault if ask.sim else None
        if fault is None and self._fault and self._faults.random() < self._share:
            fault = self._fault
        choices = [
            self._choose(ask, prompt, number, which, fault)
            for number, prompt in enumerate(ask.prompts)
            for which in range(ask.n)
        ]
        job = Job(choices, ask.prompts, priority=ask.priority, salt=ask.salt, fault=fault)
        for index, choice in enumerate(choices):
            choice.index, choice.job = index, job
        job.left = len(choices)
        return job

    def begin(self, job: Job) -> None:
        """Hand a job's sequences to the model."""
        size = self.profile.block_tokens
        for number, prompt in enumerate(job.prompts):
            known = chain_hashes(prompt, size, salt=job.salt)
            self.prompt_tokens += len(prompt)
            for choice in job.choices:
                if choice.prompt == number:
                    rest = prompt[len(known) * size :] + choice.ids
                    parent = known[-1] if known else None
                    choice.sequence = Sequence(
                        choice,
                        len(prompt),
                        len(choice.ids),
                        hashes=known + chain_hashes(rest, size, salt=job.salt, parent=parent),
                        priority=job.priority,
                    )
                    self.model.add(choice.sequence)

    def tokens_of(self, sequence: Sequence) -> tuple[list[int], str]:
        """Return the token ids of a sequence, prompt and answer, and its cache salt."""
        choice = cast("Choice", sequence.id)
        assert choice.job is not None
        return choice.job.prompts[choice.prompt] + choice.ids, choice.job.salt

    def finish(self, choice: Choice) -> None:
        """Count a choice that the model has finished."""
        choice.done = True
        if choice.job is not None:
            choice.job.left -= 1
        self.finished["length" if choice.finish == "length" else "stop"] += 1

    def abort(self, job: Job) -> None:
        """Drop a job's sequences from the model at once."""
        for choice in job.choices:
            sequence = choice.sequence
            if sequence is not None and not choice.done:
                self.model.abort(sequence)
                self.finished["abort"] += 1
                choice.done = True

    def drop(self, job: Job) -> None:
        """Stop a job that goes on in the background."""
        self.forget(job)
        self.abort(job)

    def _check(self, ask: Ask) -> None:
        if ask.priority and not self.settings.priority:
            raise SimError("Got priority but the engine does not schedule by priority")
        if not 1 <= ask.n <= 128:
            raise SimError(f"n must be from 1 to 128, got {ask.n}", param="n")
        if ask.max_tokens is not None and ask.max_tokens < 1:
            raise SimError(f"max_tokens must be at least 1, got {ask.max_tokens}")
        if ask.sim and ask.sim.fault is not None and ask.sim.fault not in FAULTS:
            raise SimError(f"no fault {ask.sim.fault!r}: take one of {', '.join(FAULTS)}")
        for prompt in ask.prompts:
            self.check_length(len(prompt), ask.max_tokens or 1)

    def check_length(self, prompt_tokens: int, output_tokens: int) -> None:
        """Refuse what does not fit into the model's context."""
        if prompt_tokens + output_tokens > self.max_model_len:
            raise SimError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, you"
                f" requested {prompt_tokens} prompt tokens and at least {output_tokens} output"
                " tokens. Please shorten one of them."
            )

    def _choose(
        self, ask: Ask, prompt: list[int], number: int, which: int, fault: str | None
    ) -> Choice:
        key = self._key(ask, prompt, which)
        limit = self.max_model_len - len(prompt)
        if ask.max_tokens is not None:
            limit = min(limit, ask.max_tokens)
        if ask.reads_only:
            return Choice(0, number, [], [], None, "stop")
        if fault == "empty":
            return Choice(0, number, [_EMPTY_TOKEN], [""], None, "stop")
        if ask.tools:
            choice = self._call_tools(ask, key, number)
        elif ask.schema is not None:
            ids, pieces = split(_fill(ask.schema, Random(key)))  # noqa: S311 - a mock
            choice = Choice(0, number, ids, pieces, None, "stop")
        else:
            choice = _write(ask, key, number, limit)
        _stop(choice, ask.stop)
        _limit(choice, limit)
        return choice

    def _key(self, ask: Ask, prompt: list[int], which: int) -> int:
        seed = 0 if ask.seed is None else ask.seed & 0x7FFFFFFFFFFFFFFF
        data = pack(f"<qqq{len(prompt)}I", self.settings.seed, seed, which, *prompt)
        return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")

    def _call_tools(self, ask: Ask, key: int, number: int) -> Choice:
        rng = Random(key)  # noqa: S311 - a mock
        choice = Choice(0, number, [], [], None, "tool_calls")
        for tool in ask.tools:
            ids, pieces = split(_fill(tool.parameters, rng))
            choice.ids += ids
            choice.pieces += pieces
            call_id = f"chatcmpl-tool-{rng.getrandbits(128):032x}"
            choice.parts.append(Part(len(choice.ids), tool.name, call_id))
        return choice


def _fill(schema: object, rng: Random) -> str:
    try:
        return msgspec.json.encode(fill(schema, rng)).decode()
    except ValueError as error:
        raise SimError(str(error)) from None


def _write(ask: Ask, key: int, number: int, limit: int) -> Choice:
    """Write prose: of a fixed length, or until a sentence ends near a drawn one."""
    fixed = ask.sim.output_tokens if ask.sim else None
    if fixed is None and ask.ignore_eos:
        fixed = limit
    if fixed is not None:
        wanted = min(max(fixed, 1), limit + 1)
        ids, pieces, quoted = prose(key, wanted)
        finish = "length" if ask.ignore_eos and wanted >= limit else "stop"
        return Choice(0, number, ids, pieces, quoted, finish)
    least = max(ask.min_tokens, _LENGTHS[key >> 32 & 255])
    ids, pieces, quoted = prose(key, min(least + 64, limit + 1))
    end = next((at + 1 for at in range(least - 1, len(pieces)) if pieces[at] == "."), len(pieces))
    return Choice(0, number, ids[:end], pieces[:end], quoted[:end], "stop")


def _stop(choice: Choice, stops: tuple[str, ...]) -> None:
    """End a choice before the first stop string in its text."""
    if not stops or choice.parts:
        return
    text = "".join(choice.pieces)
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return
    at, choice.stop_reason = min(found)
    end, size = 0, 0
    reach = at + len(choice.stop_reason)
    while size < reach:
        size += len(choice.pieces[end])
        end += 1
    _cut(choice, end)
    _trim(choice, at)
    choice.finish = "stop"


def _trim(choice: Choice, size: int) -> None:
    """Take away the text past `size`; the tokens that made it stay counted."""
    choice.quoted = None
    for at, piece in enumerate(choice.pieces):
        choice.pieces[at] = piece[: max(0, size)]
        size -= len(piece)


def _limit(choice: Choice, limit: int) -> None:
    if len(choice.ids) > limit:
        _cut(choice, limit)
        choice.finish, choice.stop_reason = "length", None


def _cut(choice: Choice, end: int) -> None:
    choice.ids, choice.pieces = choice.ids[:end], choice.pieces[:end]
    if choice.quoted is not None:
        choice.quoted = choice.quoted[:end]
    if choice.parts:
        kept = [part for start, _, part in choice.spans() if start < end]
        kept[-1].end = min(kept[-1].end, end)
        choice.parts = kept
