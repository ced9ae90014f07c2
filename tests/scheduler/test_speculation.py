"""An endpoint's speculation is left when it does not pay, and tried again by itself."""

from __future__ import annotations

from math import inf

import pytest

from forebay.scheduler.speculation import Acceptance, AcceptanceSettings, Reading, Stand

SETTINGS = AcceptanceSettings(least=0.6, back=0.65, window_s=10.0, rest_s=30.0, min_drafts=10)


class Engine:
    """Counters that grow by 20 drafts of 4 tokens a second, with some share accepted."""

    def __init__(self) -> None:
        self.own = Acceptance(SETTINGS)
        self.now = 0.0
        self.drafts = self.accepted = 0.0

    def run(self, seconds: int, share: float, *, busy: bool = True) -> list[Stand]:
        stands: list[Stand] = []
        for _ in range(seconds):
            self.now += 1.0
            self.drafts += 20 * busy
            self.accepted += 80 * share * busy
            self.own.read(Reading(self.drafts, self.drafts * 4, self.accepted), self.now)
            if not stands or stands[-1] is not self.own.stand:
                stands.append(self.own.stand)
        return stands


def test_the_rate_is_that_of_the_window_and_the_length_accepted_tokens_a_draft():
    engine = Engine()
    engine.run(30, 0.9)
    engine.run(11, 0.7)
    assert engine.own.rate == pytest.approx(0.7)
    assert engine.own.length == pytest.approx(2.8)


def test_nothing_is_concluded_from_few_drafts():
    own = Acceptance(SETTINGS)
    own.read(Reading(0, 0, 0), 0.0)
    own.read(Reading(9, 36, 0), 1.0)
    assert (own.rate, own.stand) == (None, Stand.ON)


def test_a_low_rate_leaves_it_and_a_good_trial_brings_it_back():
    engine = Engine()
    assert engine.run(20, 0.8) == [Stand.ON]
    assert engine.run(20, 0.3) == [Stand.ON, Stand.OFF]
    assert not engine.own.pays
    assert engine.run(25, 0.0, busy=False) == [Stand.OFF, Stand.TRIAL]
    assert engine.own.pays
    assert engine.run(5, 0.8) == [Stand.ON]


def test_a_trial_that_fails_doubles_the_rest():
    engine = Engine()
    engine.run(5, 0.1)
    rests: list[int] = []
    for _ in range(3):
        start = engine.now
        while engine.own.stand is Stand.OFF:
            engine.run(1, 0.0, busy=False)
        rests.append(int(engine.now - start))
        while engine.own.stand is Stand.TRIAL:
            engine.run(1, 0.1)
    assert rests[1] == pytest.approx(60, abs=3)
    assert rests[2] == pytest.approx(120, abs=3)


def test_between_leaving_and_returning_a_trial_does_not_flap():
    engine = Engine()
    engine.run(5, 0.1)
    engine.run(40, 0.0, busy=False)
    assert engine.run(3, 0.62)[-1] is Stand.OFF


def test_an_engine_that_starts_anew_starts_its_window_anew():
    engine = Engine()
    engine.run(10, 0.9)
    engine.drafts = engine.accepted = 0.0
    engine.run(1, 0.9)
    assert engine.own.rate is None
    engine.run(3, 0.8)
    assert engine.own.rate == pytest.approx(0.8)


def test_a_drift_shows_against_the_weeks_average():
    engine = Engine()
    engine.run(600, 0.9)
    engine.run(12, 0.7)
    drift = engine.own.drift
    assert drift is not None
    assert drift == pytest.approx(-0.2, abs=0.01)


def test_an_engine_that_only_shows_a_rate_is_believed():
    own = Acceptance(SETTINGS)
    assert own.read(Reading(rate=0.4, length=1.2), 1.0)
    assert (own.stand, own.pays) == (Stand.OFF, False)


def test_an_engine_that_started_anew_unseen_is_not_blamed_for_it():
    own = Acceptance(SETTINGS)
    own.read(Reading(1000, 4000, 3000), 0.0)
    own.read(Reading(1100, 4400, 100), 1.0)
    assert (own.rate, own.stand) == (None, Stand.ON)


def test_an_engine_that_says_nothing_any_more_is_tried_again_all_the_same():
    engine = Engine()
    engine.run(5, 0.1)
    own, now = engine.own, engine.now
    assert [own.wait(now + 1.0), own.pays] == [False, False]
    assert [own.wait(now + 60.0), own.stand, own.rate] == [True, Stand.TRIAL, None]
    assert not own.wait(now + 61.0)
    engine.now += 70.0
    assert engine.run(5, 0.9)[-1] is Stand.ON


def test_a_trial_is_not_judged_by_the_rate_that_was_shown_before_it():
    own = Acceptance(SETTINGS)
    shown = Reading(rate=0.4, length=1.2)
    for now in (1.0, 32.0, 33.0):
        own.read(shown, now)
    assert own.stand is Stand.TRIAL
    own.read(Reading(rate=0.8, length=2.4), 34.0)
    assert own.stand is Stand.ON


def test_a_trial_in_which_the_rate_stays_what_it_was_ends_with_the_window():
    own = Acceptance(SETTINGS)
    for now in (1.0, *(float(each) for each in range(32, 43))):
        own.read(Reading(rate=0.0, length=0.0), now)
    assert own.stand is Stand.OFF


@pytest.mark.parametrize(
    "reading",
    [
        Reading(200, 800, 900),
        Reading(inf, inf, inf),
        Reading(1e308, 1e308, inf),
        Reading(200, 100, 100),
        Reading(200, 200, 100),
    ],
)
def test_counts_that_cannot_be_say_nothing(reading: Reading):
    own = Acceptance(SETTINGS)
    own.read(Reading(100, 200, 100), 0.0)
    for now in (1.0, 2.0):
        own.read(reading, now)
        assert (own.rate, own.stand, own.usual.value) == (None, Stand.ON, None)


def test_a_rate_is_a_share():
    own = Acceptance(SETTINGS)
    own.read(Reading(rate=7.0, length=1.2), 1.0)
    assert (own.rate, own.stand) == (1.0, Stand.ON)
    own.read(Reading(rate=-1.0, length=1.2), 2.0)
    assert (own.judged, own.stand) == (0.0, Stand.OFF)
