"""What can go wrong, as a tree.

    ForebayError
    ├── ConfigError                 the YAML is wrong; nothing was changed
    ├── Rejected                    the caller's request is not served, and the caller can know why
    │   ├── InvalidRequest          400, 404, 413, 415: the request itself is at fault
    │   ├── Unauthorized            401: no such key
    │   │   └── Forbidden           403: not allowed with it
    │   ├── QuotaExceeded           429: the tenant's own limit
    │   ├── Overloaded              429 full, 503 nothing healthy
    │   └── DeadlineExpired         504: nobody could start it in time
    └── EngineFailed                502: an engine broke the promise of its protocol
        ├── EngineUnreachable       never connected: the request cannot have been seen
        └── EngineRefused           the engine answered, with an error status

Each carries the HTTP `status`, OpenAI's `code`, and `retry_after` in seconds where waiting helps.
"""

from __future__ import annotations


class ForebayError(Exception):
    """Whatever forebay itself can name as wrong."""

    status = 500
    code = "internal_error"
    type = "server_error"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """What the answer says beside the error."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code


class ConfigError(ForebayError):
    """The configuration cannot be used."""

    code = "invalid_config"


class Rejected(ForebayError):  # noqa: N818 - the words of the house, not a suffix
    """The request is not served; the caller is told why."""


class InvalidRequest(Rejected):
    """The request itself is at fault."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class Unauthorized(Rejected):
    """No valid key."""

    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class Forbidden(Unauthorized):
    """A valid key, that does not allow this."""

    status = 403
    code = "not_allowed"
    type = "permission_error"


class QuotaExceeded(Rejected):
    """The tenant's own limit is reached."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"


class Overloaded(Rejected):
    """No room (429) or nothing healthy (503)."""

    status = 429
    code = "overloaded"
    type = "overloaded_error"


class DeadlineExpired(Rejected):
    """The request could not be started before its deadline."""

    status = 504
    code = "deadline_expired"
    type = "timeout_error"


class EngineFailed(ForebayError):  # noqa: N818 - as above
    """An engine broke off, or spoke something that is no HTTP."""

    status = 502
    code = "engine_error"
    type = "server_error"


class EngineUnreachable(EngineFailed):
    """The connection was never made, so the engine cannot have seen the request."""

    code = "engine_unreachable"


class NotSent(EngineFailed):
    """The gateway could not send the request: no engine is to blame, and no other fares better."""

    status = 500
    code = "internal_error"


class EngineRefused(EngineFailed):
    """The engine answered with an error status."""

    code = "engine_refused"
