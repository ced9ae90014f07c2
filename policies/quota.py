"""What a tenant may use, and the arithmetic that says whether one more request fits.

Theory of operation. A sliding minute is kept in slots of one second. What is taken at time t goes
to the slot of its second, and counts from then until no moment of that second lies within the last
60 s: between 60 and 61 s. So no 60 s, wherever they begin, ever hold more than the limit, and there
is no edge at which a burst fits twice. All of a request's limits are looked at before any is taken:
either all hold its share afterwards or none does.

A request takes an estimate and is settled once on what it really used. What it used less is given
back to the second it was taken in; what it used more counts from the moment it is known. Days and
months are the calendar's: they are counted by the day on which the request was let in.

Money is counted in whole billionths ("nano") of the currency: sums of integers do not drift.
"""

from __future__ import annotations

from msgspec import Struct

WINDOW_S = 60
NANO = 1_000_000_000
UNLIMITED = float("inf")
_SLOTS = 64
_MASK = _SLOTS - 1


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one tenant; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    """Requests let in and not yet ended, waiting ones included."""
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    money_per_day: float | None = None
    """In the currency of the prices."""
    money_per_month: float | None = None
    max_prompt: int | None = None
    """Tokens of one prompt."""
    max_output: int | None = None
    """Tokens of one answer."""
    models: frozenset[str] | None = None
    sla: frozenset[str] | None = None
    """SLA classes that it may ask for."""
    queue_share: float | None = None
    """Of the places in a pool's queue, 0 to 1."""


class Price(Struct, frozen=True, kw_only=True):
    """What a million tokens cost."""

    prompt: float = 0.0
    cached: float | None = None
    """Prompt tokens that the engine had cached; None is the price of the others."""
    output: float = 0.0

    def nano(self, prompt: int, cached: int, output: int) -> int:
        """Return the price of one request; `prompt` includes `cached`."""
        price = self.prompt if self.cached is None else self.cached
        millionths = (prompt - cached) * self.prompt + cached * price + output * self.output
        return round(millionths * 1000)


FREE = Price()


class Estimate(Struct, frozen=True, gc=False):
    """What one request takes before anybody knows what it will use, or what it did use."""

    requests: int = 1
    tokens: int = 0
    nano: int = 0
    """Money."""


class Caps(Struct, frozen=True, gc=False):
    """Limits as plain numbers to compare with: infinite where there is no limit."""

    requests: float = UNLIMITED
    tokens: float = UNLIMITED
    concurrent: float = UNLIMITED
    day_tokens: float = UNLIMITED
    month_tokens: float = UNLIMITED
    day_nano: float = UNLIMITED
    month_nano: float = UNLIMITED

    @classmethod
    def of(cls, limits: Limits) -> Caps:
        """Return what of a tenant's limits is counted."""
        return cls(
            _cap(limits.requests_per_minute),
            _cap(limits.tokens_per_minute),
            _cap(limits.concurrent),
            _cap(limits.tokens_per_day),
            _cap(limits.tokens_per_month),
            _cap(limits.money_per_day, NANO),
            _cap(limits.money_per_month, NANO),
        )

    def share(self, parts: int) -> Caps:
        """Return one of `parts` equal parts, rounded down: all parts are never more than this."""
        return Caps(*(cap if cap == UNLIMITED else cap // parts for cap in self.numbers()))

    def numbers(self) -> tuple[float, ...]:
        """Return them in the order of `NAMES`."""
        return (
            self.requests,
            self.tokens,
            self.concurrent,
            self.day_tokens,
            self.month_tokens,
            self.day_nano,
            self.month_nano,
        )


NAMES = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent",
    "tokens_per_day",
    "tokens_per_month",
    "money_per_day",
    "money_per_month",
)
"""Of the limits that are counted, in the order in which a store tells them."""
REQUESTS, TOKENS, CONCURRENT, DAY_TOKENS, MONTH_TOKENS, DAY_MONEY, MONTH_MONEY = range(7)
CONCURRENT_RETRY_S = 1.0
"""When to come back where only a request that ends can make room: nobody knows when one will."""


def _cap(limit: float | None, factor: int = 1) -> float:
    return UNLIMITED if limit is None else round(limit * factor)


class Dates(Struct, frozen=True, gc=False):
    """The calendar at one moment, in the tenant's time zone."""

    day: int
    """As 20261129."""
    month: int
    """As 202611."""
    day_left_s: float = 0.0
    """Until the next day begins."""
    month_left_s: float = 0.0


class Shortage(Struct, frozen=True, gc=False):
    """Why a request does not fit."""

    limit: int
    """The one that it has to wait for longest: an index into `NAMES`."""
    retry_after: float | None
    """Seconds until this very request would pass if nobody else came; None: it never will."""


class Window:
    """A sliding minute. Times are whole seconds that never go back; see the module's theory."""

    __slots__ = ("second", "slots", "total")

    def __init__(self) -> None:
        self.second = 0
        self.slots = [0] * _SLOTS
        self.total = 0

    def advance(self, second: int) -> None:
        """Let go of what has left the window by `second`."""
        gone = second - self.second
        if gone <= 0:
            return
        if gone > WINDOW_S:
            self.slots = [0] * _SLOTS
            self.total = 0
        elif self.total:
            slots = self.slots
            for left in range(self.second - WINDOW_S, second - WINDOW_S):
                self.total -= slots[left & _MASK]
                slots[left & _MASK] = 0
        self.second = second

    def add(self, amount: int) -> None:
        """Count more, from the second last advanced to."""
        self.slots[self.second & _MASK] += amount
        self.total += amount

    def give_back(self, second: int, amount: int) -> None:
        """Count less of what was taken in `second`, unless that has left the window."""
        if second >= self.second - WINDOW_S:
            self.slots[second & _MASK] -= amount
            self.total -= amount

    def frees(self, amount: float) -> int | None:
        """Return from when on at least `amount` has left; None when there is not as much."""
        if amount <= 0:
            return self.second
        freed = 0
        for second in range(self.second - WINDOW_S, self.second + 1):
            freed += self.slots[second & _MASK]
            if freed >= amount:
                return second + WINDOW_S + 1
        return None


class Period:
    """What was used in one day or month: the name of the newest one seen, and its sums."""

    __slots__ = ("name", "nano", "tokens")

    def __init__(self) -> None:
        self.name = 0
        self.tokens = 0
        self.nano = 0

    def turn(self, name: int) -> None:
        """Begin a new one, unless `name` is of the past."""
        if name > self.name:
            self.name, self.tokens, self.nano = name, 0, 0

    def add(self, name: int, tokens: int, nano: int) -> None:
        """Count more (or less) in the period `name`, unless that is over."""
        if name == self.name:
            self.tokens += tokens
            self.nano += nano


class Account:
    """All that one tenant has taken. Whoever keeps it knows the leases; see `gateway.quota`."""

    __slots__ = ("concurrent", "day", "month", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.concurrent = 0
        self.day = Period()
        self.month = Period()

    def advance(self, now: float, dates: Dates) -> None:
        """Come to `now`, before anything else is asked."""
        second = int(now)
        if second > self.requests.second:
            self.requests.advance(second)
            self.tokens.advance(second)
            self.day.turn(dates.day)
            self.month.turn(dates.month)

    def fits(self, caps: Caps, asked: Estimate) -> bool:
        """Return whether a request fits into all limits."""
        day, month, tokens, nano = self.day, self.month, asked.tokens, asked.nano
        return (
            self.requests.total + asked.requests <= caps.requests
            and self.tokens.total + tokens <= caps.tokens
            and self.concurrent < caps.concurrent
            and day.tokens + tokens <= caps.day_tokens
            and month.tokens + tokens <= caps.month_tokens
            and day.nano + nano <= caps.day_nano
            and month.nano + nano <= caps.month_nano
        )

    def take(self, asked: Estimate) -> None:
        """Count a request that fits."""
        tokens, nano, day, month = asked.tokens, asked.nano, self.day, self.month
        self.requests.add(asked.requests)
        self.tokens.add(tokens)
        self.concurrent += 1
        day.tokens += tokens
        month.tokens += tokens
        if nano:
            day.nano += nano
            month.nano += nano

    def settle(self, asked: Estimate, used: Estimate, second: int, day: int) -> None:
        """Put what was used in the place of what was taken in `second` of `day`, and end it."""
        self.concurrent -= 1
        if used.requests != asked.requests:
            _correct(self.requests, second, used.requests - asked.requests)
        tokens, nano = used.tokens - asked.tokens, used.nano - asked.nano
        if tokens:
            _correct(self.tokens, second, tokens)
        if tokens or nano:
            self.day.add(day, tokens, nano)
            self.month.add(day // 100, tokens, nano)

    def shortage(self, caps: Caps, asked: Estimate, now: float, dates: Dates) -> Shortage:
        """Return why a request does not fit, by the limit that frees up last."""
        limits = caps.numbers()
        waits = [
            (_wait(limits[i], taken, more, now, freed), i)
            for i, taken, more, freed in (
                (REQUESTS, self.requests.total, asked.requests, self.requests),
                (TOKENS, self.tokens.total, asked.tokens, self.tokens),
                (CONCURRENT, self.concurrent, 1, CONCURRENT_RETRY_S),
                (DAY_TOKENS, self.day.tokens, asked.tokens, dates.day_left_s),
                (MONTH_TOKENS, self.month.tokens, asked.tokens, dates.month_left_s),
                (DAY_MONEY, self.day.nano, asked.nano, dates.day_left_s),
                (MONTH_MONEY, self.month.nano, asked.nano, dates.month_left_s),
            )
        ]
        longest, limit = max(waits)
        return Shortage(limit, None if longest == UNLIMITED else longest)


def _correct(window: Window, second: int, more: int) -> None:
    if more > 0:
        window.add(more)
    elif more < 0:
        window.give_back(second, -more)


def _wait(cap: float, taken: int, more: int, now: float, freed: Window | float) -> float:
    """Return how long until `more` fits: -1 when it does, infinite when it never will."""
    over = taken + more - cap
    if over <= 0:
        return -1.0
    if more > cap:
        return UNLIMITED
    if not isinstance(freed, Window):
        return freed
    second = freed.frees(over)
    return UNLIMITED if second is None else max(0.0, second - now)


def estimate(price: Price, prompt: int, output: int) -> Estimate:
    """Return what a request of so many predicted tokens takes."""
    return Estimate(1, prompt + output, price.nano(prompt, 0, output) if price is not FREE else 0)
