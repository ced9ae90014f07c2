"""Answer the question: who holds which prefix.

`blocks` names prefixes by chained hashes, `chains` does so without hashing again what conversations
repeat. `index` says which endpoints hold them, of `slots` with what each holds. `learned` guesses it
from where requests went and corrects itself by what engines report. Pure: no I/O, no clock. Imports
nothing else of forebay.
"""
