"""Answer the question: who holds which prefix.

`blocks` names prefixes by chained hashes; `chains` spares it what a conversation repeats. `index`
says which endpoints hold them, in `slots`; `learned` guesses it from where requests went and
corrects itself by what engines report. Pure: no I/O, no clock. Imports nothing else of forebay.
"""
