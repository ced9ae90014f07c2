"""Answer the question: what does the caller see.

The path of a request starts in `app`, whose docstring is the map: `protocol` and `reading` make a
message of its bytes, `preparation` a call of that, `meter` reserves for it, and `relay` carries it
through its pool's queue (`pools`) to an engine (`attempt`), elsewhere when that fails (`recourse`),
and settles it once.

`server` is the process from outside: sockets, signals, the loop; `process` what runs in it, made of
a configuration by `assembly` and `reload`. `admin*` and `operations` are the control plane. May
import every other folder but `kernels`.
"""
