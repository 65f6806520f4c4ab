"""An API server that knows jobs, services and pods, and if told so TrainJobs, over HTTP, for the official client.

It stores what it is given and returns what the test puts in; no controller acts on it.
"""

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

_TRAINER = ("trainjobs", "trainingruntimes")
_COLLECTIONS = ("jobs", "services", "pods", *_TRAINER)


class FakeKubernetes:
    """``objects[kind][name]`` are the stored objects; ``down`` makes every answer a 503, ``expired`` a 401.

    Args:
        trainer: whether Kubeflow's Trainer is installed.
    """

    def __init__(self, trainer: bool = False) -> None:
        self.trainer = trainer
        self.objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in _COLLECTIONS}
        self.requests: list[tuple[str, str]] = []
        self.down = False
        self.expired = False
        self.refusal: str | None = None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _handle(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                fake.requests.append((self.command, self.path))
                self._answer(*fake.answer(self.command, self.path, body))

            do_GET = do_POST = do_DELETE = do_PATCH = _handle

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if self.down:
            return 503, {"kind": "Status", "message": "etcd is away"}
        if self.expired:
            return 401, {"kind": "Status", "message": "Unauthorized"}
        parts = path.partition("?")[0].strip("/").split("/")
        if "trainer.kubeflow.org" in parts and not self.trainer:
            return 404, {"kind": "Status", "message": "the server could not find the requested resource"}
        if parts[-1] == "v1alpha1":
            return 200, {"kind": "APIResourceList", "groupVersion": "/".join(parts[-2:]), "resources": _resources()}
        kind = next(part for part in parts if part in _COLLECTIONS)
        name = parts[parts.index(kind) + 1] if parts[-1] != kind else None
        stored = self.objects[kind]
        if method == "POST":
            if self.refusal:
                return 403, {"kind": "Status", "message": self.refusal}
            body["metadata"]["uid"] = str(uuid.uuid4())
            stored[body["metadata"]["name"]] = {**body, "status": {}}
            return 201, stored[body["metadata"]["name"]]
        if name is None:
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(stored.values())}
        if name not in stored:
            return 404, {"kind": "Status", "message": f"{kind} {name} not found"}
        if method == "DELETE":
            del stored[name]
            if kind in ("jobs", "trainjobs"):
                self.objects["pods"].clear()
            self._collect_garbage(name)
            return 200, {"kind": "Status", "status": "Success"}
        if method == "PATCH":
            stored[name]["metadata"].update(body["metadata"])
        return 200, stored[name]

    def _collect_garbage(self, owner: str) -> None:
        """Delete what belongs to an object that is gone."""
        for stored in self.objects.values():
            for name, found in list(stored.items()):
                if any(entry["name"] == owner for entry in found["metadata"].get("ownerReferences", ())):
                    del stored[name]

    def kubeconfig(self) -> str:
        host, port = self._server.server_address[:2]
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "clusters": [{"name": "fake", "cluster": {"server": f"http://{host!s}:{port}"}}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
                "users": [{"name": "me", "user": {"token": "t"}}],
            }
        )

    def pod(
        self, name: str, phase: str, *, reason: str | None = None, message: str | None = None, **state: Any
    ) -> None:
        """Put a pod; ``state`` is ``waiting=…`` or ``terminated=…`` of its container."""
        status: dict[str, Any] = {"phase": phase, "reason": reason, "message": message}
        if state:
            container = {"name": "worker", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
            status["containerStatuses"] = [{**container, "state": state}]
        self.objects["pods"][name] = {
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "w"}]},
            "status": status,
        }

    def end(self, job: str, condition: str, reason: str = "", **status: Any) -> None:
        ended = {"type": condition, "status": "True", "reason": reason}
        kind = next(kind for kind in ("jobs", "trainjobs") if job in self.objects[kind])
        self.objects[kind][job]["status"] = {"conditions": [ended], **status}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _resources() -> list[dict[str, Any]]:
    return [{"name": name, "singularName": "", "namespaced": True, "kind": "X", "verbs": []} for name in _TRAINER]
