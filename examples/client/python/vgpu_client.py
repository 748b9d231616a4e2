"""The scheduler's HTTP API from Python: health, admission, filter, bind, explain, and the pod read back.

Needs nothing but Python 3.9. Every call is one request; nothing is cached and nothing is tried again, so a caller
decides what a failure means to it.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Optional

Object = dict[str, Any]

#: The annotations that have the allocation. The first is the API reference's key, the second HAMi's own.
ALLOCATION_KEYS = ("hami.io/devices-to-allocate", "hami.io/vgpu-devices-allocated")


class ApiError(Exception):
    """The server answered with an error, or not at all."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        #: The HTTP status; 0 when there was no answer.
        self.status = status
        #: The server's message.
        self.message = message


class Denied(Exception):
    """The webhook does not admit the pod. The text says which container and field, and what to write instead."""


@dataclass(frozen=True)
class Device:
    """A container's share of one device."""

    uuid: str
    vendor: str
    memory_mib: int
    cores: int


@dataclass(frozen=True)
class FilterResult:
    """Which nodes a pod can run on, and why not on the others."""

    #: Only the node that was chosen and reserved; every node of the request if the pod asks for no devices.
    nodes: list[str]
    #: Reason by node; the pod may fit when other pods leave.
    failed: dict[str, str] = field(default_factory=dict)
    #: Reason by node; the pod does not fit there even if other pods leave.
    unresolvable: dict[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Reason by node, of both kinds."""
        return {**self.failed, **self.unresolvable}


class Client:
    """A scheduler at an address such as `http://127.0.0.1:8080`.

    `api` is the Kubernetes API server where that is elsewhere; with `vgpu-scheduler --embedded` both are one.
    `token` is sent as a bearer token where the server wants one.
    """

    def __init__(
        self, url: str, api: Optional[str] = None, token: Optional[str] = None, timeout: float = 30.0
    ) -> None:
        self.url = url.rstrip("/")
        self.api = (api or url).rstrip("/")
        self.token = token
        self.timeout = timeout

    # The scheduler.

    def healthy(self) -> bool:
        """Whether the scheduler runs (`GET /healthz`)."""
        try:
            self._send("GET", self.url + "/healthz")
        except ApiError:
            return False
        return True

    def ready(self) -> bool:
        """Whether it knows its cluster and answers (`GET /readyz`)."""
        try:
            self._send("GET", self.url + "/readyz")
        except ApiError:
            return False
        return True

    def filter(self, pod: Object, nodes: list[str]) -> FilterResult:
        """Chooses one of these nodes and reserves the pod's devices there (`POST /filter`).

        That no node fits is an answer, not an error: `nodes` is empty then and `reasons` says why.
        """
        answer = self._json("POST", self.url + "/filter", {"Pod": pod, "NodeNames": nodes})
        _raise_error(answer)
        return FilterResult(
            nodes=answer.get("NodeNames") or [],
            failed=answer.get("FailedNodes") or {},
            unresolvable=answer.get("FailedAndUnresolvableNodes") or {},
        )

    def bind(self, pod: Object, node: str) -> None:
        """Binds the pod to the node, with the devices that were reserved there (`POST /bind`)."""
        metadata = pod["metadata"]
        answer = self._json(
            "POST",
            self.url + "/bind",
            {
                "PodName": metadata["name"],
                "PodNamespace": metadata.get("namespace", "default"),
                "PodUID": metadata.get("uid", ""),
                "Node": node,
            },
        )
        _raise_error(answer)

    def admit(self, pod: Object) -> Object:
        """The pod as the webhook changes it (`POST /webhook`); raises `Denied` with the reason."""
        metadata = pod["metadata"]
        review: Object = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": str(uuid.uuid4()),
                "operation": "CREATE",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "name": metadata["name"],
                "namespace": metadata.get("namespace", "default"),
                "userInfo": {},
                "object": {"apiVersion": "v1", "kind": "Pod", **pod},
            },
        }
        response = self._json("POST", self.url + "/webhook", review)["response"]
        if not response["allowed"]:
            raise Denied(response.get("status", {}).get("message", "denied without a reason"))
        admitted: Object = deepcopy(review["request"]["object"])
        if response.get("patch"):
            for operation in json.loads(base64.b64decode(response["patch"])):
                _apply(admitted, operation)
        return admitted

    def explain(self, pod: Object) -> Object:
        """Why the pod is where it is, or fits nowhere, and the smallest change that would help (`GET /explain`)."""
        metadata = pod["metadata"]
        name = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        return self._json("GET", f"{self.url}/explain?pod={urllib.parse.quote(name, safe='')}")

    def explain_text(self, pod: Object) -> str:
        """The same as text for a person."""
        metadata = pod["metadata"]
        name = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        url = f"{self.url}/explain?pod={urllib.parse.quote(name, safe='')}"
        return self._send("GET", url, accept="text/plain").decode()

    def metrics(self) -> str:
        """The series of `GET /metrics`, in Prometheus' text format."""
        return self._send("GET", self.url + "/metrics", accept="text/plain").decode()

    # The Kubernetes API.

    def create(self, pod: Object) -> Object:
        """Creates the pod, and returns it with what the server added (above all its uid)."""
        namespace = pod["metadata"].get("namespace", "default")
        body = {"apiVersion": "v1", "kind": "Pod", **pod}
        return self._json("POST", f"{self.api}/api/v1/namespaces/{namespace}/pods", body)

    def pod(self, namespace: str, name: str) -> Object:
        """The pod as the server has it."""
        return self._json("GET", f"{self.api}/api/v1/namespaces/{namespace}/pods/{name}")

    def pods(self) -> list[Object]:
        """All pods of all namespaces."""
        items: list[Object] = self._json("GET", f"{self.api}/api/v1/pods")["items"]
        return items

    def delete(self, namespace: str, name: str) -> None:
        """Deletes the pod; what it held is free at once."""
        self._json("DELETE", f"{self.api}/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")

    def nodes(self) -> list[Object]:
        """All nodes."""
        items: list[Object] = self._json("GET", f"{self.api}/api/v1/nodes")["items"]
        return items

    # The wire.

    def _send(self, method: str, url: str, body: Optional[bytes] = None, accept: str = "application/json") -> bytes:
        request = urllib.request.Request(url, data=body, method=method)
        request.add_header("Content-Type", "application/json")
        request.add_header("Accept", accept)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                read: bytes = answer.read()
                return read
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, _message(error.read())) from None
        except OSError as error:
            raise ApiError(0, f"{method} {url}: {error}") from None

    def _json(self, method: str, url: str, body: Optional[Object] = None) -> Object:
        sent = None if body is None else json.dumps(body).encode()
        answer: Object = json.loads(self._send(method, url, sent) or b"null")
        return answer


def devices(pod: Object) -> list[list[Device]]:
    """The devices of each container of the pod, init containers first; an empty list for a container without any."""
    annotations = pod["metadata"].get("annotations") or {}
    text = next((annotations[key] for key in ALLOCATION_KEYS if key in annotations), "")
    # Each device is "UUID,VENDOR,MIB,CORES:", and each container ends with ";".
    containers = text.split(";")[:-1]
    return [[_device(one) for one in container.split(":") if one] for container in containers]


def node_of(pod: Object) -> Optional[str]:
    """The node that the pod runs on; `None` while it has none."""
    return pod.get("spec", {}).get("nodeName") or None


def _device(text: str) -> Device:
    identity, vendor, memory, cores = text.split(",")[:4]
    return Device(identity, vendor, int(memory), int(cores))


def _raise_error(answer: Object) -> None:
    if answer.get("Error"):
        raise ApiError(200, answer["Error"])


def _message(body: bytes) -> str:
    """The text of an error: `Error` of the scheduler, `message` of the Kubernetes API, or the body itself."""
    try:
        said = json.loads(body)
        return str(said.get("Error") or said.get("message") or said)
    except (ValueError, AttributeError):
        return body.decode(errors="replace")


def _apply(target: Object, operation: Object) -> None:
    """One operation of a JSON Patch (RFC 6902): add, replace or remove, the ones that the webhook sends."""
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    place: Any = target
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    what = operation["op"]
    if isinstance(place, list):
        index = len(place) if last == "-" else int(last)
        if what == "add":
            place.insert(index, operation["value"])
        elif what == "replace":
            place[index] = operation["value"]
        elif what == "remove":
            del place[index]
    elif what in ("add", "replace"):
        place[last] = operation["value"]
    elif what == "remove":
        del place[last]
    if what not in ("add", "replace", "remove", "test"):
        raise ValueError(f"a patch operation that this client does not know: {what}")
