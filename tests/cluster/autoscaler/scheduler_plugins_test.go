package autoscaler

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// Cluster Autoscaler runs kube-scheduler's PreFilter and Filter plugins, with their defaults, on a snapshot of the
// cluster. Its module cannot be fetched for this test (docs/decisions/0017). These are the plugins, and the three
// questions that it asks them.
type simulation struct {
	nodes []*v1.Node
	pods  []*v1.Pod
}

// The nodes that take the pod.
func (it simulation) takers(t *testing.T, pod *v1.Pod) []string {
	t.Helper()
	ctx := context.Background()
	metrics.Register()
	config, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset()
	snapshot := cache.NewSnapshot(it.pods, it.nodes)
	handle, err := runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), &config.Profiles[0],
		runtime.WithClientSet(client),
		runtime.WithInformerFactory(informers.NewSharedInformerFactory(client, 0)),
		runtime.WithSnapshotSharedLister(snapshot))
	if err != nil {
		t.Fatal(err)
	}
	state := framework.NewCycleState()
	_, status, _ := handle.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		t.Fatalf("PreFilter: %v", status)
	}
	var takers []string
	for _, node := range it.nodes {
		info, err := snapshot.Get(node.Name)
		if err != nil {
			t.Fatal(err)
		}
		if handle.RunFilterPlugins(ctx, state, pod, info).IsSuccess() {
			takers = append(takers, node.Name)
		}
	}
	return takers
}

// Whether a pending pod makes it add a node like this: no node takes the pod, and an empty one of its kind does.
func (it simulation) addsNode(t *testing.T, pending *v1.Pod, template *v1.Node) bool {
	t.Helper()
	fresh := template.DeepCopy()
	fresh.Name = "template"
	fresh.Labels[v1.LabelHostname] = fresh.Name
	onFresh := simulation{nodes: []*v1.Node{fresh}}
	return len(it.takers(t, pending)) == 0 && len(onFresh.takers(t, pending)) == 1
}

// Whether a node can be drained: the other nodes take its pods, one after the other.
func (it simulation) canDrain(t *testing.T, node string) bool {
	t.Helper()
	var others simulation
	for _, each := range it.nodes {
		if each.Name != node {
			others.nodes = append(others.nodes, each)
		}
	}
	var moving []*v1.Pod
	for _, each := range it.pods {
		if each.Spec.NodeName == node {
			moving = append(moving, each)
		} else {
			others.pods = append(others.pods, each)
		}
	}
	for _, each := range moving {
		moved := each.DeepCopy()
		moved.Spec.NodeName = ""
		takers := others.takers(t, moved)
		if len(takers) == 0 {
			return false
		}
		moved.Spec.NodeName = takers[0]
		others.pods = append(others.pods, moved)
	}
	return true
}

func TestPluginsAddANodeWhenMemoryIsFullAndSlotsAreFree(t *testing.T) {
	of := read(t)
	for _, each := range []struct {
		name     string
		reported bool
		kind     string
		count    int
		pending  string
		adds     bool
	}{
		{"without a report no node is ever added", false, "half", 4, "half", false},
		{"memory is full", true, "half", 4, "half", true},
		{"there is room", true, "half", 3, "half", false},
		{"percentages are full", true, "half-by-percentage", 4, "half-by-percentage", true},
		{"whole GPUs are full", true, "whole", 2, "whole", true},
		{"compute is full", true, "half-of-compute", 4, "half-of-compute", true},
		{"an amount without effect counts for nothing", true, "amounts-without-effect", 1, "half-by-percentage", false},
		{"a priority alone never fills a node", true, "with-priority", 4, "with-priority", false},
		// What stock simulations cannot see (docs/install.md).
		{"pods by memory do not see whole GPUs", true, "whole", 2, "half", false},
		{"of several GPUs one is counted", true, "two-whole", 1, "whole", false},
	} {
		full := node("a", of.Node, each.reported)
		cluster := simulation{nodes: []*v1.Node{full}, pods: running(t, of, each.kind, "a", each.count)}
		adds := cluster.addsNode(t, pod(t, of, each.pending, "pending", ""), full)
		if adds != each.adds {
			t.Errorf("%s: adds a node: %v", each.name, adds)
		}
	}
}

func TestPluginsKeepAFullNodeAndDrainAnEmptierOne(t *testing.T) {
	of := read(t)
	nodes := []*v1.Node{node("full", of.Node, true), node("other", of.Node, true)}
	for _, each := range []struct {
		name   string
		onFull int
		other  int
		drains bool
	}{
		{"two full nodes", 4, 4, false},
		{"a full node beside a half full one", 4, 2, false},
		{"two half full nodes", 2, 2, true},
	} {
		pods := append(running(t, of, "half", "full", each.onFull), running(t, of, "half", "other", each.other)...)
		drains := simulation{nodes, pods}.canDrain(t, "full")
		if drains != each.drains {
			t.Errorf("%s: the first can be drained: %v", each.name, drains)
		}
	}
}
