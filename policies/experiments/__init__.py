"""A/B tests between engines: who gets which arm, what is measured, and when it is enough.

Words: an *experiment* compares *arms* of one pool; the *control* is the arm that serves already, a
*candidate* is one on trial; a *key* (tenant, session, user field or request) is assigned to one arm
and stays there; a *cell* is one SLA class and one bucket of prompt lengths; a *guardrail* is a
measure that may not get worse by more than its margin.

- `assignment`: a stable hash that moves only the keys which a change of weights must move;
- `tallies`: counts of what an arm's requests did, which replicas can add up;
- `levels`: lays cells of different speed over one another;
- `bounds`: confidence sequences, valid at any time of looking;
- `measures`: effects of a candidate against the control, with their intervals;
- `plan` and `ramp`: the settings, and the state machine that promotes and rolls back;
- `answers`: how alike two answers to one prompt are.

Pure: tallies and `now` in, decisions out. Imports nothing but its neighbours and the standard
library.
"""
