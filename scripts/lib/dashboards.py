"""Writes charts/vgpu/dashboards/*.json, the Grafana dashboards of the chart.

What a panel asks, is called and means stands here, one call for each; places, ids and the rest of Grafana's JSON
are made. Makes no connections. `scripts/lib/dashboards-check` says whether the files are as this writes them, and runs
every query on a real Prometheus.

    python3 scripts/lib/dashboards.py           writes them
    python3 scripts/lib/dashboards.py --check   fails where a file differs

Units are said by name and never guessed from a series: `share` is 0-1 (Grafana's percentunit), `percent` 0-100.
Two replicas of the scheduler may both show a device while the Lease changes hands, so it is taken once (`max by`), never
summed. A panel whose series are there with all details only says so.
"""

import json
import os
import re
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "charts", "vgpu", "dashboards")
UNITS = {
    "bytes": "bytes",
    "share": "percentunit",
    "percent": "percent",
    "seconds": "s",
    "count": "short",
    "per second": "ops",
    "bytes per second": "Bps",
    "yes or no": "bool_yes_no",
    "watts": "watt",
    "celsius": "celsius",
    "hertz": "hertz",
    "GPU hours": "none",
}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

# The dashboards' variables as selectors. "All" also selects series without the label (a scheduler's, a `vgpu run`'s).
NODE = 'node=~"$node"'
PODS = 'namespace=~"$namespace",pod=~"$pod"'


def once(series, labels="node, device_uuid", chosen=NODE):
    """A series that every replica of the scheduler shows, taken once."""
    return f"max by ({labels}) ({series}{{{chosen}}})"


def query(expr, legend="", table=False, exemplar=False):
    return {"expr": " ".join(expr.split()), "legend": legend, "table": table, "exemplar": exemplar}


# Series that metricsDetail=standard leaves out (docs/metrics.md).
DETAILS = re.compile(r"hami_(gpu_shared_count|vgpu_(memory|core)_allocated_\w+|host_gpu_memory_controller\w+|vgpu_memory_"
                     r"(context|module|buffer)_bytes|container_\w+)|vgpu_(container_(refused|hook_calls|processes|priority|compute_("
                     r"policy|asked|granted|waiting|waits|wait_|waited|busy)|kernel|graph|copies|copied|host_functions|last)\w*"
                     r"|gpu_(power_limit|memory_|energy)\w+|plugin_calls\w+|monitor_arbiter_(leads|ticks)\w*)")


def panel(kind, title, why, queries, unit="count", width=8, height=8, **more):
    if isinstance(queries, (str, tuple)):
        queries = [queries]
    made = []
    for one in queries:
        if isinstance(one, str):
            one = query(one)
        elif isinstance(one, tuple):
            one = query(*one)
        made.append(one)
    if all(DETAILS.search(one["expr"]) for one in made):
        why += " Needs metricsDetail=full."
    return {"kind": kind, "title": title, "why": why, "queries": made, "unit": unit, "width": width,
            "height": height, "more": more}


def stat(title, why, expr, unit="count", **more):
    return panel("stat", title, why, expr, unit, width=4, height=4, **more)


def lines(title, why, queries, unit="count", **more):
    return panel("timeseries", title, why, queries, unit, **more)


def table(title, why, queries, columns, width=24, **more):
    """`columns` is a list of (name in the query, heading, unit or None); `Value #A` is the first query's value."""
    queries = [query(one, table=True) for one in ([queries] if isinstance(queries, str) else queries)]
    return panel("table", title, why, queries, width=width, columns=columns, **more)


def row(title):
    return {"kind": "row", "title": title}


def quantiles(series, by, chosen="", legend=None):
    legend = legend or "{{" + by + "}}"
    select = f"{{{chosen}}}" if chosen else ""
    return [
        query(f"histogram_quantile({q}, sum by (le, {by}) (rate({series}_bucket{select}[$__rate_interval])))",
              f"{legend} {name}", exemplar=True)
        for q, name in ((0.5, "half"), (0.99, "99 of 100"))
    ]


def zero(expr):
    """0 where there is nothing to count, so that a panel says "none" and not "no data"."""
    return f"({expr}) or vector(0)"


LIMIT, PROMISED = "hami_gpu_memory_limit_bytes", "hami_gpu_memory_allocated_bytes"
CORES, CORES_PROMISED = "hami_gpu_core_limit_ratio", "hami_gpu_core_allocated_ratio"
DEVICE = "node, device_uuid, device_index"


def core_limit(labels="node, device_uuid"):
    """The compute of each device that can be promised: without all details a limit of 100 is not shown."""
    return f"({once(CORES, labels)} or {once(LIMIT, labels)} * 0 + 100)"


VDEVICE = "node, namespace, pod, container, vdevice_index"
OF_CONTAINER = "{{namespace}}/{{pod}}/{{container}} GPU {{vdevice_index}}"
WHOLE_CONTAINER = "{{namespace}}/{{pod}}/{{container}}"


def by_claim(value, chosen):
    """A value of each device of a container, for the containers that a ResourceClaim gave, with the claim's name."""
    info = f"max by (node, namespace, pod, container, claim) (vgpu_container_claim_info{{{chosen}}})"
    return f"{value} * on (node, namespace, pod, container) group_left (claim) {info}"

HEALTH_COLUMNS = [("node", "Node", None), ("device_index", "GPU", None), ("device_uuid", "UUID", None),
                  ("device_type", "Type", None), ("Value", "Healthy", "yes or no")]


def cluster():
    ns = 'namespace=~"$namespace"'
    return [
        row("The cluster at a glance"),
        stat("How many GPUs there are", "GPUs that nodes have registered with the scheduler.",
             f"count({once(LIMIT)})"),
        stat("How much memory can be promised",
             "Memory of all GPUs as registered; more than the physical memory where memory is overcommitted.",
             f"sum({once(LIMIT)})", "bytes"),
        stat("What part of the memory is promised",
             "Memory given to pods, as a part of what can be promised. Near 100 % new pods wait.",
             f"sum({once(PROMISED)}) / sum({once(LIMIT)})", "share", steps=[(0.8, "orange"), (0.95, "red")]),
        stat("What part of the compute is promised",
             "Compute given to pods, as a part of what can be promised. Pods without a compute request count as 0.",
             f"sum({once(CORES_PROMISED)}) / sum({core_limit()})", "share", steps=[(0.8, "orange"), (0.95, "red")]),
        stat("Unhealthy GPUs", "GPUs that get no new pods until a probe finds them healthy.",
             zero(f"count(vgpu_gpu_healthy{{{NODE}}} == 0)"), steps=[(1, "red")]),
        stat("How many pods wait for a GPU", "Pods that asked for devices and got none.",
             zero("sum(max by (reason) (vgpu_scheduler_pending_pods))"), steps=[(1, "orange"), (10, "red")]),
        row("What is promised and what is used"),
        lines("How much memory is available, promised and used",
              "What can be promised, what pods were given, and what the driver says is in use. Used far below promised: "
              "tenants ask for more than they need. Used above promised: some process is not limited.",
              [(f"sum({once(LIMIT)})", "can be promised"), (f"sum({once(PROMISED)})", "promised"),
               (f"sum(max by (node, device_uuid) (hami_host_gpu_memory_used_bytes{{{NODE}}}))", "used")],
              "bytes", width=12),
        lines("How busy the GPUs are",
              "Busy part of the GPUs of each node in the last sample period as the driver reports it, mean over its GPUs.",
              (f"avg by (node) (max by (node, device_uuid) (hami_host_gpu_utilization_ratio{{{NODE}}}))", "{{node}}"),
              "percent", width=12, top=100),
        lines("What part of each node's memory is promised",
              "Memory given to pods on a node, as a part of what the node can promise.",
              (f"sum by (node) ({once(PROMISED)}) / sum by (node) ({once(LIMIT)})", "{{node}}"), "share", top=1),
        lines("What part of each node's compute is promised",
              "Compute given to pods on a node, as a part of what the node can promise.",
              (f"sum by (node) ({once(CORES_PROMISED)}) / sum by (node) {core_limit()}", "{{node}}"), "share", top=1),
        lines("How many containers share the GPUs of each node",
              "Slots in use; a container with an exclusive GPU takes all of its slots.",
              (f"sum by (node) ({once('hami_gpu_shared_count')})", "{{node}}")),
        table("Which GPU has how much left",
              "Every GPU with the amounts that can be promised and that are promised, the fullest first.",
              [f"max by ({DEVICE}, device_type) ({LIMIT}{{{NODE}}})",
               f"max by ({DEVICE}) ({PROMISED}{{{NODE}}})",
               f"max by ({DEVICE}) ({PROMISED}{{{NODE}}}) / max by ({DEVICE}) ({LIMIT}{{{NODE}}})",
               f"max by ({DEVICE}) ({CORES_PROMISED}{{{NODE}}})"],
              [("node", "Node", None), ("device_index", "GPU", None), ("device_type", "Type", None),
               ("device_uuid", "UUID", None), ("Value #A", "Memory", "bytes"), ("Value #B", "Promised", "bytes"),
               ("Value #C", "Promised part", "share"), ("Value #D", "Cores promised", "count")], sort="Promised part"),
        row("Which pods hold it"),
        lines("How much memory each namespace was given", "Memory that the pods of a namespace hold.",
              (f"sum by (namespace) (max by (namespace, node, pod, container, vdevice_index) "
               f"(hami_vgpu_memory_limit_bytes{{{ns}}}))", "{{namespace}}"), "bytes"),
        lines("How much of its quota each namespace has used",
              "The amount that the namespace's pods hold, as a part of its quota. At 100 % its next pod is refused.",
              (f"max by (namespace, quota_name) (hami_resource_quota_used{{{ns}}}) "
               f"/ (max by (namespace, quota_name) (hami_resource_quota_limit{{{ns}}}) > 0)",
               "{{namespace}} {{quota_name}}"), "share", top=1),
        table("Which containers hold much and use little",
              "Containers by the memory that they were given and have not used, mean over an hour, with the part of "
              "their GPU's time that they used. High up and idle: ask the owner.",
              [f"topk(20, avg_over_time(hami_vgpu_memory_limit_bytes{{{ns}}}[1h]) "
               f"- avg_over_time(hami_vgpu_memory_used_bytes{{{ns}}}[1h]))",
               f"avg_over_time(vgpu_container_compute_used_ratio{{{ns}}}[1h])"],
              [("namespace", "Namespace", None), ("pod", "Pod", None), ("container", "Container", None),
               ("vdevice_index", "GPU", None), ("node", "Node", None), ("Value #A", "Given and not used", "bytes"),
               ("Value #B", "Time used", "share")], width=8, sort="Given and not used"),
        row("Pending pods, and the scheduler"),
        lines("Why pods wait", "Pods that asked for devices and got none, by the reason that most nodes have. "
              "`vgpu explain` says for one pod what would make it fit.",
              ("max by (reason) (vgpu_scheduler_pending_pods) or label_replace(vector(0), \"reason\", \"none waits\", \"\", \"\")",
               "{{reason}}")),
        lines("How long the scheduler takes for an answer",
              "Time from a decoded request to its answer. Dots are exemplars: with tracing on they link to the trace of one pod.",
              quantiles("vgpu_scheduler_request_duration_seconds", "verb"), "seconds"),
        lines("Results of the scheduler's answers",
              "Answers a second by verb and outcome. no_node: the pod fits nowhere; failed: the scheduler or the API server failed.",
              ("sum by (verb, outcome) (rate(vgpu_scheduler_request_duration_seconds_count[$__rate_interval]))",
               "{{verb}} {{outcome}}"), "per second"),
        lines("How many replicas of the scheduler answer", "Exactly one should: the one whose kube-scheduler holds the Lease.",
              [("sum by (cluster, namespace, scheduler) (vgpu_scheduler_answers)", "{{scheduler}} answer"),
               ("sum by (cluster, namespace, scheduler) (vgpu_scheduler_synced)", "{{scheduler}} have read the cluster")]),
        lines("Reservations", "Reservations that stand, those no binding has confirmed yet, and how many "
              "ran out in the last hour, which should stay 0.",
              [("max(vgpu_scheduler_reservations)", "stand"), ("max(vgpu_scheduler_reservations_unconfirmed)", "not bound yet"),
               ("sum(increase(vgpu_scheduler_reservations_expired_total[1h]))", "ran out in an hour"),
               ("sum(increase(vgpu_scheduler_reservations_given_back_total[1h]))", "given back in an hour")]),
        lines("Events", "Events on pods and nodes: sent, merged, limited, or lost (dropped, refused).",
              [("sum by (result) (rate(vgpu_scheduler_events_total[$__rate_interval]))", "{{result}}"),
               ("sum(rate(vgpu_scheduler_wakeups_total[$__rate_interval]))", "nodes annotated to wake pods")], "per second"),
        lines("How many nodes are registered, and what cannot be read",
              "Nodes with devices, and nodes and pods whose annotations cannot be read; an event on each says which.",
              [("max(vgpu_scheduler_nodes)", "nodes"), ("max(vgpu_scheduler_broken_nodes)", "broken nodes"),
               ("max(vgpu_scheduler_broken_pods)", "broken pods")]),
        row("Admission"),
        lines("What the webhook does with pods", "Reviews a second by outcome. denied: refused with a reason; broken: could not be read.",
              ("sum by (operation, outcome) (rate(vgpu_webhook_reviews_total[$__rate_interval]))",
               "{{operation}} {{outcome}}"), "per second"),
        lines("How long a review takes", "Time from a review's arrival to its answer; the API server waits for it.",
              quantiles("vgpu_webhook_review_duration_seconds", "job", legend="review"), "seconds"),
        lines("How long the webhook's certificates last", "Time left of the certificate that each replica shows, and of the CA. "
              "They are renewed when a third is left.",
              [("vgpu_webhook_certificate_expiry_timestamp_seconds - time()", "certificate of {{instance}}"),
               ("max(vgpu_webhook_ca_expiry_timestamp_seconds > 0) - time()", "CA")], "seconds"),
        lines("Failures of the webhook in the cluster", "Looks at the cluster that failed and were repeated, and the writes that succeeded.",
              [("sum(increase(vgpu_webhook_cluster_failures_total[10m]))", "failures in 10 minutes"),
               ("sum(increase(vgpu_webhook_certificates_shown_total[10m]))", "certificates in 10 minutes"),
               ("sum(vgpu_webhook_holder)", "replicas that write")]),
        row("Problems"),
        table("Which alerts fire", "Every alert of vgpu that is firing or pending.",
              "sum by (alertname, severity, alertstate, node, namespace, pod, container, device_uuid) "
              "(ALERTS{alertname=~\"Vgpu.+\"})",
              [("alertname", "Alert", None), ("severity", "Severity", None), ("alertstate", "State", None),
               ("node", "Node", None), ("namespace", "Namespace", None), ("pod", "Pod", None), ("container", "Container", None)],
              width=16),
        lines("Which faults the GPUs report", "XIDs of the driver in an hour, by kind: application (a program's own doing), "
              "hardware (the GPU), transient (clears by itself).",
              (f"sum by (kind, xid) (increase(vgpu_gpu_xid_total{{{NODE}}}[1h]))", "XID {{xid}} ({{kind}})")),
        lines("How many processes use a GPU past the library", "Processes that hold a GPU and are not limited, by node.",
              (f"sum by (node, reason) (vgpu_node_unmanaged_processes{{{NODE}}})", "{{node}} {{reason}}")),
    ]


def node():
    gpu = "GPU {{device_index}} of {{node}}"
    return [
        row("The GPUs of the node"),
        lines("How much memory of each GPU is used", "Memory in use as the driver reports it, by all processes.",
              (f"hami_host_gpu_memory_used_bytes{{{NODE}}}", gpu), "bytes"),
        lines("How busy each GPU is", "Busy part of the last sample period, 0-100 %, as the driver reports it.",
              (f"hami_host_gpu_utilization_ratio{{{NODE}}}", gpu), "percent", top=100),
        lines("How busy each GPU's memory is", "Part of the last sample period in which memory was read or written, 0-100 %.",
              (f"hami_host_gpu_memory_controller_utilization_ratio * on (device_uuid) group_left (node) "
               f"max by (node, device_uuid) (hami_host_gpu_memory_used_bytes{{{NODE}}} * 0 + 1)", gpu), "percent", top=100),
        lines("How much memory of each GPU is available, promised and used",
              "The memory of a GPU that can be promised, the promised part, and the part in use as the driver reports it.",
              [(once(LIMIT, DEVICE), gpu + ": can be promised"), (once(PROMISED, DEVICE), gpu + ": promised"),
               (f"hami_host_gpu_memory_used_bytes{{{NODE}}}", gpu + ": used")], "bytes", width=12),
        lines("What part of each GPU is promised", "Memory and compute given to pods, as a part of what can be promised.",
              [(f"{once(PROMISED, DEVICE)} / ({once(LIMIT, DEVICE)} > 0)", gpu + ": memory"),
               (f"{once(CORES_PROMISED, DEVICE)} / ({core_limit(DEVICE)} > 0)", gpu + ": compute")],
              "share", width=12, top=1),
        lines("How many containers share each GPU", "Slots in use.",
              (once("hami_gpu_shared_count", DEVICE), gpu), width=12),
        table("Which MIG instances are promised", "The MIG instances and their profiles; identifiers are empty until the agent has created the instance.",
              f"max by (node, device_index, device_uuid, profile, mig_uuid, gpu_instance_id, placement_start, placement_size) "
              f"(hami_node_gpu_mig_instance_info{{{NODE}}})",
              [("node", "Node", None), ("device_index", "GPU", None), ("profile", "Profile", None),
               ("mig_uuid", "Instance", None), ("gpu_instance_id", "GPU instance", None),
               ("placement_start", "From slice", None), ("placement_size", "Slices", None)], width=12),
        row("The hardware"),
        lines("How much power each GPU draws", "Power that the GPU draws. A GPU at its limit lowers its clocks.",
              [(f"vgpu_gpu_power_watts{{{NODE}}}", gpu), (f"vgpu_gpu_power_limit_watts{{{NODE}}}", gpu + ": limit")], "watts"),
        lines("How warm each GPU is", "Temperature of the GPU, and of its memory where the driver says it.",
              [(f"vgpu_gpu_temperature_celsius{{{NODE}}}", gpu),
               (f"vgpu_gpu_memory_temperature_celsius{{{NODE}}}", gpu + ": memory")], "celsius"),
        lines("How fast each GPU is clocked", "Clock of the multiprocessors. An idle GPU lowers it by itself.",
              (f"vgpu_gpu_sm_clock_hertz{{{NODE}}}", gpu), "hertz"),
        lines("How long clocks are lowered",
              "Part of the time in which the GPU's clocks were lowered, by cause: power, thermal, board_limit and others.",
              (f"rate(vgpu_gpu_throttled_seconds_total{{{NODE}}}[$__rate_interval])", gpu + ": {{cause}}"), "share"),
        lines("How much is moved over PCIe", "Bytes a second. Older GPUs measure it for 20 ms at a time.",
              [(f"rate(vgpu_gpu_pcie_sent_bytes_total{{{NODE}}}[$__rate_interval]) or vgpu_gpu_pcie_sent_bytes_per_second{{{NODE}}}",
                gpu + ": sent"),
               (f"rate(vgpu_gpu_pcie_received_bytes_total{{{NODE}}}[$__rate_interval]) or vgpu_gpu_pcie_received_bytes_per_second{{{NODE}}}",
                gpu + ": received")], "bytes per second"),
        lines("How much is moved over NVLink", "Bytes a second that the GPU sent and received over all its NVLinks.",
              (f"rate(vgpu_gpu_nvlink_bytes_total{{{NODE}}}[$__rate_interval])", gpu), "bytes per second"),
        lines("How many memory errors there are", "Errors that ECC found in an hour, by kind. Uncorrected errors end the programs that they hit.",
              (f"increase(vgpu_gpu_ecc_errors_total{{{NODE}}}[1h])", gpu + ": {{kind}}"), width=12),
        lines("How many memory rows were replaced, and packets repeated",
              "Rows of the GPU's memory that were replaced, and PCIe packets that were sent again, ever.",
              [(f"vgpu_gpu_remapped_rows_total{{{NODE}}}", gpu + ": rows, {{kind}}"),
               (f"vgpu_gpu_pcie_replays_total{{{NODE}}}", gpu + ": packets")], width=12),
        row("The containers of the node"),
        lines("How much memory each container holds", "Memory that is charged to each container, stacked.",
              (f"hami_vgpu_memory_used_bytes{{{NODE}}}", OF_CONTAINER), "bytes", width=12, stacked=True),
        lines("How much of the GPUs' time each container uses", "Part of a GPU's time in the last second, stacked; 100 % is one whole GPU.",
              (f"vgpu_container_compute_used_ratio{{{NODE}}}", OF_CONTAINER), "share", width=12, stacked=True),
        lines("How long containers wait for their share", "Seconds that launches waited, each second, summed over threads.",
              (f"rate(vgpu_container_compute_throttled_seconds_total{{{NODE}}}[$__rate_interval])", OF_CONTAINER), "seconds"),
        lines("How much of the time containers wait", "Part of the last second in which launches of each container waited.",
              (f"vgpu_container_compute_waiting_ratio{{{NODE}}}", OF_CONTAINER), "share", top=1),
        lines("Containers that get less than their floor", "The floor minus the used share, where a container had to wait. Above 0 for long: the floor is missed.",
              (f"clamp_min(vgpu_container_compute_floor_ratio{{{NODE}}} - vgpu_container_compute_used_ratio{{{NODE}}}, 0)",
               OF_CONTAINER), "share"),
        lines("Memory that is not charged", "Memory that the driver reports for a container's processes and that is not charged to the container.",
              (f"vgpu_container_unaccounted_bytes{{{NODE}}}", OF_CONTAINER), "bytes"),
        row("Health"),
        table("Which GPUs are healthy", "An unhealthy GPU gets no new pods until a probe finds it healthy.",
              f"min by (node, device_index, device_uuid, device_type) (vgpu_gpu_healthy{{{NODE}}})", HEALTH_COLUMNS, width=12),
        table("Why a GPU is unhealthy", "The fault that the agent found, and whether a later probe may find the GPU healthy again.",
              f"max by (node, device_uuid, reason, recovers) (vgpu_gpu_sick_info{{{NODE}}})",
              [("node", "Node", None), ("device_uuid", "UUID", None), ("reason", "Why", None),
               ("recovers", "May recover", None)], width=12),
        lines("Which faults each GPU reports", "XIDs of the driver in an hour.",
              (f"sum by (node, device_uuid, xid, kind) (increase(vgpu_gpu_xid_total{{{NODE}}}[1h]))",
               "XID {{xid}} ({{kind}}) on {{device_uuid}}"), width=12),
        lines("Processes on the GPUs", "Processes that hold a GPU: managed, stale (an older library), with foreign limits, unmanaged, exempt.",
              (f"sum by (node, verdict) (vgpu_node_gpu_processes{{{NODE}}})", "{{node}}: {{verdict}}"), width=12),
        lines("How many processes are not managed", "Processes that hold a GPU and are not limited, by reason.",
              (f"sum by (node, reason) (vgpu_node_unmanaged_processes{{{NODE}}})", "{{node}}: {{reason}}")),
        lines("Whether the driver answers", "1: the driver answered; and how many GPUs did not though the driver did.",
              [(f"vgpu_monitor_nvml_up{{{NODE}}}", "{{node}}: driver answers"),
               (f"vgpu_monitor_gpu_faults{{{NODE}}}", "{{node}}: GPUs that do not")]),
        lines("What the agent cannot show", "Directories that look like containers and cannot be read, and what was left out in 10 minutes, by reason.",
              [(f"vgpu_monitor_broken_regions{{{NODE}}}", "{{node}}: broken"),
               (f"sum by (node, reason) (increase(vgpu_monitor_skipped_total{{{NODE}}}[10m]))", "{{node}}: left out, {{reason}}")]),
        row("The agent"),
        lines("Whether the device plugin is registered", "1 where the kubelet knows the plugin for a resource.",
              (f"min by (node, resource) (vgpu_plugin_registered{{{NODE}}})", "{{node}} {{resource}}")),
        lines("How many slots are reported to the kubelet", "Slots of healthy and of unhealthy GPUs.",
              (f"sum by (node, resource, state) (vgpu_plugin_slots{{{NODE}}})", "{{node}} {{resource}} {{state}}")),
        lines("How long the device plugin takes", "Calls of the kubelet. Dots are exemplars: with tracing on they link to the trace of one pod.",
              quantiles("vgpu_plugin_calls_duration_seconds", "call", NODE), "seconds"),
        lines("Whether compute time is arbitrated", "Containers that the arbiter serves, those it could not, and the age of the oldest heartbeat.",
              [(f"vgpu_monitor_arbiter_served{{{NODE}}}", "{{node}}: served"),
               (f"vgpu_monitor_arbiter_failed{{{NODE}}}", "{{node}}: failed"),
               (f"vgpu_monitor_arbiter_leads{{{NODE}}}", "{{node}}: leads"),
               (f"max by (node) (vgpu_container_arbiter_heartbeat_age_seconds{{{NODE}}})", "{{node}}: oldest heartbeat (s)")]),
        lines("How often the arbiter decides", "Ticks a second: 10 to 20 while it lives.",
              (f"rate(vgpu_monitor_arbiter_ticks_total{{{NODE}}}[$__rate_interval])", "{{node}}"), "per second"),
        lines("How long a scrape takes", "The time for reading containers and GPUs.",
              (f"vgpu_monitor_scrape_duration_seconds{{{NODE}}}", "{{node}}"), "seconds"),
    ]


def workload():
    one = f"{{{PODS}}}"

    def per(series, window="$__rate_interval"):
        return f"rate({series}{one}[{window}])"

    return [
        row("Memory"),
        lines("How much memory each container uses, and may use", "Charged memory and the limit. At the limit the next allocation is refused.",
              [(f"hami_vgpu_memory_used_bytes{one}", OF_CONTAINER + " uses"),
               (f"hami_vgpu_memory_limit_bytes{one}", OF_CONTAINER + " may use")], "bytes", width=12),
        lines("How full each container's memory is", "Charged memory as a part of the limit; more than 100 % only after the limit was lowered.",
              (f"hami_vgpu_memory_used_bytes{one} / (hami_vgpu_memory_limit_bytes{one} > 0)", OF_CONTAINER), "share", width=12, top=1),
        lines("What the memory is used for", "Buffers, contexts and modules, stacked.",
              [(f"hami_vgpu_memory_buffer_bytes{one}", OF_CONTAINER + " buffers"),
               (f"hami_vgpu_memory_context_bytes{one}", OF_CONTAINER + " contexts"),
               (f"hami_vgpu_memory_module_bytes{one}", OF_CONTAINER + " modules")], "bytes", stacked=True),
        lines("How often memory was refused", "Refusals in 10 minutes that left a record: `vgpu oom` shows which processes held the memory.",
              [(f"increase(vgpu_container_oom_total{one}[10m])", WHOLE_CONTAINER + " out of memory"),
               (f"increase(vgpu_container_refused_calls_total{one}[10m])", WHOLE_CONTAINER + " refused calls")]),
        lines("Containers that must shrink, and memory that is not charged",
              "1 where the limit was lowered below what is used; and memory that the driver holds beyond the charges.",
              [(f"vgpu_container_pending_shrink{one}", OF_CONTAINER + " has to shrink")], "yes or no"),
        lines("How much memory is oversubscribed", "Oversubscribed memory, which the driver pages; only where oversubscription is on.",
              (f"vgpu_container_oversubscribed_bytes{one}", OF_CONTAINER), "bytes"),
        lines("Memory that is not charged", "Memory that the driver reports for the container's processes, less the memory charged to it.",
              (f"vgpu_container_unaccounted_bytes{one}", OF_CONTAINER), "bytes"),
        row("Compute"),
        lines("What share of a GPU each container asked for, is granted and uses",
              "The cap (asked), the promised share (floor), the current share (granted), and the share of the last second (used).",
              [(f"vgpu_container_compute_used_ratio{one}", OF_CONTAINER + " uses"),
               (f"vgpu_container_compute_granted_ratio{one}", OF_CONTAINER + " is granted"),
               (f"vgpu_container_compute_asked_ratio{one}", OF_CONTAINER + " may have"),
               (f"vgpu_container_compute_floor_ratio{one}", OF_CONTAINER + " always gets")], "share", width=12, top=1),
        lines("How busy each container keeps its GPUs", "Summed over its processes, 0-100 %, may exceed 100 %.",
              (f"hami_container_device_utilization_ratio{one}", OF_CONTAINER), "percent", width=12),
        lines("How long launches wait for the share", "Seconds of waiting each second, summed over threads.",
              (per("vgpu_container_compute_throttled_seconds_total"), OF_CONTAINER), "seconds"),
        lines("How many launches wait for the share", "Launches a second that had to wait.",
              (per("vgpu_container_compute_waits_total"), OF_CONTAINER), "per second"),
        lines("How much of the time launches wait", "Part of the last second in which launches of the container waited.",
              (f"vgpu_container_compute_waiting_ratio{one}", OF_CONTAINER), "share", top=1),
        lines("How long a launch that has to wait waits", "Half of the waits, and 99 of 100, are at most this long; estimated from seven lengths.",
              [(f"histogram_quantile({q}, sum by (le, {VDEVICE}) ({per('vgpu_container_compute_wait_duration_seconds_bucket')}))",
                f"{OF_CONTAINER} {name}") for q, name in ((0.5, "half"), (0.99, "99 of 100"))], "seconds"),
        lines("What launches wait for",
              "Seconds of waiting each second. cap: the container's own cap; grant: other containers work; "
              "in_flight: its own work on the GPU; unknown_cost: another launch whose cost is not known.",
              (f"sum by ({VDEVICE}, cause) ({per('vgpu_container_compute_waited_seconds_total')})",
               OF_CONTAINER + " {{cause}}"), "seconds", stacked=True),
        lines("How much GPU time each container is charged", "Seconds of a GPU each second: 100 % is a whole one.",
              (per("vgpu_container_compute_busy_seconds_total"), OF_CONTAINER), "share"),
        lines("How many kernels and graphs are launched", "Launches a second.",
              [(per("vgpu_container_kernel_launches_total"), OF_CONTAINER + " kernels"),
               (per("vgpu_container_graph_launches_total"), OF_CONTAINER + " graphs")], "per second"),
        lines("How much is copied", "Bytes copied or filled per second.",
              (per("vgpu_container_copied_bytes_total"), OF_CONTAINER), "bytes per second"),
        lines("How many copies and host functions are queued", "Copies, fills and host functions put into streams, a second.",
              [(per("vgpu_container_copies_total"), OF_CONTAINER + " copies"),
               (per("vgpu_container_host_functions_total"), OF_CONTAINER + " host functions")], "per second"),
        lines("How long ago the last launch was", "Since the last kernel or graph. A container that holds memory and has not launched for hours is idle.",
              (f"hami_container_last_kernel_elapsed_seconds{one}", OF_CONTAINER), "seconds"),
        lines("Which containers wait for a turn", "1 where a container that oversubscribes waits for its turn on the GPU.",
              (f"vgpu_container_compute_waits_for_turn{one}", OF_CONTAINER), "yes or no"),
        row("Behaviour"),
        lines("Which driver calls go through the library", "Calls a second by group.",
              (f"sum by (namespace, pod, container, group) (rate(vgpu_container_hook_calls_total{one}[$__rate_interval]))",
               WHOLE_CONTAINER + " {{group}}"), "per second", width=12),
        lines("How many processes use a GPU", "Running processes that have used a GPU.",
              (f"vgpu_container_processes{one}", WHOLE_CONTAINER)),
        lines("How often a wait for another process timed out", "Bounded waits (100 ms) for another process of the container, in 10 minutes; should stay 0.",
              (f"increase(vgpu_container_waits_expired_total{one}[10m])", WHOLE_CONTAINER), width=4),
        table("What each container was given", "Priority and policy: force holds always, default while others work, floor is a guarantee, disable is no limit.",
              [f"max by (node, namespace, pod, container, policy) (vgpu_container_compute_policy_info{one})",
               f"max by (node, namespace, pod, container) (vgpu_container_priority{one})"],
              [("namespace", "Namespace", None), ("pod", "Pod", None), ("container", "Container", None), ("node", "Node", None),
               ("policy", "Policy", None), ("Value #B", "Priority (0 is the highest)", "count")], width=12),
        table("What the scheduler gave each pod", "Memory and compute in the pod's annotations.",
              [f"max by (namespace, pod, node, container_index, device_uuid) (hami_vgpu_memory_allocated_bytes{one})",
               f"max by (namespace, pod, node, container_index, device_uuid) (hami_vgpu_core_allocated_ratio{one})"],
              [("namespace", "Namespace", None), ("pod", "Pod", None), ("container_index", "Container", None), ("node", "Node", None),
               ("device_uuid", "GPU", None), ("Value #A", "Memory", "bytes"), ("Value #B", "Cores", "count")], width=12,
              sort="Memory"),
        table("Which ResourceClaim gave each container its share",
              "The claim of each container on a node that gives GPUs by claims, with its limit, what is charged, and the part "
              "of the device's time in the last second. Pods that share a claim are one container here, with the first pod's name.",
              [by_claim(f"max by ({VDEVICE}) ({series}{one})", PODS)
               for series in ("hami_vgpu_memory_limit_bytes", "hami_vgpu_memory_used_bytes", "vgpu_container_compute_used_ratio")],
              [("namespace", "Namespace", None), ("claim", "Claim", None), ("pod", "Pod", None), ("container", "Container", None),
               ("vdevice_index", "GPU", None), ("node", "Node", None), ("Value #A", "Limit", "bytes"),
               ("Value #B", "Charged", "bytes"), ("Value #C", "Time used", "share")], sort="Charged"),
        table("Which containers use the most memory", "The ten with the most charged memory.",
              f"topk(10, hami_vgpu_memory_used_bytes{one})",
              [("namespace", "Namespace", None), ("pod", "Pod", None), ("container", "Container", None), ("node", "Node", None),
               ("device_uuid", "GPU", None), ("Value", "Memory", "bytes")], width=12, sort="Memory"),
        table("Which containers run on a MIG instance", "The MIG instance behind each container's device.",
              f"max by (namespace, pod, container, node, profile, mig_uuid) (hami_mig_device_info{one})",
              [("namespace", "Namespace", None), ("pod", "Pod", None), ("container", "Container", None), ("node", "Node", None),
               ("profile", "Profile", None), ("mig_uuid", "Instance", None)], width=12),
    ]


def assigner_and_hcs():
    return [
        row("The device assigner"),
        lines("How many GPUs are in which state", "Devices that can be asked for by label. Proposed: reserved for a minute, until a pod or a finalize request confirms it.",
              ("max by (state) (vgpu_assigner_devices)", "{{state}}"), width=12, stacked=True),
        lines("Results for pods that ask by label", "Admission reviews a second: GPUs reserved, nothing asked for, refused, or failed.",
              ("sum by (outcome) (rate(vgpu_assigner_reviews_total[$__rate_interval]))", "{{outcome}}"), "per second", width=12),
        lines("Why pods are refused", "Refusals in 10 minutes, by reason.",
              ("sum by (reason) (increase(vgpu_assigner_refusals_total[10m]))", "{{reason}}")),
        lines("Released reservations", "Reservations released in 10 minutes. Proposal: not confirmed in time. Active: its pod is gone.",
              ("sum by (state) (increase(vgpu_assigner_released_total[10m]))", "{{state}}")),
        lines("How finalize requests are answered", "Requests a second, by answer.",
              ("sum by (outcome) (rate(vgpu_assigner_finalize_requests_total[$__rate_interval]))", "{{outcome}}"), "per second"),
        row("hcs.io"),
        lines("How old each ComputeNode is", "Time since its agent last wrote it. The agent does so every 40 s; after 120 s the scheduler treats the agent as not connected.",
              (f"time() - max by (node) (vgpu_plugin_hcs_reported_timestamp_seconds{{{NODE}}})", "{{node}}"), "seconds", width=12),
        lines("How often agents write", "Writes of ComputeNodes and ComputeTopologies a second.",
              (f"sum by (node) (rate(vgpu_plugin_hcs_writes_total{{{NODE}}}[$__rate_interval]))", "{{node}}"), "per second", width=6),
        lines("How often their writes fail", "Writes that failed in 10 minutes; the agent's log says why.",
              (f"sum by (node) (increase(vgpu_plugin_hcs_failures_total{{{NODE}}}[10m]))", "{{node}}"), width=6),
        lines("How full each ComputeQuota is", "The part of each amount that the pods of the quota hold. At 1 the next pod waits. The 20 fullest.",
              ("topk(20, max by (namespace, quota, resource) (vgpu_compute_quota_used) / max by (namespace, quota, resource) (vgpu_compute_quota_hard > 0))",
               "{{namespace}}/{{quota}} {{resource}}"), "share", width=12, top=1),
        lines("How many ComputeTasks are in which phase", "Tasks of all namespaces. A task that is over stays until it is deleted.",
              ("max by (phase) (vgpu_compute_tasks)", "{{phase}}"), width=12, stacked=True),
    ]


def accounts():
    chosen = 'namespace=~"$namespace",team=~"$team"'
    of = "namespace, team, workload_type, workload"
    name = "{{namespace}} {{team}}"

    def over(series, by, window="$__range"):
        return f"sum by ({by}) (increase({series}_total{{{chosen}}}[{window}]))"

    asked, granted, used = (f"vgpu_workload_gpu_{what}_seconds" for what in ("asked", "granted", "used"))
    given, held = (f"vgpu_workload_memory_{what}_gibibyte_seconds" for what in ("given", "used"))
    rate = "$__rate_interval"

    def now(series, by="namespace, team"):
        return f"sum by ({by}) (rate({series}_total{{{chosen}}}[{rate}]))"

    return [
        row("All of it, over the chosen time"),
        stat("GPU hours asked for", "What the limits of the pods allowed: the cap of each GPU, or the whole GPU without one.",
             f"sum({over(asked, 'namespace')}) / 3600", "GPU hours"),
        stat("GPU hours granted", "What the pods kept from other pods: of each GPU the larger part of compute and memory.",
             f"sum({over(granted, 'namespace')}) / 3600", "GPU hours"),
        stat("GPU hours used", "GPU time that the pods' programs used.", f"sum({over(used, 'namespace')}) / 3600", "GPU hours"),
        stat("What part of the granted time was used", "Low: the GPUs are full by their books and idle in fact.",
             f"sum({over(used, 'namespace')}) / sum({over(granted, 'namespace')})", "share"),
        stat("GiB hours given", "Memory that the pods were given, over time.", f"sum({over(given, 'namespace')}) / 3600", "GPU hours"),
        stat("GiB hours used", "Memory that the pods' programs held, over time.", f"sum({over(held, 'namespace')}) / 3600", "GPU hours"),
        row("GPUs that pods hold and do not use"),
        table("Which workloads leave the most unused",
              "Workloads by the GPU hours that they were granted and did not use in the chosen time. Ended ones are in it.",
              [f"topk(50, ({over(granted, of)} - ({over(used, of)} or {over(granted, of)} * 0)) / 3600)",
               f"{over(asked, of)} / 3600", f"{over(granted, of)} / 3600", f"{over(used, of)} / 3600",
               f"{over(given, of)} / 3600", f"{over(held, of)} / 3600"],
              [("namespace", "Namespace", None), ("team", "Team", None), ("workload_type", "Kind", None),
               ("workload", "Workload", None), ("Value #A", "Unused GPU hours", "GPU hours"), ("Value #B", "Asked", "GPU hours"),
               ("Value #C", "Granted", "GPU hours"), ("Value #D", "Used", "GPU hours"), ("Value #E", "GiB hours given", "GPU hours"),
               ("Value #F", "GiB hours used", "GPU hours")], sort="Unused GPU hours"),
        table("Teams and namespaces", "The same for each team in each namespace.",
              [f"({over(granted, 'namespace, team')} - ({over(used, 'namespace, team')} or {over(granted, 'namespace, team')} * 0)) / 3600",
               f"{over(asked, 'namespace, team')} / 3600", f"{over(granted, 'namespace, team')} / 3600",
               f"{over(used, 'namespace, team')} / 3600", f"{over(given, 'namespace, team')} / 3600",
               f"{over(held, 'namespace, team')} / 3600"],
              [("namespace", "Namespace", None), ("team", "Team", None), ("Value #A", "Unused GPU hours", "GPU hours"),
               ("Value #B", "Asked", "GPU hours"), ("Value #C", "Granted", "GPU hours"), ("Value #D", "Used", "GPU hours"),
               ("Value #E", "GiB hours given", "GPU hours"), ("Value #F", "GiB hours used", "GPU hours")], sort="Unused GPU hours"),
        row("Over time"),
        lines("How many GPUs each team was granted", "GPUs that the team's pods kept from others.", (now(granted), name), stacked=True),
        lines("How many GPUs each team used", "GPU time a second: 1 is one GPU that is always busy.", (now(used), name), stacked=True),
        lines("What part of its GPUs each team used", "Used GPU time as a part of the granted time.",
              (f"{now(used)} / ({now(granted)} > 0)", name), "share", top=1),
        lines("How much memory each team was given", "GiB that the team's pods were given.", (now(given), name), stacked=True),
        lines("How much memory each team used", "GiB that the team's programs held.", (now(held), name), stacked=True),
        lines("What part of its memory each team used", "Held memory as a part of the given memory.",
              (f"{now(held)} / ({now(given)} > 0)", name), "share", top=1),
    ]


# Both the scheduler's and the agent's, so that a machine with one of them alone has a choice, too.
BOTH = '{__name__=~"hami_vgpu_memory_allocated_bytes|hami_vgpu_memory_used_bytes"'
VARIABLES = {
    "node": ("Node", 'label_values({__name__=~"hami_gpu_memory_limit_bytes|hami_host_gpu_memory_used_bytes"}, node)'),
    "namespace": ("Namespace", f"label_values({BOTH}}}, namespace)"),
    "team": ("Team", 'label_values({__name__=~"vgpu_workload_gpu_granted_seconds_total|vgpu_workload_gpu_used_seconds_total"}, team)'),
    "pod": ("Pod", f'label_values({BOTH},namespace=~"$namespace"}}, pod)'),
}
DASHBOARDS = {
    "cluster": ("vGPU: the cluster", "How the cluster's GPUs are promised and used, which pods hold them, and which problems there are.",
                cluster, ["node", "namespace"]),
    "asked-given-used": ("vGPU: asked, given and used",
                         "What teams and workloads asked for, were given and used over time, and which of them hold GPUs that they do not use.",
                         accounts, ["namespace", "team"]),
    "node": ("vGPU: a node", "The GPUs of a node, the containers on them, their health, and the node's agent.", node, ["node"]),
    "assigner-and-hcs": ("vGPU: the assigner and hcs.io", "The device assigner, and the ComputeNodes of hcs.io.", assigner_and_hcs, ["node"]),
    "workload": ("vGPU: a workload", "The shares that containers were given, their use of them, and the reasons for their delays.",
                 workload, ["namespace", "pod"]),
}


def variable(name):
    label, ask = VARIABLES[name]
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": ask,
        "query": {"query": ask, "refId": f"variable-{name}"}, "refresh": 2, "sort": 1, "multi": True,
        "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}, "options": [],
        "regex": "", "hide": 0, "skipUrlSync": False,
    }


def target(number, one):
    made = {"datasource": SOURCE, "editorMode": "code", "expr": one["expr"], "refId": chr(ord("A") + number),
            "legendFormat": one["legend"] or "__auto", "range": not one["table"], "instant": one["table"]}
    if one["table"]:
        made["format"] = "table"
    if one["exemplar"]:
        made["exemplar"] = True
    return made


def drawn(number, one, x, y):
    more = one["more"]
    defaults = {"unit": UNITS[one["unit"]], "color": {"mode": "palette-classic"}, "mappings": []}
    steps = [{"color": "green", "value": None}] + [{"color": c, "value": v} for v, c in more.get("steps", [])]
    made = {
        "id": number, "type": one["kind"], "title": one["title"], "description": one["why"], "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": one["width"], "h": one["height"]},
        "targets": [target(i, q) for i, q in enumerate(one["queries"])],
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": {},
    }
    if one["kind"] == "stat":
        defaults["color"] = {"mode": "thresholds"}
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        made["options"] = {"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "textMode": "auto",
                           "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    if one["kind"] == "timeseries":
        stacked = more.get("stacked", False)
        defaults["custom"] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stacked else 5, "showPoints": "never",
                              "spanNulls": False, "stacking": {"mode": "normal" if stacked else "none", "group": "A"}}
        defaults["min"] = 0
        if "top" in more:
            # Soft: what is above is shown, too.
            defaults["custom"]["axisSoftMax"] = more["top"]
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
                           "tooltip": {"mode": "multi", "sort": "desc"}}
    if one["kind"] == "table":
        columns = more["columns"]
        many = len(one["queries"]) > 1
        made["transformations"] = ([{"id": "merge", "options": {}}] if many else []) + [{
            "id": "organize",
            "options": {"indexByName": {name: i for i, (name, _, _) in enumerate(columns)},
                        "renameByName": {name: heading for name, heading, _ in columns},
                        "includeByName": {name: True for name, _, _ in columns}, "excludeByName": {"Time": True}},
        }]
        made["fieldConfig"]["overrides"] = [
            {"matcher": {"id": "byName", "options": heading}, "properties": [{"id": "unit", "value": UNITS[unit]}]}
            for _, heading, unit in columns if unit
        ]
        made["options"] = {"showHeader": True, "cellHeight": "sm"}
        if "sort" in more:
            made["options"]["sortBy"] = [{"displayName": more["sort"], "desc": True}]
    return made


def dashboard(name):
    title, why, panels, variables = DASHBOARDS[name]
    made, x, y, tallest = [], 0, 0, 0
    for number, one in enumerate(panels(), 1):
        if one["kind"] == "row":
            y, x, tallest = y + tallest, 0, 0
            made.append({"id": number, "type": "row", "title": one["title"], "collapsed": False, "panels": [],
                         "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
            y += 1
            continue
        if x + one["width"] > 24:
            y, x, tallest = y + tallest, 0, 0
        made.append(drawn(number, one, x, y))
        x, tallest = x + one["width"], max(tallest, one["height"])
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
              "current": {}, "options": [], "regex": "", "hide": 0, "includeAll": False, "multi": False, "skipUrlSync": False}
    return {
        "uid": f"vgpu-{name}", "title": title, "description": why, "tags": ["vgpu", "gpu"], "schemaVersion": 39,
        "version": 1, "editable": True, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-3h", "to": "now"},
        "timezone": "", "timepicker": {}, "weekStart": "", "fiscalYearStartMonth": 0, "liveNow": False,
        "annotations": {"list": []}, "preload": False,
        "links": [{"type": "dashboards", "tags": ["vgpu"], "title": "vGPU", "asDropdown": True, "includeVars": True,
                   "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "", "url": ""}],
        "templating": {"list": [source] + [variable(name) for name in variables]},
        "panels": made,
    }


def main():
    checking = sys.argv[1:] == ["--check"]
    stale = []
    for name in DASHBOARDS:
        path = os.path.normpath(os.path.join(FOLDER, f"{name}.json"))
        text = json.dumps(dashboard(name), indent=1, ensure_ascii=False) + "\n"
        if not checking:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        try:
            with open(path, encoding="utf-8") as file:
                if file.read() != text:
                    stale.append(path)
        except FileNotFoundError:
            stale.append(path)
    if stale:
        sys.exit(f"not as scripts/lib/dashboards.py writes them (run it): {', '.join(stale)}")


if __name__ == "__main__":
    main()
