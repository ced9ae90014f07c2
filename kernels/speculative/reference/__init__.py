"""A small decoder loop with every way of speculation behind one protocol.

A way drafts (`Method.propose`), the engine verifies with one run of the target, a law accepts, and
the way learns what came of it (`Method.observe`). What the target's output would have been without
any of this is what comes out: `laws` says why, and the tests hold it to that. Ways that change the
output are refused unless the engine is made with `lossy=True`.

Words: the *root* is the last token known, not yet run through the target; a *draft*'s rows are the
root and the guesses that verify it in one run; a *probe* is a row that is run but guesses nothing.
"""

__all__: list[str] = []
