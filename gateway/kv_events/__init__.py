"""What engines tell of their caches, brought to the gateway.

ZMQ is read in a process of its own (`reader`), since a busy engine tells of tens of thousands of
blocks a second and each costs some microseconds to place; the gateway gets compact deltas over a
pipe (`feed`), in the form that `messages` describes. What events mean is for
`forebay.prefixcache.events` and `recut` to say, which know of no sockets.
"""
