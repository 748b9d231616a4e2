// Package autoscaler runs the simulations by which cluster autoscalers decide on nodes as our agent reports them and
// pods as our webhook leaves them. Neither autoscaler asks our extender.
package autoscaler

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What is recorded in tests/vectors/autoscaler.json; a Rust test compares it with what the programs write.
type vectors struct {
	// What an agent reports of a node with 2 GPUs of 80 GiB and 10 slots each.
	Node v1.ResourceList `json:"node"`
	// Resources of a container after admission, by what it asks for.
	Pods map[string]struct {
		Admitted v1.ResourceList `json:"admitted"`
	} `json:"pods"`
}

func read(t *testing.T) vectors {
	t.Helper()
	text, err := os.ReadFile("../../vectors/autoscaler.json")
	if err != nil {
		t.Fatal(err)
	}
	var read vectors
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// A node with these GPUs; reported says whether its agent reports memory and compute (--report-capacity).
func node(name string, gpus v1.ResourceList, reported bool) *v1.Node {
	sizes := v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse("64"),
		v1.ResourceMemory: resource.MustParse("512Gi"),
		v1.ResourcePods:   resource.MustParse("110"),
	}
	for name, amount := range gpus {
		if reported || name == "nvidia.com/gpu" {
			sizes[name] = amount
		}
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			UID:  types.UID(name),
			Labels: map[string]string{
				"gpu":                  "on",
				v1.LabelHostname:       name,
				v1.LabelOSStable:       "linux",
				v1.LabelArchStable:     "amd64",
				v1.LabelTopologyZone:   "zone-1",
				"accelerator-of-cloud": "h100",
			},
		},
		Spec: v1.NodeSpec{ProviderID: "test:///" + name},
		Status: v1.NodeStatus{
			Capacity:    sizes,
			Allocatable: sizes,
			Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
}

// A pod of that kind: on the node, or pending where the node is "".
func pod(t *testing.T, of vectors, kind, name, node string) *v1.Pod {
	t.Helper()
	recorded, known := of.Pods[kind]
	limits := recorded.Admitted
	if !known {
		t.Fatalf("no pod %q is recorded", kind)
	}
	made := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: v1.PodSpec{
			NodeName:      node,
			SchedulerName: "hami-scheduler",
			NodeSelector:  map[string]string{"gpu": "on"},
			Containers: []v1.Container{{
				Name:      "main",
				Image:     "i",
				Resources: v1.ResourceRequirements{Limits: limits, Requests: limits},
			}},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}
	if node == "" {
		made.Status = v1.PodStatus{
			Phase: v1.PodPending,
			Conditions: []v1.PodCondition{{
				Type:               v1.PodScheduled,
				Status:             v1.ConditionFalse,
				Reason:             v1.PodReasonUnschedulable,
				Message:            "0/1 nodes are available: 1 CardInsufficientMemory",
				LastTransitionTime: metav1.NewTime(time.Now()),
			}},
		}
	}
	return made
}

// count pods of that kind on the node.
func running(t *testing.T, of vectors, kind, node string, count int) []*v1.Pod {
	t.Helper()
	var pods []*v1.Pod
	for index := range count {
		pods = append(pods, pod(t, of, kind, fmt.Sprintf("%s-%s-%d", kind, node, index), node))
	}
	return pods
}
