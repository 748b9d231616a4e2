// The simulator's page, as a person uses it: creates nodes and pods, reads why a pod waits, edits, exports, resets,
// imports, compares, loses the connection and gets it back; how long a page and an interaction take.
"use strict";
const {
  FIRST_PAINT_MS, FIRST_PORT, INTERACTION_MS, WAIT_MS, axe, check, fits, fs, listen, looks, paints, path, pause, root, seen, shots,
  start, stop, swapped, target, took, tools, turns,
} = require("./common");

// Either of the two programs that serve it: target/debug/vgpu, or vgpu-scheduler.
const program = process.env.PAGE_CHECK_SIMULATOR || path.join(target, "debug", "vgpu");
const COMMAND = path.basename(program) === "vgpu-scheduler" ? "simulator" : "simulate";
const BASE = `http://127.0.0.1:${FIRST_PORT}`;
const TEAMS = path.join(root, "examples/simulator/base.yaml");
const POLICY = path.join(root, "examples/simulator/binpack.yaml");
const SAMPLE = path.join(root, "tests/vectors/simulator/export-sample.json");

/** Starts the simulator over a file. */
const serve = (file) => start(program, [COMMAND, "--bind", `127.0.0.1:${FIRST_PORT}`, "--kubernetes-bind", "off", "--log", "warn", "--import", file], `${BASE}/`);

const write = async (page, address, text) => {
  await page.goto(BASE + address);
  await page.fill("#text", text);
  await page.click("form.editor button");
};

const node = (name, gpus) => `metadata:
  name: ${name}
  annotations:
    hami.io/node-nvidia-register: '${JSON.stringify(Array.from({ length: gpus }, (_, index) => ({ id: `${name}-${index}`, index, count: 10, devmem: 40960, devcore: 100, type: "NVIDIA A100-PCIE-40GB", health: true, mode: "hami-core" })))}'
status:
  allocatable: { cpu: "8", memory: 64Gi, pods: "110", nvidia.com/gpu: "${gpus * 10}", nvidia.com/gpumem: "${gpus * 40960}", nvidia.com/gpucores: "${gpus * 100}" }
  capacity: { cpu: "8", memory: 64Gi, pods: "110", nvidia.com/gpu: "${gpus * 10}", nvidia.com/gpumem: "${gpus * 40960}", nvidia.com/gpucores: "${gpus * 100}" }
`;

const pod = (name, limits) => `metadata:
  name: ${name}
  namespace: default
spec:
  containers:
    - name: main
      image: registry.k8s.io/pause:3.10
      resources:
        limits: ${JSON.stringify(limits)}
`;

/** The main job: the sample opens placed and explained; then everything that a person does. */
const story = async (browser, program_) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true });
  const page = await context.newPage();
  const errors = listen(page);

  await page.goto(BASE);
  check("the sample opens with its pods placed", await seen(page, "2 pods placed"));
  check("and explained", await seen(page, "node-2 was chosen: 2 of 3 nodes passed every filter"));
  check("the page is live", await seen(page, "Live"));

  // Another page open on the overview sees what is done here.
  const watcher = await context.newPage();
  await watcher.goto(BASE);
  await seen(watcher, "Live");

  await write(page, "/page/new/nodes", node("gpu-1", 2));
  check("a node that was created is shown", await seen(page, "Created gpu-1."));
  check("another page sees it without a reload", await watcher.locator("#node-gpu-1").waitFor({ timeout: WAIT_MS }).then(() => true, () => false));
  await page.goto(BASE);
  await page.click("text=Enable GpuFit and GpuScore");
  await page.getByRole("button", { name: "Apply configuration" }).click();
  check("shared GPUs are enabled from the overview", await seen(page, "The scheduler now runs with this configuration."));
  await write(page, "/page/new/pods", pod("fits", { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "10000", "nvidia.com/gpucores": "30" }));
  await seen(page, "Created fits.");
  const placed = await page.locator(".state-placed").first().waitFor({ timeout: WAIT_MS }).then(() => true, () => false);
  check("a pod that fits is placed while one looks", placed);
  check("and its GPU's bar shows it", await watcher.locator("#node-gpu-1 .swatch").first().waitFor({ timeout: WAIT_MS }).then(() => true, () => false));
  check("its filters are in a table", await page.locator("#filter-table").count() === 1);

  await write(page, "/page/new/pods", pod("too-large", { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "50000" }));
  check("a pod that fits nowhere says so", await page.locator("#waits").waitFor({ timeout: WAIT_MS }).then(() => true, () => false));
  check("with what would help", await seen(page, "It would fit after"));
  await page.screenshot({ path: path.join(shots, "pending-1280-light.png"), fullPage: true });
  await watcher.locator("#pending a", { hasText: "too-large" }).waitFor({ timeout: WAIT_MS });
  await watcher.getByText("It would fit after").first().waitFor({ timeout: WAIT_MS });
  await axe(watcher, "GPUs with pods, and a pending pod, light");
  await watcher.screenshot({ path: path.join(shots, "story-1280-light.png"), fullPage: true });
  await watcher.emulateMedia({ colorScheme: "dark" });
  await watcher.setViewportSize({ width: 390, height: 900 });
  await axe(watcher, "GPUs with pods, and a pending pod, dark");
  await fits(watcher, "GPUs with pods, 390 px");
  await watcher.screenshot({ path: path.join(shots, "story-390-dark.png"), fullPage: true });
  await watcher.emulateMedia({ colorScheme: "light" });
  await watcher.setViewportSize({ width: 1280, height: 900 });

  // An error loses nothing.
  await write(page, "/page/new/pods", "metadata:\n  name: UPPER\nspec:\n  containers: [{name: c, image: i}]\n");
  check("a refused text is still there", (await page.inputValue("#text")).includes("name: UPPER"));
  check("with the API server's reason", await page.locator("#error").innerText().then((text) => text.includes("UPPER")));
  await axe(page, "a refused text");
  await page.screenshot({ path: path.join(shots, "refused-1280-light.png"), fullPage: true });
  page.once("dialog", (dialog) => dialog.accept());

  // Edit.
  await page.goto(`${BASE}/page/edit/nodes/-/gpu-1`);
  const before = await page.inputValue("#text");
  await page.fill("#text", before.replace(/metadata:\n/, "metadata:\n  labels: {team: vision}\n"));
  await page.press("#text", "Control+Enter");
  check("an edit is saved, by the keyboard", await seen(page, "Saved gpu-1."));
  check("and shown", await seen(page, "team=vision"));

  // By the keyboard alone: the first Tab goes to the content, and the menu opens and closes.
  await page.goto(BASE);
  await page.keyboard.press("Tab");
  check("the first Tab offers to skip the navigation", await page.evaluate(() => document.activeElement.className === "skip"));
  await page.locator("details.menu summary").focus();
  await page.keyboard.press("Enter");
  check("the menu opens by the keyboard", await page.locator("details.menu ul").isVisible());
  await page.keyboard.press("Escape");
  check("and closes", !(await page.locator("details.menu ul").isVisible()));

  // The configuration.
  await page.goto(`${BASE}/page/configuration`);
  const configuration = await page.inputValue("#text");
  await page.fill("#text", "profiles:\n  - schedulerName: a\n    plugins:\n      score:\n        enabled:\n          - name: NoSuchPlugin\n");
  await page.click("form.editor button");
  check("a configuration that cannot run is refused", await page.locator("#error").innerText().then((text) => text.includes("NoSuchPlugin"), () => false));
  check("and still there", (await page.inputValue("#text")).includes("NoSuchPlugin"));
  await page.fill("#text", configuration);
  await page.click("form.editor button");
  check("one that can run is taken", await seen(page, "The scheduler now runs with this configuration."));

  // Export, reset, import.
  await page.goto(`${BASE}/page/data`);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Export as JSON")]);
  const exported = path.join(tools, "export.json");
  await download.saveAs(exported);
  check("an export has the new node", fs.readFileSync(exported, "utf8").includes("gpu-1"));
  await page.click("text=Reset…");
  await page.getByRole("button", { name: "Reset everything" }).click();
  check("a reset is done after a question", await seen(page, "Reset: the state at the start is restored."));
  check("and other pages see it", await watcher.locator("#node-gpu-1").waitFor({ state: "detached", timeout: WAIT_MS }).then(() => true, () => false));
  await page.goto(`${BASE}/page/data`);
  await page.setInputFiles("#file", exported);
  await page.getByRole("button", { name: "Import", exact: true }).click();
  check("an import brings it back", await page.locator("#node-gpu-1").waitFor({ timeout: WAIT_MS }).then(() => true, () => false));

  // Lose the connection and get it back.
  await stop(program_.child);
  check("a lost connection is said", await seen(watcher, "Connection lost"));
  await watcher.screenshot({ path: path.join(shots, "lost-1280-light.png") });
  program_.child = await serve(SAMPLE);
  check("and that it is back", await seen(watcher, "Connection is back"));
  check("and the page shows what is there now", await watcher.locator("#node-gpu-1").waitFor({ state: "detached", timeout: WAIT_MS }).then(() => true, () => false));

  const real = errors();
  check("no script failed and the policy held", real.length === 0, real.join("; "));
  await context.close();
};

const exported = async () => (await fetch(`${BASE}/api/v1/export`)).text();

/** The cluster as it is once nothing has changed for a second: a busy machine still places pods of an earlier check. */
const settled = async () => {
  let before = await exported();
  for (let looks = 0; looks < 30; looks += 1) {
    await pause(1000);
    const now = await exported();
    if (now === before) return now;
    before = now;
  }
  throw new Error("the cluster changes although nothing is asked of it");
};

/** Several runs beside each other: asked by the keyboard alone, looked at in both schemes and at both widths. */
const compare = async (browser) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  const seenBefore = await settled();
  await page.goto(BASE);
  await page.locator(".main-nav a", { hasText: "Compare" }).focus();
  await page.keyboard.press("Enter");
  await page.waitForURL("**/page/compare");
  const tabTo = async (selector) => {
    for (let tries = 0; tries < 40; tries += 1) {
      if (await page.evaluate((wanted) => document.activeElement.matches(wanted), selector)) return true;
      await page.keyboard.press("Tab");
    }
    return false;
  };
  check("the form is reached by the keyboard", await tabTo("#add_nodes"));
  await page.keyboard.type("2");
  await tabTo("#drain");
  await page.keyboard.type("gpu-9");
  await tabTo("#configuration");
  await page.keyboard.insertText(fs.readFileSync(POLICY, "utf8"));
  check("and its box", await tabTo("input[name=anew]"));
  await page.keyboard.press("Space");
  await tabTo("form.editor button");
  await page.keyboard.press("Enter");
  check("a node that is not there is named", await page.locator("#error").innerText().then((text) => text.includes("gpu-9") && text.includes("gpu-1"), () => false));
  check("and everything that was typed is still there", (await page.inputValue("#drain")) === "gpu-9" && (await page.inputValue("#configuration")).includes("GpuScore") && await page.isChecked("input[name=anew]"));
  await axe(page, "a comparison that was refused");
  await tabTo("#drain");
  await page.keyboard.press("Control+A");
  await page.keyboard.type("gpu-1");
  await tabTo("form.editor button");
  await page.keyboard.press("Enter");
  check("a comparison is shown", await page.locator("#results").waitFor({ timeout: WAIT_MS }).then(() => true, () => false));
  const row = async (label) => (await page.locator("tr", { has: page.locator("th", { hasText: label }) }).first().locator("td").allInnerTexts()).map((text) => text.trim());
  const placed = await row("Pods placed");
  check("with one column for each run, the best marked", placed.join(",") === "10,15 ★,14,10", placed.join(","));
  const waiting = await row("Pods pending");
  check("and the pods that wait", waiting.join(",") === "5,0 ★,1,5", waiting.join(","));
  check("and a chart", (await page.locator("figure.chart svg").count()) >= 6);
  check("nothing was changed by it", (await exported()) === seenBefore);
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 390]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 900 });
    await page.waitForTimeout(150);
    await fits(page, `a comparison, ${width} px`);
    await axe(page, `a comparison, ${scheme}, ${width} px`);
    await page.screenshot({ path: path.join(shots, `compared-${width}-${scheme}.png`), fullPage: true });
  }
  await context.close();
};

const PAGES = [
  ["overview", "/"],
  ["pod", "/page/pods/default/pod-1"],
  ["node", "/page/nodes/node-2"],
  ["pods", "/page/objects/pods"],
  ["namespaces", "/page/objects/namespaces"],
  ["new-node", "/page/new/nodes?template=gpu"],
  ["configuration", "/page/configuration"],
  ["compare", "/page/compare"],
  ["data", "/page/data"],
  ["reset", "/page/reset"],
  ["delete", "/page/delete/pods/default/pod-1"],
  ["missing", "/page/nodes/nowhere"],
];

/** A thousand nodes of eight GPUs with five thousand pods. */
const large = () => {
  const nodes = Array.from({ length: 1000 }, (_, number) => {
    const name = `gpu-${String(number).padStart(4, "0")}`;
    const gpus = Array.from({ length: 8 }, (_, index) => ({ id: `${name}-${index}`, index, count: 10, devmem: 81920, devcore: 100, type: "NVIDIA A100-SXM4-80GB", health: true, mode: "hami-core" }));
    const amounts = { cpu: "96", memory: "768Gi", pods: "110", "nvidia.com/gpu": "80" };
    return { metadata: { name, annotations: { "hami.io/node-nvidia-register": JSON.stringify(gpus) } }, spec: {}, status: { capacity: amounts, allocatable: amounts, conditions: [{ type: "Ready", status: "True" }] } };
  });
  const pods = Array.from({ length: 5000 }, (_, number) => {
    const on = `gpu-${String(number % 1000).padStart(4, "0")}`;
    const gpu = Math.floor(number / 1000);
    const annotations = { "hami.io/vgpu-node": on, "hami.io/vgpu-devices-allocated": `${on}-${gpu},NVIDIA,20000,30:;` };
    const limits = { cpu: "2", memory: "8Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "30" };
    return { metadata: { name: `pod-${number}`, namespace: "default", annotations }, spec: { nodeName: on, containers: [{ name: "main", image: "train", resources: { limits, requests: limits } }] } };
  });
  const file = path.join(tools, "large.json");
  fs.writeFileSync(file, JSON.stringify({ nodes, pods }));
  return file;
};

const speed = async (browser) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  await page.goto(BASE);
  check("a thousand nodes are there", await seen(page, "1000 nodes"));
  took("first paint at 1,000 nodes", await paints(page, BASE), FIRST_PAINT_MS);
  const filters = [];
  for (const text of ["gpu-0777", "gpu-05", "a100", "gpu-0999", "gpu-01"]) filters.push(await swapped(page, "nodes", "nodes", text));
  took("a filter at 1,000 nodes", filters, INTERACTION_MS);
  await page.goto(BASE);
  took("the next page at 1,000 nodes", await turns(page, "nodes"), INTERACTION_MS);
  check("and its number is in the address", page.url().endsWith("page=6"), page.url());
  await page.goBack();
  await page.waitForLoadState();
  check("from which one can go back", await seen(page, "49–60 of 1000"));
  await page.screenshot({ path: path.join(shots, "large-1280-light.png"), fullPage: true });
  await context.close();
};

/** All of it, in this browser. */
module.exports = async (browser) => {
  const program_ = { child: await serve(SAMPLE) };
  try {
    await looks(browser, BASE, PAGES, "");
    await story(browser, program_);
    await stop(program_.child);
    program_.child = await serve(TEAMS);
    await compare(browser);
    await stop(program_.child);
    program_.child = await serve(large());
    await speed(browser);
  } finally {
    await stop(program_.child);
  }
};
