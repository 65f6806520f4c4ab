"""The API server of Kubernetes: the official client, and what its errors mean to a run."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from pamp_pipelines.declarations.kubernetes import KubernetesOptions
from pamp_pipelines.errors import InputError, LauncherError, install_command

_TIMEOUT_S = 30


@dataclass(frozen=True)
class Cluster:
    """The parts of the client that a launcher uses."""

    batch: Any
    core: Any
    custom: Any
    """Objects of kinds that a cluster was taught by a CRD, as dictionaries."""


def connect(options: KubernetesOptions) -> Cluster:
    """By the kubeconfig, inside a cluster by the service account.

    Raises:
        InputError: the client is not installed, or nothing says which cluster.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise InputError(
            f"`launcher: kubernetes` needs the official client: `{install_command("-e '.[kubernetes]'")}`"
        ) from error
    try:
        api = config.new_client_from_config(context=options.context)
    except (config.ConfigException, OSError, yaml.YAMLError, TypeError) as outside:  # also a file cut short
        try:
            config.load_incluster_config()
        except config.ConfigException:
            raise InputError(f"no Kubernetes cluster: {outside}; set KUBECONFIG") from outside
        api = client.ApiClient()
    return Cluster(client.BatchV1Api(api), client.CoreV1Api(api), client.CustomObjectsApi(api))


_RAISE: Any = object()


def call(method: Callable[..., Any], *arguments: Any, absent: Any = _RAISE, **options: Any) -> Any:
    """One request; ``absent`` is the answer for an object, or a kind of objects, that is not there.

    Raises:
        InputError: the server refuses; with its words.
        LauncherError: it does not answer.
    """
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return method(*arguments, _request_timeout=_TIMEOUT_S, **options)
    except ApiException as error:
        if error.status == 404 and absent is not _RAISE:
            return absent
        if error.status in (400, 401, 403, 404, 409, 422):
            raise InputError(f"Kubernetes refuses ({error.status} {error.reason}): {_message(error)}") from error
        raise LauncherError(f"Kubernetes does not answer: {error.status} {error.reason}") from error
    except (HTTPError, OSError) as error:
        raise LauncherError(f"Kubernetes does not answer: {error}") from error


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.body or "")
