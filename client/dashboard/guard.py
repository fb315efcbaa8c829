"""Who may look, and who may change something?

Both need a session: the cookie that a link of `client pages` sets. A change also needs a token that
another site's page cannot know. Where the owner says so, programs on this machine may look.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

COOKIE = "headrace_session"
CSRF_HEADER = "x-csrf-token"
OPEN_THEM = "open the link that `client pages` prints, on the machine of the gateway"
#: Headers of a request that a proxy has passed on.
PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
#: A Host header, exactly: nothing before or behind a name or a bracketed IPv6 address but a port.
_HOST = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)\]|(?P<name>[^\[\]@:/\\\s]+))(?::[0-9]{1,5})?"
)
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Guard:
    """The secrets of one run of the program; all end with it."""

    local_reading: bool = False
    #: The cookie's value, for a browser that came with a good link.
    session: str = field(default_factory=_secret, repr=False)
    _csrf: str = field(default_factory=_secret, repr=False)

    def has_session(self, cookies: Mapping[str, str]) -> bool:
        return _same(cookies.get(COOKIE, ""), self.session)

    @property
    def csrf_token(self) -> str:
        """What our own pages send with a change. Shown only to a session."""
        return self._csrf

    def may_read(
        self, cookies: Mapping[str, str], headers: Mapping[str, str], peer: str | None
    ) -> bool:
        """Whether to answer: there is a session, or it is a local program and these may read.

        A page elsewhere may have its own name resolve to us, and would then read what we say; and
        behind a proxy on this machine everybody is local.
        """
        if self.has_session(cookies):
            return True
        is_local = is_loopback(peer) and is_loopback(host_name(headers.get("host", "")))
        return self.local_reading and is_local and not any(name in headers for name in PASSED_ON)

    def why_not_change(
        self, cookies: Mapping[str, str], headers: Mapping[str, str], csrf: str
    ) -> str:
        """Why a change is refused; "" if it is not."""
        if not self.has_session(cookies):
            return f"no session: {OPEN_THEM}"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "the request comes from another site"
        origin = headers.get("origin")
        if origin not in (None, "null") and host_of(origin) != headers.get("host", ""):
            return "the request comes from another site"
        if not _same(csrf, self._csrf):
            return "the page is from before the gateway's last start: load it again"
        return ""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def host_of(origin: str) -> str:
    """`http://a:1` → `a:1`."""
    return origin.partition("://")[2].rstrip("/")


def host_name(host: str) -> str:
    """`a:1` → `a`, `[::1]:80` → `::1`; "" for what is neither, such as `[::1]a` or `::1`."""
    found = _HOST.fullmatch(host)
    return (found["v6"] or found["name"]) if found else ""


def is_loopback(name: str | None) -> bool:
    """Whether this address or name means this machine."""
    if name is None:
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
