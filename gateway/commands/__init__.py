"""One module for each command of `forebay`.

Each has `add`, which declares the command's arguments, and `run`, which does it and returns the
exit code: 0 done, 1 failed, 2 wrongly called. What is heavy is imported inside `run`, so that
`forebay --help` stays quick and a command needs only what it uses.
"""
