"""Answer the question: what does the caller see.

The path of a request starts in `app`: `protocol` and `reading` make a message of its bytes,
`intake` checks it, `relay` carries it through queue, placement, engine and back, and settles it
once. May import every other folder but `kernels`.
"""
