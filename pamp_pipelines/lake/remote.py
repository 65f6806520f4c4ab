"""A store of objects at an fsspec URL: the only module that talks to one.

Every failure leaves as an error that names the URL and says what to do, and none holds a secret.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError, StorageError, install_command
from pamp_pipelines.urls import require_no_credentials

OnBytes = Callable[[int], None]
"""Called with the number of bytes that were moved since the last call; from several threads."""

RANGE_BYTES = 16 << 20
"""Bytes of one ranged read; eight of them are in memory at once."""
_PART_BYTES = 50 << 20
_MOST_PARTS = 9_000  # S3 allows 10,000

_DEFAULTS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3, "mode": "standard"}}
    }
}
"""Options by protocol, below those of fsspec's own configuration (``FSSPEC_S3_…``, ``~/.config/fsspec``)."""

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud",
}
_PACKAGES = {"s3": "-e '.[s3]'", "gs": "-e '.[gs]'", "gcs": "-e '.[gs]'"}
_MALFORMED = ("ParamValidationError", "InvalidURL", "NonHttpUrlClientError", "InvalidUrlClientError", "UnknownProtocol")
"""Errors of botocore, aiohttp and httpx for what was given; another attempt ends the same."""
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")


class ObjectMissing(StorageError):
    """There is no such object."""


@dataclass(frozen=True)
class Object:
    """``token`` changes when the object is written again: its ETag, or size and time where a store has none."""

    bytes: int
    token: str


@dataclass(frozen=True)
class RemoteStore:
    """Objects below a URL, named by relative paths with forward slashes.

    Raises:
        InputError: the URL has no host, or holds credentials.
    """

    url: str

    def __post_init__(self) -> None:
        _, _, rest = self.url.partition("://")
        if not rest.strip("/"):
            raise InputError(f"{self.url!r} names no bucket; a lake at a URL has the form s3://bucket/prefix")
        require_no_credentials(self.url, "the lake's URL")

    @property
    def protocol(self) -> str:
        return self.url.partition("://")[0]

    def url_of(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{path}"

    def list(self, prefix: str) -> dict[str, Object]:
        """All objects below a prefix, by path relative to it."""
        with self._reaching(prefix):
            base = self._at(prefix) + "/"
            found = self._fs.find(base, detail=True)
        return {
            name.removeprefix(base): Object(int(info["size"]), _token(info))
            for name, info in found.items()
            if name.startswith(base)
        }

    def read(self, path: str) -> bytes:
        """Raises ObjectMissing where there is none."""
        with self._reaching(path):
            return bytes(self._fs.cat_file(self._at(path)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``, which is not included. Raises ObjectMissing."""
        with self._reaching(path):
            return bytes(self._fs.cat_file(self._at(path), start=start, end=end))

    def write(self, path: str, data: bytes) -> None:
        with self._reaching(path):
            self._make_folder(path)
            self._fs.pipe_file(self._at(path), data)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist yet, in one step; False where it does."""
        with self._reaching(path):
            self._make_folder(path)
            try:
                self._fs.pipe_file(self._at(path), data, mode="create")
            except FileExistsError:
                return False
        return True

    def upload(self, file: Path, path: str, on_bytes: OnBytes) -> None:
        """Put a file; readers see the old object or the new one."""
        from fsspec.callbacks import Callback

        class Moved(Callback):  # type: ignore[misc]
            """Backends tell of what was moved since the last call (s3fs), or in all (gcsfs)."""

            def relative_update(self, inc: int = 1) -> None:
                self.value += inc
                on_bytes(inc)

            def absolute_update(self, value: int) -> None:
                self.relative_update(value - self.value)

        part = max(_PART_BYTES, file.stat().st_size // _MOST_PARTS)
        with self._reaching(path):
            self._make_folder(path)
            self._fs.put_file(str(file), self._at(path), callback=Moved(), chunksize=part)

    def stat(self, path: str) -> Object:
        """Raises ObjectMissing where there is none."""
        with self._reaching(path):
            self._fs.invalidate_cache()
            info = self._fs.info(self._at(path))
        return Object(int(info["size"]), _token(info))

    def delete(self, paths: Iterable[str]) -> None:
        """Objects that are gone already are no error."""
        for path in paths:
            with contextlib.suppress(ObjectMissing), self._reaching(path):
                self._fs.rm_file(self._at(path))

    @cached_property
    def _fs(self) -> Any:
        return filesystem(self.url)

    def _at(self, path: str) -> str:
        return f"{self._fs._strip_protocol(self.url).rstrip('/')}/{path}"

    def _make_folder(self, path: str) -> None:
        if self.protocol not in ("s3", "gs", "gcs", "abfs", "az"):  # object stores have no folders
            self._fs.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)

    def _reaching(self, path: str) -> contextlib.AbstractContextManager[None]:
        return reaching(self.url_of(path))


def filesystem(url: str) -> Any:
    """The fsspec filesystem of a URL, without its cache of listings: others write there too."""
    import fsspec

    protocol = url.partition("://")[0]
    options = {**_DEFAULTS.get(protocol, {}), **fsspec.config.conf.get(protocol, {})}
    found = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)[0]
    if hasattr(found, "retries"):  # s3fs's own, on top of those of the client below it
        found.retries = 2
    return found


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Turn what a backend raises, which is of many libraries, into errors of this project.

    Raises:
        ObjectMissing: there is no such object.
        InputError: the backend is not installed, the bucket does not exist, credentials are missing or refused.
        StorageError: the store does not answer.
    """
    protocol, _, rest = url.partition("://")
    credentials = _CREDENTIALS.get(protocol, f"give {protocol}:// its credentials")
    try:
        yield
    except (ImportError, ValueError) as error:
        if isinstance(error, ValueError) and "protocol" not in str(error).lower():
            raise InputError(f"{url}: cannot be opened ({_said(error)}); correct the URL.") from None
        package = _PACKAGES.get(protocol)
        how = f"`{install_command(package)}`" if package else f"the fsspec package for {protocol}://"
        raise InputError(f"{url}: cannot be opened ({_said(error)}); is it installed? {how}") from None
    except FileNotFoundError as error:
        if "bucket" in str(error).lower():
            bucket = f"{protocol}://{rest.split('/')[0]}"
            raise InputError(f"{bucket}: the bucket does not exist; create it, or correct the URL.") from None
        raise ObjectMissing(f"{url}: no such object") from None
    except PermissionError as error:
        raise InputError(
            f"{url}: access is refused ({_said(error)}); {credentials}, with the right to list and read there, and for "
            "a lake to write and delete."
        ) from None
    except Exception as error:
        if "Credentials" in type(error).__name__:
            raise InputError(f"{url}: no credentials; {credentials}.") from None
        if type(error).__name__ in _MALFORMED:
            raise InputError(f"{url}: no such address can be ({_said(error)}); correct the URL.") from None
        raise StorageError(
            f"{url}: the store does not answer ({type(error).__name__}: {_said(error)}). Nothing is lost: run it again "
            "when it does."
        ) from None


def _token(info: dict[str, Any]) -> str:
    for name in ("ETag", "etag", "md5Hash", "content_md5"):
        if info.get(name):
            return str(info[name]).strip('"')
    return f"{info['size']}:{info.get('LastModified') or info.get('mtime') or info.get('created')}"


def _said(error: Exception) -> str:
    """The first line of a message, without what identifies or lets in."""
    text = (str(error) or repr(error)).splitlines()[0]
    text = re.sub(r"//[^/@\s]+@", "//…@", re.sub(r"\?[^\s\"']*", "", text))
    for name in _SECRETS:
        if (value := os.environ.get(name)) and len(value) > 3:
            text = text.replace(value, "…")
    return text
