"""Answer two questions: when, and in what order.

`lifecycle` is the table of states of a call, `dispatch` decides who goes next and where, `retry`
when to try again, `health` which endpoints are in rotation; `engine_model` is the pure step model
of an engine. No I/O, no clock: events and `now` go in, decisions come out. May import policies and
prefixcache.
"""
