"""Who may read and who may change: sessions, other sites, machines and names for this one?"""

from __future__ import annotations

import pytest

from client.dashboard.guard import COOKIE, PASSED_ON, Guard, host_name, is_loopback


@pytest.fixture
def guard() -> Guard:
    return Guard(local_reading=True)


def cookies(guard: Guard) -> dict[str, str]:
    return {COOKIE: guard.session}


def test_only_its_own_cookie_is_a_session(guard: Guard) -> None:
    assert guard.has_session(cookies(guard))
    assert not guard.has_session({}) and not guard.has_session({COOKIE: ""})
    assert not guard.has_session({COOKIE: "another"})
    assert guard.session not in repr(guard)


@pytest.mark.parametrize(
    ("peer", "host", "may"),
    [
        ("127.0.0.1", "127.0.0.1:8080", True),
        ("127.0.0.1", "localhost:8080", True),
        ("::1", "[::1]:8080", True),
        ("127.0.0.1", "evil.example:8080", False),  # a name that was made to mean us
        ("127.0.0.1", "", False),
        ("127.0.0.1", "[127.0.0.1]evil.example", False),
        ("127.0.0.1", "[127.0.0.1]", False),
        ("127.0.0.1", "[::1]x", False),
        ("127.0.0.1", "[::1]:80:80", False),
        ("127.0.0.1", "[::1].evil.example:80", False),
        ("127.0.0.1", "127.0.0.1@evil.example", False),
        ("127.0.0.1", "127.0.0.1:80@evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "localhost:80.evil.example", False),
        ("127.0.0.1", "localhost/evil.example", False),
        ("127.0.0.1", "localhost\nevil.example", False),
        ("192.168.1.9", "192.168.1.2:8080", False),
        ("192.168.1.9", "localhost", False),
        (None, "localhost", False),
    ],
)
def test_without_a_session_only_this_machine_by_its_own_name_may_read_if_at_all(
    guard: Guard, peer: str | None, host: str, may: bool
) -> None:
    headers = {"host": host}
    assert guard.may_read({}, headers, peer) is may
    assert guard.may_read(cookies(guard), headers, peer)
    assert not Guard().may_read({}, headers, peer)
    for name in PASSED_ON:  # a proxy's peer may be anybody
        assert not guard.may_read({}, headers | {name: "127.0.0.1"}, peer)


def test_a_change_needs_session_token_and_our_own_page(guard: Guard) -> None:
    ours = {
        "host": "127.0.0.1:8080",
        "origin": "http://127.0.0.1:8080",
        "sec-fetch-site": "same-origin",
    }
    assert guard.why_not_change(cookies(guard), ours, guard.csrf_token) == ""
    assert "no session" in guard.why_not_change({}, ours, guard.csrf_token)
    assert "load it again" in guard.why_not_change(cookies(guard), ours, "")
    assert "load it again" in guard.why_not_change(cookies(guard), ours, "wrong")
    for change in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert "another site" in guard.why_not_change(
            cookies(guard), ours | change, guard.csrf_token
        )


def test_two_starts_share_no_secret() -> None:
    one, other = Guard(), Guard()
    assert one.csrf_token != other.csrf_token
    assert not other.has_session(cookies(one))


def test_names_of_this_machine() -> None:
    assert [host_name(h) for h in ("a:1", "a", "[::1]:2", "::1")] == ["a", "a", "::1", ""]
    assert (
        is_loopback("127.9.9.9")
        and not is_loopback("localhost.evil")
        and not is_loopback("10.0.0.1")
    )
