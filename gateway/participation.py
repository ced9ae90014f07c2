"""What experiments, shadow copies and looks at answers have to do with a request on its way.

One seam for the three: without any of them a request asks once whether there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from .places import ROLLED_BACK

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome

    from .intake import Inbound
    from .keeper import Keeper
    from .quality import Quality
    from .shadow import Shadow
    from .trials import Trials

_NOBODY = frozenset[str]()


class Participation(Struct, frozen=True):
    """Who takes part in what; the parts that a configuration does not ask for are None."""

    trials: Trials | None = None
    """The experiments that requests may take part in."""
    keeper: Keeper | None = None
    """Who counts and decides for them."""
    shadow: Shadow | None = None
    """Who copies requests to other arms."""
    quality: Quality | None = None
    """Who looks at answers."""

    def join(self, inbound: Inbound, session: bytes | None, sla: str) -> frozenset[str]:
        """Give a request its arm, and return the endpoints that it must not go to."""
        if self.trials is None:
            return _NOBODY
        return self.trials.join(inbound, session, sla)

    def choose(self, inbound: Inbound) -> None:
        """Decide what of a request and its answer is kept."""
        if inbound.trial is not None and self.shadow is not None:
            self.shadow.choose(inbound)
        if self.quality is not None:
            self.quality.choose(inbound)

    def moved(self, inbound: Inbound, reason: str) -> None:
        """Count against its arm that a request goes on at another place."""
        trial, request = inbound.trial, inbound.request
        if trial is None or self.keeper is None:
            return
        if reason == ROLLED_BACK:
            trial.done = True  # what was decided is no more said of the arm
        self.keeper.failed(trial, request.sla, request.prompt_tokens_estimate)

    def settled(self, inbound: Inbound, outcome: Outcome) -> None:
        """Count how a request ended, and hand on what was kept of it."""
        trial, copied = inbound.trial, inbound.copy is not None
        if trial is not None and self.keeper is not None:
            outcome.experiment, outcome.arm = trial.trial.name, trial.arm
            self.keeper.settled(inbound, outcome)
            if copied and self.shadow is not None:
                self.shadow.settled(inbound, outcome)
        if copied and self.quality is not None:
            self.quality.settled(inbound, outcome)
