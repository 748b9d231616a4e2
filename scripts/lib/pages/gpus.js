// The cluster's GPU page, as an operator uses it: which pods hold and use what, over time, while pods come and go, a monitor
// falls silent and the connection is lost. vgpu-scheduler runs on its embedded cluster; the node monitor is made here.
"use strict";
const http = require("node:http");
const { spawnSync } = require("node:child_process");
const {
  FIRST_PAINT_MS, FIRST_PORT, INTERACTION_MS, WAIT_MS, axe, check, comes, fs, goes, listen, looks, paints, path, pause, seen,
  shoot, start, stop, swapped, target, took, tools, turns,
} = require("./common");

const program = path.join(target, "debug", "vgpu-scheduler");
const API = `http://127.0.0.1:${FIRST_PORT + 1}`;
const BASE = `http://127.0.0.1:${FIRST_PORT + 2}`;
const MONITOR = FIRST_PORT + 3;
const GIB = 2 ** 30;

const gpu = (node, index, memory) => ({ id: `GPU-${node}-${index}`, index, count: 10, devmem: memory, devcore: 100, type: "NVIDIA A100-SXM4-80GB", health: true, mode: "hami-core" });

const node = (name, gpus) => {
  const amounts = { cpu: "96", memory: "768Gi", pods: "110", "nvidia.com/gpu": String(gpus * 10) };
  const report = Array.from({ length: gpus }, (_, index) => gpu(name, index, 81920));
  return { metadata: { name, annotations: { "hami.io/node-nvidia-register": JSON.stringify(report) } }, spec: {}, status: { capacity: amounts, allocatable: amounts } };
};

/** A pod; `shares` are [index of the GPU, MiB, percent], empty for one that waits. */
const pod = (namespace, name, on, shares, memory) => {
  const held = shares.map(([index, mib, cores]) => `GPU-${on}-${index},NVIDIA,${mib},${cores}:`).join("");
  const annotations = shares.length > 0 ? { "hami.io/vgpu-node": on, "hami.io/vgpu-devices-allocated": `${held};` } : {};
  const limits = { "nvidia.com/gpu": String(Math.max(shares.length, 1)), "nvidia.com/gpumem": String(memory || shares[0][1]) };
  const spec = { containers: [{ name: "main", image: "train", resources: { limits } }] };
  if (shares.length > 0) spec.nodeName = on;
  return { apiVersion: "v1", kind: "Pod", metadata: { name, namespace, annotations }, spec };
};

const LONG = "a-name-of-the-longest-kind-".repeat(8) + "end";

const cluster = () => ({
  nodes: [node("gpu-a", 4), node("gpu-b", 2)],
  pods: [
    pod("research", "llm-finetune", "gpu-a", [[0, 40960, 50], [1, 40960, 50]]),
    pod("research", "notebook-anna", "gpu-a", [[2, 20480, 20]]),
    pod("serving", "chat-7b-0", "gpu-b", [[0, 30720, 30]]),
    pod("serving", "chat-7b-1", "gpu-b", [[0, 30720, 30]]),
    pod("batch", LONG, "gpu-b", [[1, 61440, 90]]),
  ],
});

/** The node monitor's figures: memory in GiB and the part of the GPU in use, by `namespace/pod` and GPU. */
const uses = {
  "research/llm-finetune": { "GPU-gpu-a-0": [31, 0.44], "GPU-gpu-a-1": [30, 0.41] },
  "research/notebook-anna": { "GPU-gpu-a-2": [1.5, 0.01] },
  "serving/chat-7b-0": { "GPU-gpu-b-0": [27, 0.22] },
  "serving/chat-7b-1": { "GPU-gpu-b-0": [28, 0.29] },
};
const ooms = { "serving/chat-7b-1": 0 };

const metrics = () => {
  const lines = [];
  for (const [name, gpus] of Object.entries(uses)) {
    const [namespace, pod] = name.split("/");
    Object.entries(gpus).forEach(([gpu, [gib, part]], index) => {
      const labels = `{node="n",namespace="${namespace}",pod="${pod}",container="main",vdevice_index="${index}",device_uuid="${gpu}"}`;
      lines.push(`hami_vgpu_memory_used_bytes${labels} ${Math.round(gib * GIB)}`, `vgpu_container_compute_used_ratio${labels} ${part}`);
    });
  }
  for (const [name, count] of Object.entries(ooms)) {
    const [namespace, pod] = name.split("/");
    lines.push(`vgpu_container_oom_total{node="n",namespace="${namespace}",pod="${pod}",container="main"} ${count}`);
  }
  lines.push('hami_host_gpu_memory_used_bytes{node="n",device_index="0",device_uuid="GPU-gpu-a-0"} 34359738368', 'hami_host_gpu_utilization_ratio{node="n",device_index="0",device_uuid="GPU-gpu-a-0"} 47');
  return `${lines.join("\n")}\n`;
};

/** A node monitor, whose words move a little from answer to answer. */
const monitor = (answer) => new Promise((done) => {
  let asked = 0;
  const server = http.createServer((_, response) => {
    asked += 1;
    if (answer === metrics) uses["research/llm-finetune"]["GPU-gpu-a-0"][0] = 30 + Math.sin(asked / 2);
    response.end(answer());
  });
  server.listen(MONITOR, "127.0.0.1", () => done(server));
});

const silence = (server) => new Promise((done) => {
  server.close(done);
  server.closeAllConnections();
});

const serve = (state) => {
  const file = path.join(tools, "gpus.json");
  fs.writeFileSync(file, JSON.stringify(state));
  return start(program, ["--embedded", file, "--http_bind", API.slice(7), "--gpu-page", BASE.slice(7), "--gpu-page-monitors", `127.0.0.1:${MONITOR}`, "--gpu-page-interval", "1s", "--log", "error"], `${BASE}/page/gpus`);
};

const create = async (object) => {
  const { namespace } = object.metadata;
  const answer = await fetch(`${API}/api/v1/namespaces/${namespace}/pods`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(object) });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
};

/** kube-scheduler asks for a pod that fits nowhere. */
const ask = async (object) => {
  await create(object);
  const { namespace, name } = object.metadata;
  const made = await (await fetch(`${API}/api/v1/namespaces/${namespace}/pods/${name}`)).json();
  const body = JSON.stringify({ Pod: made, NodeNames: ["gpu-a", "gpu-b"] });
  await fetch(`${API}/filter`, { method: "POST", headers: { "content-type": "application/json" }, body });
};

const PAGES = [
  ["overview", "/"],
  ["gpus", "/page/gpus"],
  ["gpu", "/page/gpus/gpu-b/GPU-gpu-b-0"],
  ["pods", "/page/pods"],
  ["pod", "/page/pods/research/llm-finetune"],
  ["namespaces", "/page/namespaces"],
  ["pending", "/page/pending"],
  ["missing", "/page/pods/nowhere/none"],
];

const story = async (browser, running) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  const errors = listen(page);

  await page.goto(BASE);
  check("the page is live", await seen(page, "Live"));
  check("it counts pods with GPUs", await seen(page, "5 pods with GPUs"));
  check("a pending pod has a way out", await seen(page, "It would fit after"));
  check("a namespace's waste is said", await comes(page, "#namespace-research"));

  // Changes are seen without a reload.
  ooms["serving/chat-7b-1"] = 3;
  check("refused memory appears while one looks", await seen(page, "3 refusals of memory"));
  await create(pod("serving", "chat-13b", "gpu-a", [[3, 40960, 40]]));
  check("a new pod appears while one looks", await seen(page, "6 pods with GPUs"));

  // Lists: search, choice, order, address.
  await page.goto(`${BASE}/page/pods`);
  check("the new pod is in the list", await comes(page, "#pod-serving-chat-13b"));
  await page.getByLabel("Find").fill("chat gpu-b");
  check("a search leaves what matches", await goes(page, "#pod-research-notebook-anna"));
  check("by every word", await comes(page, "#pod-serving-chat-7b-0") && await goes(page, "#pod-serving-chat-13b"));
  check("and stands in the address", page.url().includes("q=chat%20gpu-b"), page.url());
  await page.reload();
  check("which shows the same again", await page.locator("tbody tr").count() === 2 && await page.getByLabel("Find").inputValue() === "chat gpu-b");
  await page.getByLabel("Find").fill("no such pod");
  check("a search that finds nothing says so", await seen(page, "None of 6 pods matches."));
  await page.getByLabel("Find").fill("");
  await page.getByLabel("Show").selectOption({ label: "not measured" });
  check("pods that no monitor knows are found", await goes(page, "#pod-serving-chat-7b-0") && await comes(page, "#pod-serving-chat-13b"));
  await page.getByLabel("Show").selectOption({ label: "all pods" });
  await page.getByLabel("Order").selectOption({ label: "most refusals first" });
  check("an order holds", await comes(page, "tbody tr:first-child#pod-serving-chat-7b-1"));
  check("and a live change keeps it", (await pause(2500), await page.locator("tbody tr").first().getAttribute("id")) === "pod-serving-chat-7b-1");

  // History of a pod and of a GPU.
  await page.getByRole("link", { name: "chat-7b-1" }).click();
  check("a pod has its use over time", await comes(page, "#pod polyline.line-used"));
  check("and the refusals in it", await comes(page, "#pod svg line.mark"));
  await shoot(page, "gpus-refused-1280-light");
  const before = await page.locator("#pod polyline").first().getAttribute("points");
  check("which goes on while one looks", await page.waitForFunction((before) => document.querySelector("#pod polyline").getAttribute("points") !== before, before, { timeout: WAIT_MS }).then(() => true, () => false));
  await page.getByRole("link", { name: /^GPU 0/ }).click();
  check("its GPU names both pods", await seen(page, "serving/chat-7b-0") && await seen(page, "serving/chat-7b-1"));

  // By the keyboard alone.
  await page.goto(`${BASE}/page/gpus`);
  await page.keyboard.press("Tab");
  check("the first Tab offers to skip the navigation", await page.evaluate(() => document.activeElement.className === "skip"));
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  check("after it comes the search", await page.evaluate(() => document.activeElement.name === "q"));
  await page.keyboard.type("gpu-b");
  await goes(page, "#gpu-gpu-a-GPU-gpu-a-0");
  for (let steps = 0; steps < 8 && !(await page.evaluate(() => document.activeElement.closest("tbody"))); steps += 1) await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/page\/gpus\/gpu-b\//, { timeout: WAIT_MS }).catch(() => {});
  check("and a GPU opens by the keyboard", page.url().includes("/page/gpus/gpu-b/GPU-gpu-b-0"), page.url());

  // A monitor that falls silent.
  await page.goto(BASE);
  await silence(running.monitor);
  check("a silent monitor is said", await seen(page, "1 of 1 node monitor did not answer"));
  await axe(page, "a silent monitor");
  await shoot(page, "gpus-silent-1280-light");
  running.monitor = await monitor(metrics);
  check("and no more when it speaks again", await page.getByText("did not answer").waitFor({ state: "detached", timeout: WAIT_MS }).then(() => true, () => false));

  // Lose the connection and get it back.
  await stop(running.child);
  check("a lost connection is said", await seen(page, "Connection lost"));
  running.child = await serve(cluster());
  check("and that it is back", await seen(page, "Connection is back"));
  check("and the page shows what is there now", await seen(page, "5 pods with GPUs"));

  check("no script failed and the policy held", errors().length === 0, errors().join("; "));
  await context.close();
};

/** Which clients may read it. */
const access = async () => {
  const state = path.join(tools, "gpus.json");
  const open = spawnSync(program, ["--embedded", state, "--http_bind", `127.0.0.1:${FIRST_PORT + 4}`, "--gpu-page", "0.0.0.0:0", "--log", "error"], { timeout: 20000 });
  check("it is not open to others without a token", open.status === 1 && String(open.stderr).includes("--gpu-page-token"), String(open.stderr));
};

/** A thousand nodes of eight GPUs with a pod on each. */
const large = () => {
  const nodes = Array.from({ length: 1000 }, (_, number) => node(`gpu-${String(number).padStart(4, "0")}`, 8));
  const pods = Array.from({ length: 8000 }, (_, number) => {
    const on = `gpu-${String(number % 1000).padStart(4, "0")}`;
    return pod(`team-${number % 20}`, `pod-${number}`, on, [[Math.floor(number / 1000), 20000, 30]]);
  });
  return { nodes, pods };
};

/** The figures of all nodes' monitors. */
const busy = () => {
  const lines = [];
  for (let number = 0; number < 4000; number += 1) {
    const on = `gpu-${String(number % 1000).padStart(4, "0")}`;
    const labels = `{node="${on}",namespace="team-${number % 20}",pod="pod-${number}",container="main",vdevice_index="0",device_uuid="GPU-${on}-${Math.floor(number / 1000)}"}`;
    lines.push(`hami_vgpu_memory_used_bytes${labels} ${(number % 18) * GIB}`);
  }
  return `${lines.join("\n")}\n`;
};

/** A person turns a page of a list while the list is refreshed: it stays turned, whichever answer comes first. */
const turned = async (page) => {
  const rows = () => page.locator("#pods nav span:not(.button)").textContent();
  const shown = (wanted) => comes(page, `#pods nav span:text-is("${wanted} of 8000")`);
  const refresh = () => document.body.dispatchEvent(new CustomEvent("changed-gpus"));
  const next = () => document.querySelector("#pods nav a[rel=next]").click();
  // Answers for this page of the list come a second late.
  const late = (number) => page.route((url) => url.pathname === "/page/part/pods" && url.searchParams.get("page") === number, async (route) => {
    await pause(1000);
    await route.continue().catch(() => {}); // Unless the page has given it up.
  });
  // The page hears of no change of the cluster, so that only this test refreshes it: the server's answer to its request for events
  // never comes.
  await page.route("**/page/events", () => {});
  await page.goto(`${BASE}/page/pods?sort=unused`);
  await late(null);
  await page.evaluate(refresh);
  await page.evaluate(() => {
    window.texts = new Set();
    new MutationObserver(() => window.texts.add(document.querySelector("#pods nav span:not(.button)").textContent))
      .observe(document.getElementById("pods").parentElement, { childList: true, subtree: true, characterData: true });
  });
  await page.evaluate(next);
  check("a page of a list is turned during a refresh", await shown("26–50"));
  await pause(1500);
  const texts = await page.evaluate(() => [...window.texts]);
  check("and the late answer to the refresh does not turn it back", texts.length === 1 && (await rows()) === "26–50 of 8000", texts.join(", "));
  let asked = 0;
  page.on("request", (request) => { asked += Number(new URL(request.url()).searchParams.get("page") === "3"); });
  await late("3");
  await page.evaluate(next);
  await page.evaluate(refresh);
  check("a refresh that is due during a turn does not stop it", await shown("51–75"));
  await pause(500);
  check("and follows it", asked === 2 && (await rows()) === "51–75 of 8000", `${asked} requests`);
  await page.unrouteAll({ behavior: "ignoreErrors" });
};

const speed = async (browser) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  await page.goto(BASE);
  check("a thousand nodes are there", await seen(page, "8000 pods with GPUs"));
  took("first paint of the overview, 8,000 GPUs", await paints(page, BASE), FIRST_PAINT_MS);
  took("first paint of the GPUs, 8,000 GPUs", await paints(page, `${BASE}/page/gpus`), FIRST_PAINT_MS);
  const filters = [];
  for (const text of ["gpu-0777", "gpu-05", "pod-12", "team-3 gpu-00", "gpu-01"]) filters.push(await swapped(page, "gpus", "q", text));
  took("a filter of 8,000 GPUs", filters, INTERACTION_MS);
  await turned(page);
  await page.goto(`${BASE}/page/pods?sort=unused`);
  took("the next page of 8,000 pods", await turns(page, "pods"), INTERACTION_MS);
  check("and its number is in the address", page.url().endsWith("page=6"), page.url());
  await page.goBack();
  await page.waitForLoadState();
  check("from which one can go back", await seen(page, "101–125 of 8000"));
  await shoot(page, "gpus-large-1280-light", false);
  await context.close();
};

/** All of it, in this browser. */
module.exports = async (browser) => {
  const running = { monitor: await monitor(metrics), child: await serve(cluster()) };
  try {
    await ask(pod("research", "llm-70b", "", [], 90000));
    await pause(12000); // A history to look at.
    await looks(browser, BASE, PAGES, "gpus-");
    await story(browser, running);
    await access();
    await stop(running.child);
    await silence(running.monitor);
    running.monitor = await monitor(busy);
    running.child = await serve(large());
    await speed(browser);
  } finally {
    await stop(running.child);
    await silence(running.monitor);
  }
};
