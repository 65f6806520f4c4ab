"""An S3 server for the tests of remote lakes."""

from tests.s3_server import _s3_server, machines, own_clients, s3

__all__ = ["_s3_server", "machines", "own_clients", "s3"]
