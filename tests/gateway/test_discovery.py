"""Endpoints that are found by name: what stands in their place, and what an answer changes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.config import load
from forebay.gateway.config.errors import ConfigErrors
from forebay.gateway.config.sections import Config
from forebay.gateway.discovery import Addresses, Discovery, expanded, hosts_of, resolve
from forebay.policies.contracts import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "vllm.models.svc"
FOUND = {"name": "vllm", "engine": "vllm", "url": f"http://{HOST}:8000/x", "discover": "5s"}
FIXED = {"name": "sgl-0", "engine": "sglang", "url": "http://10.0.0.9:30000"}


def config(*endpoints: dict[str, Any], **rest: Any) -> Config:
    pool = {"name": "p", "models": ["m"], "endpoints": [*endpoints]}
    return Config.model_validate({"version": 1, "pools": [pool], **rest})


def named(settings: Config) -> dict[str, str | None]:
    return {each.name: each.url for each in settings.pools[0].endpoints}


def test_hosts_are_looked_up_as_often_as_the_most_curious_asks():
    other = {**FOUND, "name": "again", "discover": "2s"}
    assert hosts_of(config(FOUND, other, FIXED)) == {HOST: 2.0}
    assert hosts_of(config(FIXED)) == {}


def test_each_address_is_an_endpoint():
    found = expanded(config(FIXED, FOUND), {HOST: ("10.0.0.5", "fd00::7")})
    assert named(found) == {
        "sgl-0": "http://10.0.0.9:30000",
        "vllm-10.0.0.5": "http://10.0.0.5:8000/x",
        "vllm-fd00--7": "http://[fd00::7]:8000/x",
    }
    assert hosts_of(found) == {}


def test_no_address_is_called_as_an_endpoint_is_that_somebody_named():
    other = {**FOUND, "name": "vllm-1", "url": f"http://{HOST}:9000"}
    fixed = {**FIXED, "name": "vllm-10.0.0.5"}
    found = expanded(config(FOUND, fixed, other), {HOST: ("10.0.0.5", "1:2::3", "2::3")})
    names = [each.name for each in found.pools[0].endpoints]
    assert len(set(names)) == len(names) == 7
    assert named(found)["vllm-10.0.0.5"] == FIXED["url"]
    assert named(found)["vllm-10.0.0.5-x"] == "http://10.0.0.5:8000/x"


def test_a_host_in_capital_letters_is_that_host():
    found = expanded(config({**FOUND, "url": "http://VLLM.Models.svc:80"}), {HOST: ("10.0.0.5",)})
    assert named(found) == {"vllm-10.0.0.5": "http://10.0.0.5:80"}


def test_what_is_not_discovered_is_left_as_it_is():
    settings = config(FIXED)
    assert expanded(settings, {"10.0.0.9": ("10.0.0.1",)}) is settings


def test_events_are_had_from_the_same_address():
    events = {"address": f"tcp://{HOST}:5557", "replay": f"tcp://{HOST}:5558"}
    (endpoint,) = (
        expanded(config({**FOUND, "events": events}), {HOST: ("10.0.0.5",)}).pools[0].endpoints
    )
    assert endpoint.events is not None
    assert endpoint.events.address == "tcp://10.0.0.5:5557"
    assert endpoint.events.replay == "tcp://10.0.0.5:5558"


def test_an_experiments_arm_has_all_that_are_found():
    arms = {"a": ["sgl-0"], "b": ["vllm"]}
    section = {"name": "x", "pool": "p", "arms": arms}
    settings = config(FIXED, FOUND, experiments=[section])
    there = expanded(settings, {HOST: ("10.0.0.5", "10.0.0.6")}).experiments[0].arms
    assert there["a"].endpoints == ("sgl-0",)
    assert there["b"].endpoints == ("vllm-10.0.0.5", "vllm-10.0.0.6")
    assert expanded(settings, {}).experiments[0].arms["b"].endpoints == ("vllm",)


def test_an_address_goes_when_it_is_missing_three_times_in_a_row():
    addresses = Addresses()
    assert addresses.take("h", ["b", "a"])
    assert addresses.known["h"] == ("a", "b")
    for answer in (["a"], ["a"], ["a", "b"], ["a"], ["a"]):
        assert not addresses.take("h", answer)
    assert addresses.take("h", ["a"])
    assert addresses.known["h"] == ("a",)


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=4), min_size=1, max_size=30))
def test_whatever_the_last_three_answers_held_is_known(answers: list[list[str]]):
    addresses = Addresses()
    for number, answer in enumerate(answers):
        before = addresses.known.get("h", ())
        changed = addresses.take("h", answer)
        last = {each for one in answers[max(0, number - 2) : number + 1] for each in one}
        assert addresses.known["h"] == tuple(sorted(last))
        assert changed == (addresses.known["h"] != before)


class Names:
    """Answers lookups from a list, the last one for ever; an error in it is raised."""

    def __init__(self, *answers: Sequence[str] | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str) -> Sequence[str]:
        assert host == HOST
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


QUICK = {**FOUND, "discover": "100ms"}


async def applied(names: Names, times: int, *, error: Exception | None = None) -> list[list[str]]:
    """Return the endpoints of so many configurations that were applied, the first one included.

    With an `error` none can be.
    """
    seen: list[list[str]] = []
    enough = asyncio.Event()

    def apply(settings: Config) -> None:
        seen.append(list(named(discovery.expand(settings))))
        if len(seen) == times:
            enough.set()
        if error is not None:
            raise error
        discovery.attend(settings)

    discovery = Discovery(apply, resolve=names)
    settings = config(QUICK)
    await discovery.prepare(settings)
    seen.append(list(named(discovery.expand(settings))))
    discovery.attend(settings)
    async with asyncio.timeout(20):
        await enough.wait()
    await discovery.close()
    return seen


def test_other_addresses_are_applied():
    names = Names(["10.0.0.5"], ["10.0.0.5"], ["10.0.0.5", "10.0.0.6"])
    seen = asyncio.run(applied(names, 2))
    assert seen == [["vllm-10.0.0.5"], ["vllm-10.0.0.5", "vllm-10.0.0.6"]]
    assert names.asked == 3


def test_a_name_that_cannot_be_looked_up_keeps_its_addresses(caplog: pytest.LogCaptureFixture):
    away = OSError("Name or service not known")
    names = Names(["10.0.0.5"], away, away, away, away, ["10.0.0.5", "10.0.0.7"])
    seen = asyncio.run(applied(names, 2))
    assert seen[-1] == ["vllm-10.0.0.5", "vllm-10.0.0.7"]
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warned] == ["host cannot be looked up"]


def test_without_an_answer_at_first_there_are_no_endpoints_until_there_is_one():
    seen = asyncio.run(applied(Names(TimeoutError(), ["10.0.0.5"]), 2))
    assert seen == [[], ["vllm-10.0.0.5"]]


@pytest.mark.parametrize("error", [ConfigError("not so"), ValueError("a bug")])
def test_addresses_that_are_refused_are_tried_again(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    names = Names(["10.0.0.5"], ["10.0.0.5", "10.0.0.6"])
    seen = asyncio.run(applied(names, 4, error=error))
    assert seen == [["vllm-10.0.0.5"], *[["vllm-10.0.0.5", "vllm-10.0.0.6"]] * 3]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert told == ["addresses cannot be used"]


OTHER = {**QUICK, "name": "other", "url": "http://other.svc:8000"}


class Silent:
    """A resolver that does not answer until it is told to, but of the other host."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()
        self.others = 0
        self.meanwhile = asyncio.Event()

    async def __call__(self, host: str) -> list[str]:
        if host != HOST:
            self.others += 1
            if self.others == 5:
                self.meanwhile.set()
            return ["10.0.2.1"]
        self.asked += 1
        await self.answer.wait()
        return ["10.0.0.5"]


def test_of_a_resolver_that_hangs_one_thing_at_a_time_is_asked():
    async def main() -> None:
        names, applied = Silent(), asyncio.Event()
        discovery = Discovery(lambda _: applied.set(), resolve=names, patience_s=0.01)
        both = config(QUICK, OTHER)
        await discovery.prepare(both)
        assert list(named(discovery.expand(both))) == ["other-10.0.2.1"]
        discovery.attend(both)
        for _ in range(3):  # a reload waits for no host that is looked up already
            await discovery.prepare(both)
        async with asyncio.timeout(20):
            await names.meanwhile.wait()  # as often as this one would have been asked
        assert names.asked == 1
        names.answer.set()  # late, but an answer
        async with asyncio.timeout(20):
            await applied.wait()
        assert names.asked == 1
        assert named(discovery.expand(config(QUICK))) == {"vllm-10.0.0.5": "http://10.0.0.5:8000/x"}
        await discovery.close()

    asyncio.run(main())


def test_looking_up_ends_at_once_though_the_resolver_hangs():
    async def main() -> None:
        discovery = Discovery(lambda _: None, resolve=Silent(), patience_s=0.01)
        await discovery.prepare(config(QUICK))
        discovery.attend(config(QUICK))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await discovery.close()

    asyncio.run(main())


def test_what_a_refused_configuration_had_found_is_looked_up_anew():
    async def main() -> None:
        names = Names(["10.0.0.5"], ["10.0.0.6"])
        discovery = Discovery(lambda _: None, resolve=names)
        discovery.attend(config(FIXED))
        for address in ("10.0.0.5", "10.0.0.6"):  # nobody attends to the first
            await discovery.prepare(config(FOUND))
            assert list(named(discovery.expand(config(FOUND)))) == [f"vllm-{address}"]
        await discovery.close()

    asyncio.run(main())


def test_a_host_that_was_never_found_is_looked_up_soon_whatever_is_said():
    async def main() -> None:
        applied = asyncio.Event()
        names = Names(OSError("not yet"), ["10.0.0.5"])
        discovery = Discovery(lambda _: applied.set(), resolve=names)
        hourly = config({**FOUND, "discover": "1h"})
        await discovery.prepare(hourly)
        discovery.attend(hourly)
        async with asyncio.timeout(20):
            await applied.wait()
        await discovery.close()

    asyncio.run(main())


def test_a_host_is_looked_up_off_the_loops_threads():
    async def main() -> list[str]:
        asyncio.get_running_loop().set_default_executor(_Refusing())
        return await resolve("localhost")

    assert asyncio.run(main()) in (["127.0.0.1"], ["::1"])  # never both: that is one host's engine


class _Refusing(ThreadPoolExecutor):
    def submit(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the loop has few threads")


def test_a_host_without_an_address_is_an_error():
    with pytest.raises(OSError):  # noqa: PT011 - the resolver's own words
        asyncio.run(resolve("nobody.invalid"))
    with pytest.raises(UnicodeError):
        asyncio.run(resolve("a" * 300))


def test_hosts_that_nobody_asks_for_any_more_are_forgotten():
    async def main() -> None:
        names = Names(["10.0.0.5"])
        discovery = Discovery(lambda _: None, resolve=names)
        await discovery.prepare(config(FOUND))
        discovery.attend(config(FOUND))
        discovery.attend(config(FIXED))
        assert named(discovery.expand(config(FOUND))) == {}
        await discovery.close()

    asyncio.run(main())


class Slowly:
    """Answers for one host when told to, for others at once: a new address each time."""

    def __init__(self, slow: str) -> None:
        self._slow = slow
        self._others = itertools.count(1)
        self.answer = asyncio.Event()

    async def __call__(self, host: str) -> list[str]:
        if host == self._slow:
            await self.answer.wait()
            return ["10.0.0.5"]
        return [f"10.0.1.{next(self._others)}"]


def test_addresses_that_change_while_a_reload_looks_up_leave_it_what_it_finds():
    async def main() -> None:
        names = Slowly("slow.svc")
        changed = asyncio.Event()

        def apply(settings: Config) -> None:
            discovery.attend(settings)
            changed.set()

        discovery = Discovery(apply, resolve=names)
        await discovery.prepare(config(QUICK))
        discovery.attend(config(QUICK))
        slow = {**QUICK, "name": "slow", "url": "http://slow.svc:8000"}
        quick = {**QUICK, "name": "quick", "url": "http://quick.svc:8000"}
        later = config(slow, quick)
        preparing = asyncio.create_task(discovery.prepare(later))
        async with asyncio.timeout(20):
            await changed.wait()  # the former configuration, with another address
            names.answer.set()
            await preparing
        assert [name.partition("-")[0] for name in named(discovery.expand(later))] == [
            "slow",
            "quick",
        ]
        await discovery.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ("engine: sim", "discover: needs a url, whose host is looked up"),
        ("engine: vllm, url: 'https://a.example'", "discover: needs http: a certificate is for"),
        (
            "engine: vllm, url: 'http://a.example', events: 'tcp://b.example:5557'",
            "events: must be at the url's host",
        ),
        ("engine: vllm, url: 'http://a', events: 'ipc:///a'", "events: must be at the url's host"),
        (
            "engine: vllm, url: 'http://a', events: {address: 'tcp://a:1', bind: true}",
            "events.bind: cannot be used: all addresses would be listened for at one",
        ),
        (
            "engine: vllm, url: 'http://a', events: {address: 'tcp://a:1', replay: 'tcp://b:2'}",
            "events: must be at the url's host",
        ),
    ],
)
def test_what_cannot_be_discovered_is_told(members: str, told: str):
    endpoint = f"{{name: e, discover: 5s, {members}}}"
    text = f"version: 1\npools: [{{name: p, models: [m], endpoints: [{endpoint}]}}]\n"
    with pytest.raises(ConfigErrors, match=re.escape(told)):
        load.read(text, {})


def test_what_can_be_discovered_is_read():
    events = "events: 'tcp://a.example:5557'"
    endpoint = f"{{name: e, engine: vllm, url: 'http://a.example:8000', discover: 5s, {events}}}"
    text = f"version: 1\npools: [{{name: p, models: [m], endpoints: [{endpoint}]}}]\n"
    assert hosts_of(load.read(text, {})) == {"a.example": 5.0}
