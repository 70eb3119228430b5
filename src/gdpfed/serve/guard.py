"""Who may ask: the first thing that every request meets.

Place: around the application. Only this machine can connect; other users of it, and pages of other sites in the same
browser, are kept out here. The token is in the address that `gdpfed serve` prints; the first request with it gets a
cookie, which scripts cannot read and other sites' pages do not send.

Guarantees (tests of the same name):
  nothing_without_the_token         neither pages nor answers nor files; the reason is said, nothing else.
  dns_rebinding_is_refused          a request that names another host than this one.
  cross_site_requests_are_refused   a write that does not come from a page of ours, and a read by another site's script.
  oversized_requests_are_refused    a body or a link longer than its limit, announced or not.
  no_page_runs_foreign_script       a policy forbids scripts, styles, frames and requests that are not from here.
"""

import secrets
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LARGEST_BODY", "LONGEST_LINK", "Guard"]

LARGEST_BODY, LONGEST_LINK = 4 << 20, 16 << 10
_MOST_DIGITS = 18

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    # Figures state their size in an attribute; no rule can come that way.
    "style-src-attr": "'unsafe-inline'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
_HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Around an application; ``port`` is the one that it is reached at."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = [f"{name}:{port}" for name in ("127.0.0.1", "localhost")]
        # Cookies do not tell ports apart: two servers on one machine must not share one.
        self.cookie = f"gdpfed-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As every application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        await self._app(scope, _Limited(receive), send_guarded)

    def _refused(self, scope: Scope) -> Response | None:
        headers, query = Headers(scope=scope), scope["query_string"].decode("ascii", errors="replace")
        if headers.get("host", "") not in self._hosts:
            return _said(403, f"expected a request for {self._hosts[0]}, got one for another host")
        if len(query) > LONGEST_LINK:
            return _said(414, f"expected a link of at most {LONGEST_LINK} characters: name a file in its place")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _said(405, "expected GET or POST")
        fetched = headers.get("sec-fetch-site", "same-origin")
        if scope["path"].startswith("/api/") and fetched not in ("same-origin", "none"):
            return _said(403, "expected a request from a page of gdpfed serve, got one from another site")
        if scope["method"] == "POST":
            origin = headers.get("origin", "")
            if origin not in [f"http://{host}" for host in self._hosts] or fetched != "same-origin":
                return _said(403, "expected a request from a page of gdpfed serve, got one from elsewhere")
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return _said(415, "expected JSON")
            length = headers.get("content-length", "0")
            if not length.isdecimal() or len(length) > _MOST_DIGITS or int(length) > LARGEST_BODY:
                return _said(413, _too_long())
        return self._without_token(scope, headers, query)

    def _without_token(self, scope: Scope, headers: Mapping[str, str], query: str) -> Response | None:
        pairs = parse_qsl(query, keep_blank_values=True)
        given = dict(pairs).get("token")
        if given is not None and scope["method"] != "POST" and self._is_token(given):
            # The token leaves the address bar, and with it history, bookmarks and screenshots.
            rest = urlencode([pair for pair in pairs if pair[0] != "token"])
            # Only a path of ours: "//somewhere" would be another host.
            path = "/" + scope["path"].lstrip("/\\")
            response = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
            response.set_cookie(self.cookie, self._token, httponly=True, samesite="strict", path="/")
            return response
        # Cookies of everything else on this host come along: none of them, however odd, may hide ours.
        if self._is_token(cookie_parser(headers.get("cookie", "")).get(self.cookie, "")):
            return None
        return _said(
            403,
            "This is gdpfed serve, and it does not know you.\n\nOpen the address that it printed when it started: the "
            "token is in it.",
        )

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


def _said(status: int, words: str) -> Response:
    return PlainTextResponse(words + "\n", status_code=status)


def _too_long() -> str:
    return f"expected at most {LARGEST_BODY >> 20} MiB: put a larger file into the folder, and name it"


class _Limited:
    """Receives a body, up to the limit: what a request announces need not be true."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._received = receive, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > LARGEST_BODY:
            raise HTTPException(413, _too_long())
        return message
