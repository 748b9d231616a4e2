#!/usr/bin/env python3
"""Records what a real kube-scheduler decides about random pods in small random clusters, one JSON object a line.

The test `differential` of crates/scheduling compares its own decisions with such a recording. It needs a running
API server, without the admission plugins Priority and TaintNodesByCondition, and a kube-scheduler with `-v=10` and the
configuration tests/vectors/simulator/kube-scheduler.config.json (with a clientConnection.kubeconfig of its own), which
writes its log to a file:

    scheduler_cases.py --server 127.0.0.1:6443 --token TOKEN --log scheduler.log --count 500 --seed 1 >cases.jsonl

With --volumes the cases are about volumes that are bound or made while a pod is placed, and about limits of CSI drivers.
Then no controller manager may run, since it would bind claims by itself; and the admission plugin
StorageObjectInUseProtection has to be off, since nothing would take its finalizers away.

Every pod and every node of that cluster is deleted before each case.
"""

import argparse
import http.client
import json
import random
import re
import ssl
import sys
import time

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
KEYS = [ZONE, HOST, "disk"]
# One size for an image: kube-scheduler takes the size that the first node reported.
IMAGES_MIB = {"img0:latest": 40, "img1:latest": 300, "img2:latest": 700}
# The node for which volumes are bound: without a controller manager the pod itself gets none.
ASSUMED = re.compile(r'"AssumePodVolumes".* pod="default/(\S+)" node="(\S+)"')
# Storage classes: provisioner, binding mode and the zones where volumes can be made.
CLASSES = {
    "now": ("kubernetes.io/no-provisioner", "Immediate", []),
    "wait": ("kubernetes.io/no-provisioner", "WaitForFirstConsumer", []),
    "make": ("csi.made", "WaitForFirstConsumer", []),
    "zonal": ("csi.made", "WaitForFirstConsumer", ["z1", "z2"]),
}
SCORED = re.compile(r'"Plugin scored node for pod" pod="default/(\S+)" plugin="(\S+)" node="(\S+)" score=(-?\d+)')
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class Api:
    def __init__(self, server, token):
        self.server, self.token, self.connection = server, token, None

    def __call__(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        for attempt in range(3):
            try:
                if self.connection is None:
                    context = ssl._create_unverified_context()
                    self.connection = http.client.HTTPSConnection(self.server, context=context)
                self.connection.request(method, path, body and json.dumps(body), headers)
                response = self.connection.getresponse()
                return response.status, json.loads(response.read() or b"{}")
            except (OSError, http.client.HTTPException):
                self.connection = None
                if attempt == 2:
                    raise


class Cases:
    """Random objects."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def one(self, *values):
        return self.random.choice(values)

    def number(self, least, end):
        return self.random.randrange(least, end)

    def node(self, at):
        labels = {HOST: f"n{at}"}
        for key, letter in ((ZONE, "z"), ("disk", "d")):
            if value := self.number(0, 4):
                labels[key] = f"{letter}{value}"
        if self.chance(0.3):
            labels["cores"] = str(self.number(1, 20))
        effects = ("NoSchedule", "PreferNoSchedule", "PreferNoSchedule", "NoExecute")
        taints = [{"key": key, "value": self.one("x", "y"), "effect": self.one(*effects)} for key in "pq" if self.chance(0.2)]
        offers = {"cpu": str(self.number(1, 9)), "memory": f"{self.number(1, 17)}Gi", "pods": self.one("2", "10", "110"), "ephemeral-storage": "10Gi"}
        if self.chance(0.4):
            offers["example.com/gpu"] = str(self.number(1, 5))
        images = [{"names": [name], "sizeBytes": size << 20} for name, size in IMAGES_MIB.items() if self.chance(0.3)]
        node = {"kind": "Node", "metadata": {"name": f"n{at}", "labels": labels}, "spec": {}, "status": {"allocatable": offers, "images": images}}
        if taints:
            node["spec"]["taints"] = taints
        if self.chance(0.1):
            node["spec"]["unschedulable"] = True
        return node

    def selector(self):
        if self.chance(0.8):
            return {"matchLabels": {"app": f"a{self.number(0, 3)}"}}
        return {"matchExpressions": [{"key": "app", "operator": self.one("In", "NotIn"), "values": ["a0", "a1"]}]}

    def term(self):
        term = {"topologyKey": self.one(*KEYS), "labelSelector": self.selector()}
        further = [{"namespaces": ["other"]}, {"namespaceSelector": {}}, {"namespaceSelector": {"matchLabels": {"team": "t"}}}]
        if self.chance(0.3):
            term.update(self.one(*further))
        return term

    def pod_terms(self):
        terms = {}
        if self.chance(0.5):
            terms[REQUIRED] = [self.term() for _ in range(self.one(1, 1, 2))]
        if self.chance(0.6):
            terms[PREFERRED] = [{"weight": self.number(1, 101), "podAffinityTerm": self.term()} for _ in range(self.one(1, 2))]
        return terms

    def expression(self):
        operator = self.one("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
        if operator in ("Gt", "Lt"):
            return {"key": "cores", "operator": operator, "values": [str(self.number(1, 20))]}
        expression = {"key": self.one("disk", "cores", ZONE), "operator": operator}
        if operator in ("In", "NotIn"):
            expression["values"] = [self.one("d1", "d2", "z1", "5") for _ in range(2)]
        return expression

    def node_affinity(self):
        affinity = {}
        if self.chance(0.5):
            terms = [{"matchExpressions": [self.expression() for _ in range(self.one(1, 2))]} for _ in range(self.one(1, 2))]
            if self.chance(0.2):
                field = {"key": "metadata.name", "operator": self.one("In", "NotIn"), "values": [f"n{self.number(0, 6)}"]}
                terms = [{"matchFields": [field]}]
            affinity[REQUIRED] = {"nodeSelectorTerms": terms}
        if self.chance(0.6):
            affinity[PREFERRED] = [{"weight": self.number(1, 101), "preference": {"matchExpressions": [self.expression()]}} for _ in range(2)]
        return affinity

    def spread(self):
        constraints = []
        for key in self.random.sample(KEYS, self.one(1, 2)):
            when = self.one("DoNotSchedule", "ScheduleAnyway")
            constraint = {"maxSkew": self.number(1, 4), "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": self.selector()}
            if when == "DoNotSchedule" and self.chance(0.3):
                constraint["minDomains"] = self.number(1, 5)
            for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
                if self.chance(0.3):
                    constraint[policy] = self.one("Honor", "Ignore")
            if self.chance(0.2):
                constraint["matchLabelKeys"] = ["ver"]
            constraints.append(constraint)
        return constraints

    def container(self, name):
        asks = {}
        if self.chance(0.7):
            asks["cpu"] = f"{self.number(0, 20) * 100}m"
        if self.chance(0.7):
            asks["memory"] = f"{self.number(0, 40) * 100}Mi"
        if self.chance(0.1):
            asks["ephemeral-storage"] = f"{self.number(1, 12)}Gi"
        container = {"name": name, "image": self.one("img0", "img1:latest", "img2", "other"), "resources": {"requests": asks}}
        if self.chance(0.15):
            asks["example.com/gpu"] = str(self.number(1, 3))
            container["resources"]["limits"] = {"example.com/gpu": asks["example.com/gpu"]}
        return container

    def pod(self, name, namespace, node=None):
        spec = {"containers": [self.container("c")], "terminationGracePeriodSeconds": 0}
        if self.chance(0.15):
            port = self.one(80, 81)
            spec["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
        if self.chance(0.2):
            spec["initContainers"] = [self.container("i")]
            if self.chance(0.4):
                spec["initContainers"][0]["restartPolicy"] = "Always"
        affinity = {}
        for kind in ("podAffinity", "podAntiAffinity"):
            if self.chance(0.2):
                affinity[kind] = self.pod_terms()
        if self.chance(0.3):
            affinity["nodeAffinity"] = self.node_affinity()
        if affinity:
            spec["affinity"] = affinity
        if self.chance(0.35):
            spec["topologySpreadConstraints"] = self.spread()
        if self.chance(0.15):
            spec["nodeSelector"] = {"disk": self.one("d1", "d2")}
        if self.chance(0.4):
            some = ({"operator": "Exists"}, {"key": "p", "operator": "Exists"}, {"key": "p", "operator": "Exists", "effect": "PreferNoSchedule"})
            spec["tolerations"] = [self.one(*some, {"key": "q", "operator": "Equal", "value": "x", "effect": "NoSchedule"})]
        spec["priority"] = self.one(0, 0, 0, 10) if node else self.one(0, 0, 5, 20)
        if node:
            spec["nodeName"] = node
        labels = {"app": f"a{self.number(0, 3)}", "ver": self.one("1", "2")}
        return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}

    def storage(self, case, nodes, pods, new):
        """Claims that the new pod mounts, their volumes, and limits of nodes. No claim can be bound by the case."""
        objects = []
        for at in range(self.number(1, 3)):
            name, volume = f"c{case}-{at}", f"v{case}-{at}"
            mount = {"name": f"vol{at}", "persistentVolumeClaim": {"claimName": name}}
            new["spec"].setdefault("volumes", []).append(mount)
            kind = self.one("bound", "bound", "bound", "missing", "now", "wait", "gone")
            if kind == "missing":
                continue
            mode = self.one("ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod")
            spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "wait" if kind == "wait" else "now"}
            claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
            if kind in ("bound", "gone"):
                spec["volumeName"] = volume
                claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
            if kind == "bound":
                objects.append(self.volume(name, volume))
            if pods and self.chance(0.3):
                other = self.one(*pods)
                if other["metadata"]["namespace"] == "default":
                    other["spec"].setdefault("volumes", []).append(mount)
            objects.append(claim)
        for node in nodes:
            if self.chance(0.4):
                driver = {"name": "csi.example", "nodeID": "x", "allocatable": {"count": self.number(0, 3)}}
                objects.append({"kind": "CSINode", "metadata": {"name": node["metadata"]["name"]}, "spec": {"drivers": [driver]}})
        return objects

    def late_storage(self, case, nodes, pods, new):
        """Claims that wait for their pod, free volumes for some of them, and limits of nodes."""
        objects = []
        for at in range(self.number(1, 4)):
            name = f"c{case}-{at}"
            mount = {"name": f"vol{at}", "persistentVolumeClaim": {"claimName": name}}
            new["spec"].setdefault("volumes", []).append(mount)
            kind = self.one("wait", "wait", "make", "zonal", "bound")
            spec = {"accessModes": [self.one("ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany")], "storageClassName": kind}
            spec["resources"] = {"requests": {"storage": f"{self.number(1, 5)}Gi"}}
            claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
            if kind == "bound":
                spec.update(storageClassName="now", volumeName=f"v{case}-{at}", accessModes=["ReadWriteOnce"], resources={"requests": {"storage": "1Gi"}})
                claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
                objects.append(self.volume(name, f"v{case}-{at}"))
            elif kind == "wait" and self.chance(0.2):
                spec["selector"] = {"matchLabels": {"speed": self.one("fast", "slow")}}
            elif kind != "wait" and self.chance(0.15):
                claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": self.one(*nodes)["metadata"]["name"]}
            if pods and self.chance(0.15):
                other = self.one(*pods)
                if other["metadata"]["namespace"] == "default":
                    other["spec"].setdefault("volumes", []).append(mount)
            objects.append(claim)
        for at in range(self.number(0, 7)):
            objects.append(self.free_volume(f"f{case}-{at}", case))
        for at, pod in enumerate(pods):
            if pod["metadata"]["namespace"] == "default" and self.chance(0.5):
                name, volume = f"o{case}-{at}", f"ov{case}-{at}"
                pod["spec"].setdefault("volumes", []).append({"name": "own", "persistentVolumeClaim": {"claimName": name}})
                spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "now", "volumeName": volume}
                metadata = {"name": name, "namespace": "default", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
                bound = self.volume(name, volume)
                bound["spec"]["csi"]["driver"] = self.one("csi.example", "csi.made")
                objects += [{"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}, bound]
        for node in nodes:
            drivers = [driver for driver in ("csi.example", "csi.made") if self.chance(0.5)]
            rows = [{"name": driver, "nodeID": "x", "allocatable": {"count": self.number(0, 4)}} for driver in drivers]
            if rows:
                objects.append({"kind": "CSINode", "metadata": {"name": node["metadata"]["name"]}, "spec": {"drivers": rows}})
        return objects

    def free_volume(self, name, case):
        spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": f"{self.number(1, 6)}Gi"}}
        spec["storageClassName"] = self.one("wait", "wait", "wait", "make")
        if self.chance(0.3):
            spec["accessModes"].append("ReadWriteMany")
        driver = self.one("csi.example", "csi.made")
        spec["csi"] = {"driver": driver, "volumeHandle": name}
        if self.chance(0.7):
            expression = self.one({"key": ZONE, "operator": "In", "values": self.random.sample(["z1", "z2", "z3"], 2)}, {"key": HOST, "operator": "In", "values": [f"n{self.number(0, 4)}"]}, {"key": "disk", "operator": "Exists"})
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        if self.chance(0.1):
            spec["claimRef"] = {"namespace": "default", "name": f"c{case}-{self.number(0, 3)}"}
        labels = {"speed": self.one("fast", "slow")} if self.chance(0.6) else {}
        status = {"phase": "Available"} if self.chance(0.9) else {"phase": "Released"}
        return {"kind": "PersistentVolume", "metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}

    def volume(self, claim, name):
        spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "now"}
        spec["csi"] = {"driver": "csi.example", "volumeHandle": name}
        spec["claimRef"] = {"namespace": "default", "name": claim}
        if self.chance(0.5):
            values = self.random.sample(["d1", "d2", "d3"], 2)
            expression = {"key": "disk", "operator": "In", "values": values}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        volume = {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        if self.chance(0.4):
            volume["metadata"]["labels"] = {ZONE: self.one("z1", "z2", "z1__z3")}
        return volume


PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="host and port of the API server")
    parser.add_argument("--token", required=True, help="bearer token of an administrator")
    parser.add_argument("--log", required=True, help="the log of kube-scheduler")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--volumes", action="store_true", help="cases about volumes that are bound while a pod is placed")
    args = parser.parse_args()
    api, cases = Api(args.server, args.token), Cases(args.seed)

    def create(item):
        path = PATHS[item["kind"]].format(item["metadata"].get("namespace"))
        answer = api("POST", path, item)
        if item["kind"] == "PersistentVolume" and "status" in item and answer[0] == 201:
            return 201, api("PUT", f"{path}/{item['metadata']['name']}/status", {**answer[1], "status": item["status"]})[1]
        return answer

    shared = [{"kind": "Namespace", "metadata": {"name": "other", "labels": {"team": "t"}}}, {"kind": "Namespace", "metadata": {"name": "default"}}]
    for name, (provisioner, mode, zones) in CLASSES.items():
        topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}] if zones else []
        shared.append({"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, "allowedTopologies": topologies})
    for item in shared:
        create(item)
    log = open(args.log, errors="replace")
    log.seek(0, 2)
    for case in range(args.count):
        for path in PATHS["Pod"].format("default"), PATHS["Pod"].format("other"):
            api("DELETE", path + "?gracePeriodSeconds=0")
        for path in PATHS["Node"], PATHS["PersistentVolumeClaim"].format("default"), PATHS["PersistentVolume"], PATHS["CSINode"]:
            api("DELETE", path)
        time.sleep(0.12)
        nodes = [cases.node(at) for at in range(cases.number(1, 8))]
        names = [node["metadata"]["name"] for node in nodes]
        pods = [cases.pod(f"p{case}-{at}", cases.one("default", "default", "default", "other"), cases.one(*names)) for at in range(cases.number(0, 9))]
        name = f"new-{args.seed}-{case}"
        new = cases.pod(name, "default")
        new["spec"]["schedulerName"] = cases.one("default-scheduler", "default-scheduler", "most", "ratio")
        if args.volumes:
            # The other cases are about the other reasons that keep a pod away.
            new["spec"] = {"containers": [{"name": "c", "image": "other"}], "schedulerName": new["spec"]["schedulerName"]}
            for node in nodes:
                if cases.chance(0.8):
                    node["spec"] = {}
            storage = cases.late_storage(case, nodes, pods, new)
        else:
            storage = cases.storage(case, nodes, pods, new) if cases.chance(0.25) else []
        objects = nodes + storage + pods
        refused = [answer for status, answer in map(create, objects) if status != 201]
        time.sleep(0.1)
        status, answer = create(new)
        if refused or status != 201:
            print(f"case {case}: {(refused or [answer])[0].get('message')}", file=sys.stderr)
            continue
        found, lines = None, []
        until = time.time() + 15
        while found is None and time.time() < until:
            _, pod = api("GET", f"{PATHS['Pod'].format('default')}/{name}")
            conditions = [c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"]
            if pod["spec"].get("nodeName"):
                found = {"node": pod["spec"]["nodeName"]}
            elif conditions:
                found = {"message": conditions[0].get("message")}
            else:
                time.sleep(0.02)
                new_lines = log.readlines()
                lines += new_lines
                for match in filter(None, map(ASSUMED.search, new_lines)):
                    if match[1] == name:
                        found = {"node": match[2]}
        if found is None:
            print(f"case {case}: kube-scheduler said nothing", file=sys.stderr)
            continue
        time.sleep(0.05)
        scores = {}
        for line in lines + log.readlines():
            match = SCORED.search(line)
            if match and match[1] == name:
                scores.setdefault(match[2], {})[match[3]] = int(match[4])
        print(json.dumps({"objects": objects, "pod": new, **found, "scores": scores}, separators=(",", ":")), flush=True)


main()
