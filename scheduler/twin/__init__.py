"""The simulator: traces through the very dispatcher and orderings that run live, without a clock.

`station` drives one modelled engine from event to event, `run` is the loop over arrivals and
stations, `guess` says what a length predictor would have said, `load` measures capacity and scales
arrivals to it, `report` turns what happened into numbers. Pure and deterministic: the same trace,
settings and seed give the same run, byte for byte. May import scheduler, policies and prefixcache.
"""

from .guess import Guess, make_guess
from .load import Capacity, enough_in_flight, fitting_limit, measure_capacity, scale_to
from .report import Report, summarise
from .run import Class, Life, Settings, Twin, simulate

__all__ = [
    "Capacity",
    "Class",
    "Guess",
    "Life",
    "Report",
    "Settings",
    "Twin",
    "enough_in_flight",
    "fitting_limit",
    "make_guess",
    "measure_capacity",
    "scale_to",
    "simulate",
    "summarise",
]
