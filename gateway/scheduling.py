"""A pool's scheduling as it runs: its settings as plain values."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from forebay.policies.contracts import ConfigError
from forebay.scheduler.admission import TABLE, Watermark, WatermarkSettings
from forebay.scheduler.build import DoubleQueueSettings, Scheduling
from forebay.scheduler.guards import GuardSettings
from forebay.scheduler.length import ConstantLength, Estimator, MeanLength
from forebay.scheduler.window_adaptive import WindowSettings

from .log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.gateway.config import sections
    from forebay.policies.contracts import Request

    from .intake import AnyBody
    from .telemetry.snapshot import LengthStatus

from forebay.gateway.config.tenancy import reserve_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the rest of the file says of every pool."""

    classes: bool = False
    """There are SLA classes."""
    reserves: Mapping[str, float] = field(default_factory=dict[str, float])
    """Shares of a pool's places that are kept for some tenants, by the reserve's name."""
    tenants: frozenset[str] = frozenset()
    """Who they are, by name."""
    ttfts: Mapping[str, float] = field(default_factory=dict[str, float])
    """By SLA class that names one, the seconds until a first token."""


def shared_of(config: sections.Config) -> Shared:
    """Return what a configuration says of every pool."""
    reserves = dict(reserve_of(tenant, config.plans) for tenant in config.tenants)
    reserves.pop("", None)
    return Shared(
        classes=bool(config.sla),
        reserves=reserves,
        tenants=frozenset(tenant.name for tenant in config.tenants),
        ttfts={name: sla.ttft for name, sla in config.sla.items() if sla.ttft is not None},
    )


@runtime_checkable
class Reading(Protocol):
    """An estimator that reads prompts while they wait (`lengths.PoolLength`)."""

    @property
    def trusted(self) -> bool:
        """Predictions are believed."""
        ...

    def bind(
        self,
        *,
        revise: Callable[[str, int], bool],
        waits: Callable[[str], bool],
        trust: Callable[[], None],
    ) -> None:
        """Take what the pool does with better estimates."""
        ...

    def ask(self, request: Request, body: AnyBody, answers: int) -> None:
        """Have a prompt read."""
        ...

    def idle(self) -> None:
        """Count a request that is not read, since it does not wait."""
        ...

    def status(self) -> LengthStatus:
        """Say how it does."""
        ...

    def flush(self) -> None:
        """Write out what it logs."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


def scheduling_of(section: sections.Pool, shared: Shared) -> Scheduling:
    """Turn the sections into what the pure core takes."""
    own, guards = section.scheduling, section.scheduling.guards
    double = own.double_queue
    return Scheduling(
        order=section.order,
        predicts=own.predictor != "none",
        reread_s=own.reread.after,
        reread_dispatches=own.reread.dispatches,
        guards=GuardSettings(
            longest_wait=guards.longest_wait,
            overdue_share=guards.overdue_share,
            long_share=0.0 if double is not None else guards.long_share,
            long_cost=guards.long_tokens,
            early=guards.early,
            recalls=guards.recalls if shared.classes else 0,
        ),
        watermarks=_watermarks(section),
        double_queue=None
        if double is None
        else DoubleQueueSettings(double.long_tokens, double.long_share),
        reserves=shared.reserves,
        class_caps=dict(section.queue.classes),
        speculation=section.speculation.max_batch
        if any(endpoint.speculative for endpoint in section.endpoints)
        else None,
    )


def _watermarks(section: sections.Pool) -> WatermarkSettings | None:
    own = section.scheduling.watermarks
    if own is None:
        return None
    marks = tuple(
        Watermark(m.at, m.queue, m.max_prompt, m.short_first, m.admit, m.alarm) for m in own.marks
    )
    return WatermarkSettings(marks or TABLE, own.gap, own.stale_as, own.stale_after)


def window_of(section: sections.Pool) -> WindowSettings:
    """Turn the section into what the adaptive window takes."""
    own = section.scheduling.window
    return WindowSettings(ttft=own.ttft, tpot=own.tpot, least=own.least, most=own.most)


def predictor_of(section: sections.Pool) -> Estimator:
    """Make the pool's length predictor. Raises ConfigError."""
    name = section.scheduling.predictor
    if name == "none":
        return ConstantLength()
    if name == "mean":
        return MeanLength()
    from .reading_lengths import reader_of  # noqa: PLC0415 - numpy and ONNX Runtime, only where asked for

    return reader_of(section)


def predictor_again(section: sections.Pool, before: sections.Pool, now: Estimator) -> Estimator:
    """Return what a changed section asks for; the one there is, where it is that.

    A reload has been judged by then, so a predictor that cannot be made is told in the log.
    """
    own, was = section.scheduling, before.scheduling
    if (own.predictor, own.prediction) == (was.predictor, was.prediction):
        return now
    try:
        made = predictor_of(section)
    except ConfigError as error:
        logger.warning("the length predictor stays", extra={"reason": error.message})
        return now
    if isinstance(now, Reading):
        now.close()
    return made


def priority_of(request: Request) -> int:
    """Return the priority that engines are told: lower is more urgent, 0 is no class's."""
    return -request.sla_rank


class JournalFile(LogFile):
    """The file that a pool's journal goes to; each further dispatcher's follows in it."""

    def __init__(self, path: str) -> None:
        try:
            super().__init__(path, ended="the journal is no longer written", anew=True)
        except OSError as error:
            raise ConfigError(f"cannot write the journal {path!r}: {error.strerror}") from error


def journal_of(section: sections.Pool, now: JournalFile | None) -> JournalFile | None:
    """Return the journal that a changed section asks for; the one there is, where it is that.

    A reload has been judged by then, so a file that cannot be written is told in the log.
    """
    path = section.scheduling.journal
    if now is not None:
        if now.path == path:
            return now
        now.close()
    try:
        return None if path is None else JournalFile(path)
    except ConfigError as error:
        logger.warning("no journal is kept", extra={"reason": error.message})
        return None
