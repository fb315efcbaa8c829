"""What can a caller of the gateway do wrong, and how does every failure look to an OpenAI client?

Status, `type` and `code` of an error are its class's (`core/protocol/errors.py`). Official clients
try again on 408, 409, 429 and 5xx unless `x-should-retry` says otherwise, so every failure has it.
"""

from __future__ import annotations

from typing import Any

from core.protocol.errors import FundsError, HeadraceError, Interrupted, UsageError

#: When to try again. Official clients do not wait for a minute or longer.
RETRY_AFTER_S = 2
LONGEST_RETRY_AFTER_S = 59


class BadParameter(UsageError):
    """A field of the request cannot be honoured; `param` names it."""

    code = "E-API-01"
    api_code = "unsupported_parameter"
    default_next = "correct that field; what is honoured is in openapi.json"

    def __init__(self, param: str, why: str, **details: Any) -> None:
        super().__init__(f"'{param}' cannot be used", why, param=param, **details)


class KeyRefused(HeadraceError):
    """There is no such API key, or it is expired or revoked."""

    code = "E-API-02"
    exit_code = 2
    http_status = 401
    api_type = "authentication_error"
    api_code = "invalid_api_key"
    default_next = "make one with `client keys new NAME` and send it as `Authorization: Bearer KEY`"


class ModelNotAllowed(HeadraceError):
    """The key is for other models."""

    code = "E-API-03"
    exit_code = 2
    http_status = 403
    api_type = "permission_error"
    api_code = "model_not_allowed"
    default_next = "use a model the key is for, or make another key with `client keys new`"


class RateLimited(HeadraceError):
    """The key made its share of requests for now."""

    code = "E-API-04"
    exit_code = 7
    http_status = 429
    api_type = "rate_limit_error"
    api_code = "rate_limited"
    retryable = True
    default_next = "wait as long as Retry-After says"

    def __init__(self, what: str, why: str, *, retry_after_s: int) -> None:
        super().__init__(what, why, retry_after_s=retry_after_s)


class BudgetExceeded(FundsError):
    """The key's budget, or the gateway's for a day, does not cover the request's highest cost."""

    code = "E-FUNDS-05"
    api_code = "budget_exceeded"


class DuplicateRunning(HeadraceError):
    """A request with this Idempotency-Key is still being answered."""

    code = "E-API-05"
    exit_code = 7
    http_status = 409
    api_type = "conflict_error"
    api_code = "idempotency_running"
    retryable = True
    default_next = "send the same request again in a moment: the answer is kept for it"


class DuplicateDiffers(HeadraceError):
    """This Idempotency-Key was used for another request."""

    code = "E-API-06"
    exit_code = 2
    http_status = 422
    api_type = "conflict_error"
    api_code = "idempotency_mismatch"
    default_next = "use a new Idempotency-Key for a new request"


class DuplicateBroken(HeadraceError):
    """A request with this Idempotency-Key ended half-way and was paid as far as it came."""

    code = "E-API-07"
    exit_code = 8
    http_status = 409
    api_type = "conflict_error"
    api_code = "idempotency_interrupted"
    default_next = "send it with a new Idempotency-Key to have, and pay for, a new answer"


class NotOffered(HeadraceError):
    """This gateway has no such endpoint or object."""

    code = "E-API-08"
    exit_code = 2
    http_status = 404
    api_type = "not_found_error"
    api_code = "not_found"
    default_next = "what is offered is in openapi.json"


class NotAllowedMethod(NotOffered):
    """The endpoint exists, with another method."""

    code = "E-API-09"
    http_status = 405
    api_type = "invalid_request_error"
    api_code = "method_not_allowed"


class ReceiptUnknown(NotOffered):
    """No such receipt, or it is another key's."""

    code = "E-API-10"
    api_code = "receipt_not_found"
    default_next = "every answer's headers carry its x-receipt-id"


class TooLarge(UsageError):
    """More bytes than the gateway takes."""

    code = "E-API-11"
    http_status = 413
    api_code = "request_too_large"


class FilesFull(UsageError):
    """The key keeps as many bytes of files as it may."""

    code = "E-API-14"
    http_status = 413
    api_code = "file_quota_exceeded"
    default_next = "delete files that are not needed: DELETE /v1/files/{file_id}"


class DiskLow(HeadraceError):
    """The gateway's disk is nearly full."""

    code = "E-API-15"
    exit_code = 7
    http_status = 503
    api_type = "capacity_error"
    api_code = "disk_low"
    retryable = True
    default_next = "delete files that are not needed, or ask the gateway's owner for more room"


class BatchesFull(HeadraceError):
    """The key has as many batches that have not ended as it may."""

    code = "E-API-16"
    exit_code = 7
    http_status = 429
    api_type = "rate_limit_error"
    api_code = "too_many_batches"
    default_next = "wait until one has ended, or cancel one"


class NotDone(UsageError):
    """The object is not in a state in which this can be done."""

    code = "E-API-12"
    http_status = 409
    api_type = "conflict_error"
    api_code = "conflict"


class Stopping(Interrupted):
    """The gateway is being stopped."""

    code = "E-API-13"
    api_code = "gateway_stopping"
    retryable = True
    default_next = "try again in a moment"


def openai_error(error: HeadraceError) -> dict[str, Any]:
    """`{"error": …}` as official clients read it, with our four lines beside it."""
    told = error.to_dict()
    ours = {name: told[name] for name in ("code", "what", "why", "state", "next")}
    details = {k: v for k, v in told["details"].items() if k not in ("param", "answered")}
    return {
        "error": {
            "message": f"{error.what}: {error.why}. {error.next_step}".strip(),
            "type": error.api_type,
            "param": error.details.get("param"),
            "code": error.api_code,
            "headrace": ours | {"details": details},
        }
    }


def retry_headers(error: HeadraceError) -> dict[str, str]:
    """Whether the same request may be sent again, and when. Not once something was paid."""
    may = error.retryable and error.http_status in (409, 429, 503)
    if not may or "answered" in error.details:
        return {"x-should-retry": "false"}
    wait_s = int(error.details.get("retry_after_s") or RETRY_AFTER_S)
    after_s = max(1, min(wait_s, LONGEST_RETRY_AFTER_S))
    return {"x-should-retry": "true", "retry-after": str(after_s)}
