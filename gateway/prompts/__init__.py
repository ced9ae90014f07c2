"""A prompt's token ids, as the engine will see them, before the engine has seen it.

`template` renders a chat as engines do, `local` cuts the text by a tokenizer file, `remote` asks an
engine, and `service` does either off the event loop and within a budget. Needed only where a pool
places by what engines' events say (`prefix.mode: exact` or `auto` with a tokenizer).
"""
