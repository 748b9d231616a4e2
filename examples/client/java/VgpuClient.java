import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;

/**
 * The scheduler's HTTP API from Java: health, admission, filter, bind, explain, and the pod read back.
 *
 * <p>Needs only a JDK, 17 or newer. Every call is one request. The client caches nothing and retries nothing, so the
 * caller decides what to do after a failure. A pod is a {@code Map<String, Object>} as {@link Json} reads it.
 */
public final class VgpuClient {
    /** Where the allocation stands: the API reference's key first, then HAMi's own. */
    static final List<String> ALLOCATION_KEYS = List.of("hami.io/devices-to-allocate", "hami.io/vgpu-devices-allocated");

    /** The server answered with an error. */
    public static final class ApiException extends IOException {
        private static final long serialVersionUID = 1;
        /** The HTTP status. */
        public final int status;

        ApiException(int status, String message) {
            super(status + ": " + message);
            this.status = status;
        }
    }

    /** The webhook does not admit the pod. The text names container and field, and what to write instead. */
    public static final class DeniedException extends IOException {
        private static final long serialVersionUID = 1;

        DeniedException(String message) {
            super(message);
        }
    }

    /** A container's share of one device. */
    public record Device(String uuid, String vendor, long memoryMib, long cores) {}

    /**
     * Which nodes a pod can run on, and why not on the others.
     *
     * @param nodes only the node that was chosen and reserved; every node of the request if the pod asks for no devices
     * @param failed reason by node; the pod may fit when other pods leave
     * @param unresolvable reason by node; the pod does not fit there even if other pods leave
     */
    public record FilterResult(List<String> nodes, Map<String, String> failed, Map<String, String> unresolvable) {
        /** Reason by node, of both kinds. */
        public Map<String, String> reasons() {
            Map<String, String> both = new TreeMap<>(failed);
            both.putAll(unresolvable);
            return both;
        }
    }

    private final String url;
    private final String api;
    private final String token;
    private final HttpClient http =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(10)).build();

    /** A scheduler that is its own API server, as {@code vgpu-scheduler --embedded} is. */
    public VgpuClient(String url) {
        this(url, url, null);
    }

    /**
     * A scheduler and its API server.
     *
     * @param url the scheduler, such as {@code http://127.0.0.1:8080}
     * @param api the Kubernetes API server
     * @param token sent as a bearer token; null if none is required
     */
    public VgpuClient(String url, String api, String token) {
        this.url = url.replaceAll("/+$", "");
        this.api = api.replaceAll("/+$", "");
        this.token = token;
    }

    /** Whether the scheduler runs ({@code GET /healthz}). */
    public boolean healthy() throws InterruptedException {
        try {
            send("GET", url + "/healthz", null);
            return true;
        } catch (IOException away) {
            return false;
        }
    }

    /**
     * Chooses one of these nodes and reserves the pod's devices there ({@code POST /filter}). If no node fits,
     * that is an answer and not an error: {@code nodes} is empty, and {@code reasons()} says why.
     */
    public FilterResult filter(Map<String, Object> pod, List<String> nodes) throws IOException, InterruptedException {
        Map<String, Object> answer = post(url + "/filter", Map.of("Pod", pod, "NodeNames", nodes));
        raiseError(answer);
        List<String> names = Json.list(answer.get("NodeNames")).stream().map(Json::text).toList();
        return new FilterResult(names, texts(answer.get("FailedNodes")), texts(answer.get("FailedAndUnresolvableNodes")));
    }

    /** Binds the pod to the node, with the devices that were reserved there ({@code POST /bind}). */
    public void bind(Map<String, Object> pod, String node) throws IOException, InterruptedException {
        Map<String, Object> metadata = Json.object(pod.get("metadata"));
        raiseError(post(url + "/bind", Map.of(
                "PodName", name(pod),
                "PodNamespace", namespace(pod),
                "PodUID", Json.text(metadata.get("uid")),
                "Node", node)));
    }

    /** The pod as the webhook changes it ({@code POST /webhook}). */
    public Map<String, Object> admit(Map<String, Object> pod) throws IOException, InterruptedException {
        Map<String, Object> object = typed(pod);
        Map<String, Object> review = Map.of(
                "apiVersion", "admission.k8s.io/v1",
                "kind", "AdmissionReview",
                "request", Map.of(
                        "uid", UUID.randomUUID().toString(),
                        "operation", "CREATE",
                        "kind", Map.of("group", "", "version", "v1", "kind", "Pod"),
                        "resource", Map.of("group", "", "version", "v1", "resource", "pods"),
                        "name", name(pod),
                        "namespace", namespace(pod),
                        "userInfo", Map.of(),
                        "object", object));
        Map<String, Object> response = Json.object(post(url + "/webhook", review).get("response"));
        if (!Boolean.TRUE.equals(response.get("allowed"))) {
            throw new DeniedException(Json.text(Json.object(response.get("status")).get("message")));
        }
        // A copy, so that the caller's pod stays as it is.
        Map<String, Object> admitted = Json.readObject(Json.write(object));
        if (response.get("patch") != null) {
            byte[] patch = Base64.getDecoder().decode(Json.text(response.get("patch")));
            for (Object operation : Json.list(Json.read(new String(patch, StandardCharsets.UTF_8)))) {
                apply(admitted, Json.object(operation));
            }
        }
        return admitted;
    }

    /** Why the pod is where it is or nowhere, and the smallest change that would cure it ({@code GET /explain}). */
    public Map<String, Object> explain(Map<String, Object> pod) throws IOException, InterruptedException {
        String name = URLEncoder.encode(namespace(pod) + "/" + name(pod), StandardCharsets.UTF_8);
        return Json.readObject(send("GET", url + "/explain?pod=" + name, null));
    }

    /** Creates the pod, and gives it back with what the server added (its uid above all). */
    public Map<String, Object> create(Map<String, Object> pod) throws IOException, InterruptedException {
        return post(api + "/api/v1/namespaces/" + namespace(pod) + "/pods", typed(pod));
    }

    /** The pod as the server has it. */
    public Map<String, Object> pod(String namespace, String name) throws IOException, InterruptedException {
        return Json.readObject(send("GET", api + "/api/v1/namespaces/" + namespace + "/pods/" + name, null));
    }

    /** The names of all nodes. */
    public List<String> nodes() throws IOException, InterruptedException {
        Map<String, Object> listed = Json.readObject(send("GET", api + "/api/v1/nodes", null));
        return Json.list(listed.get("items")).stream().map(node -> name(Json.object(node))).toList();
    }

    /** The devices of each container of the pod, init containers first; an empty list for one that got nothing. */
    public static List<List<Device>> devices(Map<String, Object> pod) {
        Map<String, String> annotations = texts(Json.object(pod.get("metadata")).get("annotations"));
        String text = ALLOCATION_KEYS.stream().filter(annotations::containsKey).map(annotations::get).findFirst().orElse("");
        List<List<Device>> containers = new ArrayList<>();
        // Each device is "UUID,VENDOR,MIB,CORES:", and each container ends with ";".
        for (int end = text.indexOf(';'), start = 0; end >= 0; start = end + 1, end = text.indexOf(';', start)) {
            List<Device> devices = new ArrayList<>();
            for (String device : text.substring(start, end).split(":")) {
                String[] fields = device.split(",");
                if (fields.length >= 4) {
                    devices.add(new Device(fields[0], fields[1], Long.parseLong(fields[2]), Long.parseLong(fields[3])));
                }
            }
            containers.add(devices);
        }
        return containers;
    }

    /** The node that the pod runs on; empty while it has none. */
    public static String nodeOf(Map<String, Object> pod) {
        return Json.text(Json.object(pod.get("spec")).get("nodeName"));
    }

    private Map<String, Object> post(String to, Object body) throws IOException, InterruptedException {
        return Json.readObject(send("POST", to, Json.write(body)));
    }

    private String send(String method, String to, String body) throws IOException, InterruptedException {
        HttpRequest.BodyPublisher publisher = body == null
                ? HttpRequest.BodyPublishers.noBody()
                : HttpRequest.BodyPublishers.ofString(body);
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(to))
                .timeout(Duration.ofSeconds(30))
                .header("Content-Type", "application/json")
                .method(method, publisher);
        if (token != null) {
            request.header("Authorization", "Bearer " + token);
        }
        HttpResponse<String> answer = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() / 100 != 2) {
            throw new ApiException(answer.statusCode(), message(answer.body()));
        }
        return answer.body();
    }

    /** The text of an error: Error of the scheduler, message of the Kubernetes API, or the body itself. */
    private static String message(String body) {
        try {
            Map<String, Object> said = Json.readObject(body);
            return Json.text(said.getOrDefault("Error", said.getOrDefault("message", body)));
        } catch (IllegalArgumentException none) {
            return body;
        }
    }

    private static void raiseError(Map<String, Object> answer) throws ApiException {
        if (!Json.text(answer.get("Error")).isEmpty()) {
            throw new ApiException(200, Json.text(answer.get("Error")));
        }
    }

    private static Map<String, Object> typed(Map<String, Object> pod) {
        Map<String, Object> object = new LinkedHashMap<>(pod);
        object.put("apiVersion", "v1");
        object.put("kind", "Pod");
        return object;
    }

    private static String name(Map<String, Object> object) {
        return Json.text(Json.object(object.get("metadata")).get("name"));
    }

    private static String namespace(Map<String, Object> object) {
        return Json.text(Json.object(object.get("metadata")).getOrDefault("namespace", "default"));
    }

    private static Map<String, String> texts(Object value) {
        Map<String, String> texts = new TreeMap<>();
        Json.object(value).forEach((key, text) -> texts.put(key, Json.text(text)));
        return texts;
    }

    /** One operation of a JSON Patch (RFC 6902): add, replace, remove; those that the webhook sends. */
    @SuppressWarnings("unchecked")
    private static void apply(Map<String, Object> target, Map<String, Object> operation) {
        String[] path = Json.text(operation.get("path")).split("/", -1);
        Object place = target;
        for (int index = 1; index < path.length - 1; index++) {
            String part = part(path[index]);
            place = place instanceof List<?> list ? list.get(Integer.parseInt(part)) : Json.object(place).get(part);
        }
        String last = part(path[path.length - 1]);
        String what = Json.text(operation.get("op"));
        if (place instanceof List) {
            List<Object> list = (List<Object>) place;
            int index = last.equals("-") ? list.size() : Integer.parseInt(last);
            switch (what) {
                case "add" -> list.add(index, operation.get("value"));
                case "replace" -> list.set(index, operation.get("value"));
                case "remove" -> list.remove(index);
                default -> throw new IllegalArgumentException("a patch operation that this client does not know: " + what);
            }
            return;
        }
        Map<String, Object> map = (Map<String, Object>) place;
        switch (what) {
            case "add", "replace" -> map.put(last, operation.get("value"));
            case "remove" -> map.remove(last);
            default -> throw new IllegalArgumentException("a patch operation that this client does not know: " + what);
        }
    }

    private static String part(String escaped) {
        return escaped.replace("~1", "/").replace("~0", "~");
    }
}
