package autoscaler

import (
	"context"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpenter "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	labels "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/test/v1alpha1"
)

// A cloud with one type of machine.
type cloud struct {
	cloudprovider.CloudProvider
	machine v1.ResourceList
}

func (it cloud) Name() string { return "test" }
func (it cloud) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.TestNodeClass{}}
}
func (it cloud) GetInstanceTypes(context.Context, *karpenter.NodePool) ([]*cloudprovider.InstanceType, error) {
	place := map[string]string{
		karpenter.CapacityTypeLabelKey: "on-demand",
		v1.LabelTopologyZone:           "zone-1",
	}
	kind := map[string]string{
		v1.LabelInstanceTypeStable: "eight",
		v1.LabelArchStable:         "amd64",
		v1.LabelOSStable:           "linux",
		"gpu":                      "on",
	}
	for key, value := range place {
		kind[key] = value
	}
	return []*cloudprovider.InstanceType{{
		Name:         "eight",
		Requirements: labels.NewLabelRequirements(kind),
		Offerings: cloudprovider.Offerings{{
			Available:    true,
			Price:        1,
			Requirements: labels.NewLabelRequirements(place),
		}},
		Capacity: it.machine,
		Overhead: &cloudprovider.InstanceTypeOverhead{},
	}}, nil
}

// Karpenter's own scheduling of the pending pods, and of those on nodes that are to go.
func schedule(t *testing.T, machine v1.ResourceList, nodes []*v1.Node, pods []*v1.Pod, going ...string) scheduling.Results {
	t.Helper()
	scheme := clientscheme.Scheme
	group := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(group, &karpenter.NodePool{}, &karpenter.NodePoolList{}, &karpenter.NodeClaim{}, &karpenter.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, group)
	pool := &karpenter.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "gpus", UID: "gpus"}}
	pool.Spec.Template.Labels = map[string]string{"gpu": "on"}
	pool.Spec.Template.Spec.NodeClassRef = &karpenter.NodeClassReference{Group: v1alpha1.Group, Kind: "TestNodeClass", Name: "default"}
	for _, condition := range []string{karpenter.ConditionTypeValidationSucceeded, karpenter.ConditionTypeNodeClassReady} {
		pool.StatusConditions().SetTrue(condition)
	}
	objects := []client.Object{pool}
	for _, each := range nodes {
		objects = append(objects, each)
	}
	for _, each := range pods {
		objects = append(objects, each)
	}
	onNode := func(object client.Object) []string { return []string{object.(*v1.Pod).Spec.NodeName} }
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&v1.Pod{}, "spec.nodeName", onNode).Build()
	ctx := options.ToContext(context.Background(), &options.Options{CPURequests: 1000, PreferencePolicy: options.PreferencePolicyRespect,
		MinValuesPolicy: options.MinValuesPolicyStrict})
	provider := cloud{machine: machine}
	cluster := state.NewCluster(clock.RealClock{}, api, provider)
	for _, each := range nodes {
		if err := cluster.UpdateNode(ctx, each); err != nil {
			t.Fatal(err)
		}
	}
	for _, each := range pods {
		if err := cluster.UpdatePod(ctx, each); err != nil {
			t.Fatal(err)
		}
	}
	for _, each := range going {
		cluster.MarkForDeletion("test:///" + each)
	}
	recorder := events.NewRecorder(record.NewFakeRecorder(1000))
	results, err := provisioning.NewProvisioner(api, recorder, provider, cluster, clock.RealClock{}).Schedule(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func TestKarpenterAddsANodeWhenMemoryIsFullAndSlotsAreFree(t *testing.T) {
	of := read(t)
	machine := node("machine", of.Node, true).Status.Capacity
	for _, each := range []struct {
		name     string
		reported bool
		kind     string
		count    int
		pending  string
		adds     int
		onNode   int
	}{
		// A NodeOverlay says what the machine has, and the node does not: each pod gets a machine of its own.
		{"without a report a node with room is not used", false, "half", 1, "half", 1, 0},
		{"memory is full", true, "half", 4, "half", 1, 0},
		{"a node with room is used first", true, "half", 3, "half", 0, 1},
		{"whole GPUs are full", true, "whole", 2, "whole", 1, 0},
		{"pods by memory do not see whole GPUs", true, "whole", 2, "half", 0, 1},
	} {
		pods := append(running(t, of, each.kind, "a", each.count), pod(t, of, each.pending, "pending", ""))
		results := schedule(t, machine, []*v1.Node{node("a", of.Node, each.reported)}, pods)
		onNode := 0
		for _, existing := range results.ExistingNodes {
			onNode += len(existing.Pods)
		}
		if len(results.NewNodeClaims) != each.adds || onNode != each.onNode {
			t.Errorf("%s: %d new nodes, %d pods on the node that is there; %v", each.name, len(results.NewNodeClaims), onNode, results.PodErrors)
		}
	}
}

func TestKarpenterHasNoNodeForAMachineWithoutAnOverlay(t *testing.T) {
	of := read(t)
	machine := node("machine", of.Node, false).Status.Capacity
	results := schedule(t, machine, nil, []*v1.Pod{pod(t, of, "half", "pending", "")})
	if len(results.NewNodeClaims) != 0 || len(results.PodErrors) != 1 {
		t.Errorf("%d new nodes; %v", len(results.NewNodeClaims), results.PodErrors)
	}
}

func TestKarpenterReplacesAFullNodeAndOnlyDrainsAnEmptierOne(t *testing.T) {
	of := read(t)
	machine := node("machine", of.Node, true).Status.Capacity
	for _, each := range []struct {
		name   string
		onThis int
		other  int
		adds   int
	}{
		{"two full nodes: without this one another is needed", 4, 4, 1},
		{"two half full nodes: this one is not needed", 2, 2, 0},
	} {
		nodes := []*v1.Node{node("this", of.Node, true), node("other", of.Node, true)}
		pods := append(running(t, of, "half", "this", each.onThis), running(t, of, "half", "other", each.other)...)
		results := schedule(t, machine, nodes, pods, "this")
		if len(results.NewNodeClaims) != each.adds || len(results.PodErrors) != 0 {
			t.Errorf("%s: %d new nodes; %v", each.name, len(results.NewNodeClaims), results.PodErrors)
		}
	}
}

func TestKarpenterInitializesANodeOnceItsAgentReports(t *testing.T) {
	of := read(t)
	var claim karpenter.NodeClaim
	claim.Spec.Resources.Requests = of.Pods["half"].Admitted
	for _, reported := range []bool{false, true} {
		if _, done := lifecycle.RequestedResourcesRegistered(node("a", of.Node, reported), &claim); done != reported {
			t.Errorf("reported %v: initialized %v", reported, done)
		}
	}
}
