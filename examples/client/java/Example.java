import java.util.List;
import java.util.Map;

/**
 * Places one pod through the scheduler's HTTP API and reads back what it got; then asks why another fits nowhere.
 *
 * <pre>
 * vgpu-scheduler --embedded examples/client/state.json &amp;
 * javac -d /tmp/vgpu-example examples/client/java/*.java
 * java -cp /tmp/vgpu-example Example http://127.0.0.1:8080
 * </pre>
 */
public final class Example {
    private Example() {}

    /** A pod of one container with these limits. */
    private static Map<String, Object> pod(String name, Map<String, Object> limits) {
        return Map.of(
                "metadata", Map.of("name", name, "namespace", "default"),
                "spec", Map.of("containers", List.of(Map.of(
                        "name", "main",
                        "image", "nvidia/cuda:12.9.0-base-ubuntu22.04",
                        "resources", Map.of("limits", limits)))));
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments.length > 0 ? arguments[0] : "http://127.0.0.1:8080";
        VgpuClient client = new VgpuClient(url);
        if (!client.healthy()) {
            System.err.println("no scheduler at " + url);
            System.exit(1);
        }
        System.out.println("healthy");
        List<String> nodes = client.nodes();

        // The webhook completes the pod, or says what is wrong with it.
        Map<String, Object> admitted = client.admit(pod("example",
                Map.of("nvidia.com/gpu", "1", "nvidia.com/gpumem", "3000", "nvidia.com/gpucores", "30")));
        System.out.println("admitted for " + Json.object(admitted.get("spec")).get("schedulerName"));
        try {
            client.admit(pod("wrong", Map.of("nvidia.com/gpu", "1", "nvidia.com/gpumem-percentage", "150")));
        } catch (VgpuClient.DeniedException reason) {
            System.out.println("denied: " + reason.getMessage());
        }

        Map<String, Object> created = client.create(admitted);
        String chosen = client.filter(created, nodes).nodes().get(0);
        client.bind(created, chosen);
        Map<String, Object> placed = client.pod("default", "example");
        System.out.println("bound to " + VgpuClient.nodeOf(placed));
        for (List<VgpuClient.Device> container : VgpuClient.devices(placed)) {
            for (VgpuClient.Device device : container) {
                System.out.printf("holds %d MiB and %d cores of %s%n", device.memoryMib(), device.cores(), device.uuid());
            }
        }

        // A pod that fits nowhere gets a reason for each node, and the smallest change that would help.
        Map<String, Object> large = client.create(client.admit(pod("large",
                Map.of("nvidia.com/gpu", "1", "nvidia.com/gpumem", "100000"))));
        client.filter(large, nodes).reasons().forEach((node, why) -> System.out.println(node + ": " + why));
        for (Object each : Json.list(client.explain(large).get("advice"))) {
            Map<String, Object> advice = Json.object(each);
            System.out.println("would fit on " + advice.getOrDefault("node", "some node") + " if " + advice.get("text"));
        }
    }
}
