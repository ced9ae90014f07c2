"""Drafting heads on a target's hidden states, their training and their checkpoints.

`eagle` holds EAGLE-1 and EAGLE-3, `medusa` its heads; each can run and save itself in the layout
that engines load. `training` collects a target's states and trains one.

Words: *features* are hidden states of the target; an *unroll* is one step in which a head goes on
from its own output, as it will when drafting.
"""

__all__: list[str] = []
