"""URLs: which are accepted, and how they are shown. None that lets somebody in is stored: URLs end in manifests."""

import re

from pamp_pipelines.errors import InputError

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>/{1,3})(?P<rest>[^\s\"'<>]+)")
_WHOLE = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>/{0,3})(?P<rest>[^/].*)", re.DOTALL)
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
"""Azure's URLs have the form ``abfss://container@account…``, where the part before ``@`` is no user."""
_SECRET_PARAMETER = re.compile(
    r"x-(amz|goog)-.*|sig|sign|signature|.*token|(.*[-_])?key|api-?key|accesskey|awsaccesskeyid|googleaccessid|pw|pwd|pass"
    r"|.*passw(or)?d|.*secret.*|.*credentials?|auth.*|code|jwt|policy|key-pair-id",
    re.IGNORECASE,
)
"""Query parameters that sign a URL or log in: of S3, Google, Azure, CloudFront, and what others call theirs."""


def is_url(text: str) -> bool:
    """True for an fsspec URL (``s3://…``), also a chained one (``simplecache::s3://…``)."""
    return "://" in text


def credentials_in(text: str) -> str | None:
    """What in a URL lets somebody in, in words; None for a URL without, and for a path."""
    if not is_url(text):
        return None
    for scheme, rest in _links(text):
        if _userinfo(scheme, rest):
            return "a user name or password"
        for parameter in re.split(r"[&;]", rest.partition("?")[2]):
            name = parameter.partition("=")[0]
            if _SECRET_PARAMETER.fullmatch(name):
                return f"a credential (query parameter `{name}`)"
    return None


def credentials_problem(text: str) -> str | None:
    """Why a URL is refused, without showing what is secret in it; None for one that is accepted, and for a path."""
    if (found := credentials_in(text)) is None:
        return None
    return (
        f"{redacted(text)} holds {found}, which would be stored and shown with everything made of it: leave it out and "
        "give credentials in the environment or in the configuration of fsspec (~/.config/fsspec)"
    )


def require_no_credentials(text: str, what: str) -> str:
    """The text, unless it is a URL that lets somebody in.

    Raises:
        InputError: names ``what`` and the URL without its secret.
    """
    if (problem := credentials_problem(text)) is not None:
        raise InputError(f"{what}: {problem}.")
    return text


def redacted(text: str) -> str:
    """A URL with ``…`` for a user and a password in it and for the values of its query; a path as it is."""
    return "::".join(_redacted(part) for part in text.split("::"))


def without_secrets(text: str) -> str:
    """Running text with every URL in it redacted that lets somebody in."""
    return _URL.sub(lambda match: redacted(found) if _lets_in(found := match[0]) else found, text)


def _lets_in(url: str) -> bool:
    # a path that was made of a URL has one slash left
    return credentials_in(re.sub(r":/{1,3}", "://", url, count=1)) is not None


def _redacted(link: str) -> str:
    match = _WHOLE.fullmatch(link)
    if match is None:
        return link
    rest = match["rest"]
    if secret := _userinfo(match["scheme"], rest):
        rest = f"…@{rest[len(secret) + 1 :]}"
    path, question, query = rest.partition("?")
    if not match["slashes"] or match["scheme"].lower() == "file":
        return f"{match['scheme']}:{match['slashes']}{rest}"  # of a path, where ? is a glob's
    query = re.sub(r"(^|[&;])([^=&;]*)(=?)[^&;]*", lambda m: f"{m[1]}{m[2]}=…" if m[3] else f"{m[1]}…", query)
    return f"{match['scheme']}:{match['slashes']}{path}{question}{query if question else ''}"


def _links(url: str) -> list[tuple[str, str]]:
    """Scheme and rest of each part of a chained URL."""
    parts = (part.partition("://") for part in url.split("::"))
    return [(scheme.lower(), rest.lstrip("/")) for scheme, _, rest in parts]


def _userinfo(scheme: str, rest: str) -> str:
    """What stands before ``@`` in place of a user; also a password with ``/``, ``?`` or ``#`` in it, as people type."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        user = authority.rpartition("@")[0]
        return "" if scheme.lower() in _CONTAINERS and ":" not in user else user
    host, colon, port = authority.rpartition(":")
    if colon and port and not port.isdigit() and not host.startswith("[") and "@" in rest:
        return rest.rpartition("@")[0]
    return ""
