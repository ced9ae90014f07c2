"""One engine, modelled: continuous batching with chunked prefill over paged KV blocks.

Pure and deterministic: `add` and `abort` sequences, `step`, and be told how long that took and
what happened. No clock and no I/O, so the embedded engine plays it in real time and the simulator
as fast as it can.

How a step goes, as in vLLM's scheduler: decoding sequences first, each one token; then prompts
under way and then new ones from the queue, as long as the step's token budget, a seat and KV blocks
are left. When blocks run out the least urgent sequence is preempted: it gives up its blocks and is
computed again later.

What makes it fast is `engine_decoding`: decoding sequences advance together and are never looped
over, so that a stretch of steps that only decode is taken at once (`_coast`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engine_decoding import Decoding
from .engine_kv import KVBlocks
from .engine_queue import EngineQueue
from .engine_sequence import Phase, Removed, Sequence, StepResult, Stored

if TYPE_CHECKING:
    from .engine_profiles import Profile


class EngineModel:
    """A model of one engine.

    `priority` orders the queue and preemption by each sequence's priority; without it, by arrival.
    """

    def __init__(self, profile: Profile, *, priority: bool = True, events: bool = False) -> None:
        self.profile = profile
        self.preemptions = 0
        self.queried_tokens = 0
        """Prompt tokens looked up in the prefix cache."""
        self.hit_tokens = 0
        self.generated_tokens: int = 0
        """Output tokens made; those of aborted sequences counted."""
        self._events = events
        self._log: list[Stored | Removed] = []
        self._kv = KVBlocks(profile.num_blocks, self._evicted if events else None)
        self._queue = EngineQueue(priority=priority)
        self._stuck = False
        self._hashing = False
        self._added = 0
        self._running: dict[Sequence, None] = {}
        self._prefilling: list[Sequence] = []
        self._decoding = Decoding(profile.block_tokens)

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running) or self.waiting > 0

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks in use, 0 to 1; idle cached blocks count as free."""
        return self._kv.used / self._kv.total

    @property
    def kv(self) -> KVBlocks:
        """The blocks, to read."""
        return self._kv

    def produced(self, sequence: Sequence) -> int:
        """Count the output tokens that it has made."""
        if sequence.phase is Phase.DECODE:
            return self._decoding.made(sequence)
        return sequence.made

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; raises ValueError when it could never fit into the KV blocks."""
        tokens = sequence.prompt_tokens + max(0, sequence.output_tokens - 1)
        if sequence.phase is not Phase.NEW or sequence.prompt_tokens < 1:
            raise ValueError("a sequence is added once, and has at least one prompt token")
        if -(-tokens // self.profile.block_tokens) > self._kv.total:
            raise ValueError(f"{tokens} tokens do not fit into {self._kv.total} KV blocks")
        self._added += 1
        self._hashing = self._hashing or bool(sequence.hashes)
        sequence.number = self._added
        if self.profile.schedules_ahead and self._running:
            self._queue.push_later(sequence)
        else:
            self._queue.push(sequence)
            self._stuck = False

    def abort(self, sequence: Sequence) -> bool:
        """Drop a sequence at once, its blocks with it; False when it is not under way."""
        phase = sequence.phase
        if phase is Phase.WAITING:
            self._queue.drop(sequence)
        elif phase in (Phase.PREFILL, Phase.DECODE):
            self._leave(sequence)
            sequence.phase = Phase.DONE
        else:
            return False
        self._stuck = False
        return True

    def step(self, limit_s: float = 0.0) -> StepResult:
        """Take one step, and further ones that begin within `limit_s` until one is of note.

        Of note is a first token, a finish or a preemption. An idle model takes no step.
        """
        result = StepResult()
        if self._queue.arriving and not self._running:
            self._arrive()
        while self.busy:
            if self._is_calm():
                self._coast(limit_s, result)
            else:
                self._step(result)
            if self._queue.arriving:
                self._arrive()
            if result.duration_s >= limit_s or result.first or result.finished or result.preempted:
                break
        if self._log:
            result.events, self._log = self._log, []
        return result

    def calm_s(self) -> float:
        """Tell in how many seconds the next sequence ends if nothing comes; 0 when more happens.

        Only while all blocks last and every step just decodes: who waits for the end of a quiet
        stretch need not step through it.
        """
        if not self._is_calm():
            return 0.0
        profile, decoding = self.profile, self._decoding
        count = decoding.next_end - decoding.ticks
        context = count * decoding.context + decoding.count * (count * (count - 1) // 2)
        fixed = profile.step_s + decoding.count * profile.decode_sequence_s
        return count * fixed + context * profile.context_token_s

    def _is_calm(self) -> bool:
        """Whether the next step only decodes, and has the blocks for it."""
        if self._prefilling or not self._decoding.count or self._queue.arriving:
            return False
        if self.waiting and not self._stuck:
            return False
        return len(self._decoding.bucket) <= self._kv.available

    def _coast(self, limit_s: float, result: StepResult) -> None:
        """Take decode-only steps, at least one, until a sequence ends or blocks run short."""
        profile, decoding, kv = self.profile, self._decoding, self._kv
        count, buckets = decoding.count, decoding.buckets
        fixed = profile.step_s + count * profile.decode_sequence_s
        per_context, size = profile.context_token_s, profile.block_tokens
        elapsed, context, begun = result.duration_s, decoding.context, decoding.ticks
        ticks, end = begun, decoding.next_end
        room, hashing = kv.available, self._hashing
        taken = 0  # is told at the end, where nothing else looks at the blocks
        while True:
            bucket = buckets[ticks % size]
            if bucket:
                taken += len(bucket)
                for sequence in bucket:
                    sequence.plain += 1
            jump = 1
            while ticks + jump < end and not buckets[(ticks + jump) % size]:
                jump += 1
            duration = jump * fixed + per_context * (
                jump * context + count * (jump * (jump - 1) // 2)
            )
            if jump > 1 and elapsed + duration >= limit_s:
                jump, duration = 1, fixed + per_context * context
            elapsed += duration
            ticks += jump
            context += count * jump
            bucket = buckets[ticks % size]
            if hashing:
                kv.take(taken)
                taken = 0
                self._store_decoded(bucket, ticks)
                room = kv.available
            if ticks == end or elapsed >= limit_s or len(bucket) > room - taken:
                break
        kv.take(taken)
        decoding.ticks, decoding.context = ticks, context
        self.generated_tokens += count * (ticks - begun)
        result.duration_s = elapsed
        result.steps += ticks - begun
        if ticks == end:
            self._finish_due(result)

    def _step(self, result: StepResult) -> None:
        """Take one step of any kind."""
        profile, decoding = self.profile, self._decoding
        self._grow_decoding(result)
        prefilled, pairs = self._schedule_prefill(result)
        result.duration_s += (
            profile.step_s
            + prefilled * profile.prefill_token_s
            + pairs * profile.prefill_pair_s
            + decoding.count * profile.decode_sequence_s
            + decoding.context * profile.context_token_s
        )
        result.prefill_tokens += prefilled
        result.steps += 1
        decoding.ticks += 1
        decoding.context += decoding.count
        self.generated_tokens += decoding.count
        if self._hashing:
            self._store_decoded(decoding.bucket, decoding.ticks)
        self._finish_due(result)
        self._settle_prefilled(result)

    def _grow_decoding(self, result: StepResult) -> None:
        """Give a new block to each decoding sequence that stands at a block's end."""
        kv = self._kv
        for sequence in list(self._decoding.bucket):
            while sequence.phase is Phase.DECODE and not kv.available:
                self._preempt(result)
            if sequence.phase is Phase.DECODE:
                kv.take(1)
                sequence.plain += 1

    def _store_decoded(self, bucket: dict[Sequence, None], ticks: int) -> None:
        """Cache the blocks that these decoding sequences have just filled."""
        size = self.profile.block_tokens
        for sequence in bucket:
            if len(sequence.hashes) > len(sequence.blocks):
                made = sequence.made + ticks - sequence.since
                self._store(sequence, (sequence.prompt_tokens + made - 1) // size)

    def _finish_due(self, result: StepResult) -> None:
        for sequence in self._decoding.due():
            self._finish(sequence, result)

    def _schedule_prefill(self, result: StepResult) -> tuple[int, int]:
        """Give the rest of the step's budget to prompts; return tokens and attention pairs."""
        budget = total = self.profile.max_num_batched_tokens - self._decoding.count
        pairs = 0
        for sequence in list(self._prefilling):
            if not budget:
                break
            if sequence.phase is not Phase.PREFILL:
                continue
            chunk = self._extend(sequence, budget, result)
            budget -= chunk
            pairs += chunk * (2 * sequence.computed - chunk) // 2
        while budget and not result.preempted:
            admitted = self._admit(budget)
            if admitted is None:
                break
            chunk = self._compute(admitted, budget)
            budget -= chunk
            pairs += chunk * (2 * admitted.computed - chunk) // 2
        return total - budget, pairs

    def _extend(self, sequence: Sequence, budget: int, result: StepResult) -> int:
        """Compute the next chunk of a prompt under way, preempting others for its blocks."""
        while sequence.phase is Phase.PREFILL:
            if self._missing_blocks(sequence, budget) <= self._kv.available:
                return self._compute(sequence, budget)
            self._preempt(result)
        return 0

    def _missing_blocks(self, sequence: Sequence, budget: int) -> int:
        target = sequence.prompt_tokens + sequence.made
        reach = min(target, sequence.computed + budget)
        have = len(sequence.blocks) + sequence.plain
        return -(-reach // self.profile.block_tokens) - have

    def _compute(self, sequence: Sequence, budget: int) -> int:
        """Compute up to `budget` tokens of a prompt; the blocks are there. Return how many."""
        missing = self._missing_blocks(sequence, budget)
        self._kv.take(missing)
        sequence.plain += missing
        chunk = min(sequence.prompt_tokens + sequence.made - sequence.computed, budget)
        sequence.computed += chunk
        self._store(sequence, sequence.computed // self.profile.block_tokens)
        return chunk

    def _store(self, sequence: Sequence, full: int) -> None:
        """Cache a sequence's blocks up to its first `full` ones, as far as hashes are known."""
        hashes, blocks, store = sequence.hashes, sequence.blocks, self._kv.store
        first, end = len(blocks), min(full, len(sequence.hashes))
        if first >= end:
            return
        for index in range(first, end):
            blocks.append(store(hashes[index]))
        sequence.plain -= end - first
        if self._events:
            self._log.append(Stored(sequence, first, end))

    def _settle_prefilled(self, result: StepResult) -> None:
        """Take the sampled token of each prompt that is now computed whole."""
        if not self._prefilling:
            return
        rest: list[Sequence] = []
        for sequence in self._prefilling:
            if sequence.computed < sequence.prompt_tokens + sequence.made:
                rest.append(sequence)
                continue
            if sequence.output_tokens and not sequence.made:
                result.first.append(sequence)
            if sequence.output_tokens:
                sequence.made += 1
                self.generated_tokens += 1
            if sequence.made >= sequence.output_tokens:
                self._finish(sequence, result)
            else:
                self._decoding.join(sequence)
        self._prefilling = rest

    def _arrive(self) -> None:
        """Let those be begun that came while the step that is over was planned."""
        self._queue.arrive()
        self._stuck = False

    def _admit(self, budget: int) -> Sequence | None:
        """Move the head of the queue into the batch, unless seats or blocks are short."""
        sequence = self._queue.head
        if sequence is None or self._stuck:
            return None
        if len(self._running) >= self.profile.max_num_seqs:
            self._stuck = True
            return None
        if not self._reuse_prefix(sequence, budget):
            self._stuck = True
            return None
        self._queue.pop()
        sequence.phase = Phase.PREFILL
        self._running[sequence] = None
        self._prefilling.append(sequence)
        return sequence

    def _reuse_prefix(self, sequence: Sequence, budget: int) -> bool:
        """Hold the cached head of a prompt; False, and nothing held, when blocks are short.

        The last token is always computed: something must be sampled from.
        """
        size, kv = self.profile.block_tokens, self._kv
        target = sequence.prompt_tokens + sequence.made
        found = kv.match(sequence.hashes, (target - 1) // size)
        reach = min(target, len(found) * size + budget)
        missing = -(-reach // size) - len(found)
        if missing + kv.idle_among(found) > kv.available:
            return False
        kv.hold(found)
        sequence.blocks = found
        sequence.computed = len(found) * size
        if not sequence.made:
            sequence.cached_tokens = sequence.computed
            self.queried_tokens += target
            self.hit_tokens += sequence.computed
        return True

    def _preempt(self, result: StepResult) -> None:
        """Send the least urgent sequence of the batch, the latest among equals, to the queue."""
        victim = max(self._running, key=self._queue.rank)
        self._leave(victim)
        victim.computed = 0
        self._queue.push(victim)
        self._stuck = True
        self.preemptions += 1
        result.preempted.append(victim)

    def _finish(self, sequence: Sequence, result: StepResult) -> None:
        result.finished.append(sequence)
        if sequence.phase is Phase.PREFILL:
            self._drop(sequence)
        else:
            self._leave(sequence)
        sequence.phase = Phase.DONE
        self._stuck = False

    def _leave(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch, wherever in it."""
        if sequence.phase is Phase.PREFILL:
            self._prefilling.remove(sequence)
        else:
            self._decoding.leave(sequence)
        self._drop(sequence)

    def _drop(self, sequence: Sequence) -> None:
        """Give up a seat and its blocks."""
        del self._running[sequence]
        self._kv.release(sequence.blocks)
        self._kv.give(sequence.plain)
        sequence.blocks, sequence.plain = [], 0

    def _evicted(self, block_hash: int) -> None:
        self._log.append(Removed(block_hash))
