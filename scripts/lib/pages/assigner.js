// The device assigner's page, as an operator uses it: devices that come and go between states while one looks, what
// happened to one of them, a lost connection.
"use strict";
const {
  FIRST_PAINT_MS, FIRST_PORT, INTERACTION_MS, WAIT_MS, axe, check, comes, goes, listen, looks, paints, path, seen, shoot, start, stop,
  swapped, target, took, turns,
} = require("./common");

const program = path.join(target, "debug", "examples", "devices");
const BASE = `http://127.0.0.1:${FIRST_PORT + 5}`;

const serve = (nodes) => start(program, [BASE.slice(7), String(nodes)], `${BASE}/`);

const make = async (uuid, state) => {
  const answer = await fetch(`${BASE}/try/${uuid}/${state}`, { method: "POST" });
  if (!answer.ok) throw new Error(`${uuid} ${state}: ${answer.status}`);
};

const PAGES = [
  ["devices", "/"],
  ["device", "/page/devices/GPU-0000-0"],
  ["missing", "/page/devices/none"],
];

const status = (page, uuid) => page.locator(`#device-${uuid} .badge`).innerText();

const story = async (browser, running) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  const errors = listen(page);

  await page.goto(BASE);
  check("the assigner's page has its title", await page.title() === "GPU Device Assignment");
  check("and its heading", await page.locator("h1").innerText() === "GPU Device Assigner");
  check("and its columns", (await page.locator("thead th").allInnerTexts()).join("|") === "Device|Labels|Node|Assignment|Status");
  check("it is live", await seen(page, "Live"));

  await make("GPU-0001-2", "pending");
  check("a proposal appears while one looks", await seen(page, "1 pending"));
  check("its row says so", await status(page, "GPU-0001-2") === "pending");
  await make("GPU-0001-2", "assigned");
  check("and that it is assigned", await comes(page, "#device-GPU-0001-2 .state-placed"));
  check("to its pod", await seen(page, "ml/train-gpu-0001-2"));

  await page.getByLabel("Find").fill("l40s train");
  check("a search by label and pod leaves what matches", await goes(page, "#device-GPU-0000-1") && await comes(page, "#device-GPU-0001-2"));
  check("and stands in the address", page.url().includes("q=l40s%20train"), page.url());
  await page.getByLabel("Find").fill("");
  await page.getByLabel("Show").selectOption({ label: "available" });
  check("a state can be chosen", await goes(page, "#device-GPU-0001-2") && await comes(page, "#device-GPU-0000-4"));
  await page.getByLabel("Show").selectOption({ label: "all devices" });
  await page.getByLabel("Order").selectOption({ label: "newest assignment first" });
  check("an order holds", await comes(page, "tbody tr:first-child#device-GPU-0001-2"));

  await page.getByRole("link", { name: "GPU-0001-2" }).focus();
  await page.keyboard.press("Enter");
  check("a device opens by the keyboard", await seen(page, "Device GPU-0001-2"));
  check("its history names what happened", (await page.locator("tbody .badge").allInnerTexts()).join(" ") === "finalized proposed");
  await make("GPU-0001-2", "available");
  check("and goes on while one looks", await page.locator("tbody .badge", { hasText: "released" }).waitFor({ timeout: WAIT_MS }).then(() => true, () => false));
  await axe(page, "a device with a history");
  await shoot(page, "assigner-history-1280-light");

  await page.goto(BASE);
  await stop(running.child);
  check("a lost connection is said", await seen(page, "Connection lost"));
  running.child = await serve(0);
  check("and that it is back", await seen(page, "Connection is back"));
  check("with what is there now", await seen(page, "No devices discovered."));
  await axe(page, "no device");

  check("no script failed and the policy held", errors().length === 0, errors().join("; "));
  await context.close();
};

const speed = async (browser) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  took("first paint of 8,000 devices", await paints(page, BASE), FIRST_PAINT_MS);
  const filters = [];
  for (const text of ["GPU-0777", "slot-3 l40s", "train", "node-05", "a100"]) filters.push(await swapped(page, "devices", "q", text));
  took("a filter of 8,000 devices", filters, INTERACTION_MS);
  await page.goto(BASE);
  took("the next page of 8,000 devices", await turns(page, "devices"), INTERACTION_MS);
  check("and its number is in the address", page.url().endsWith("page=6"), page.url());
  await context.close();
};

/** All of it, in this browser. */
module.exports = async (browser) => {
  const running = { child: await serve(2) };
  try {
    await make("GPU-0000-0", "pending");
    await make("GPU-0000-0", "expired");
    await make("GPU-0000-2", "pending");
    await looks(browser, BASE, PAGES, "assigner-");
    await make("GPU-0000-2", "available");
    await story(browser, running);
    await stop(running.child);
    running.child = await serve(1000);
    await speed(browser);
  } finally {
    await stop(running.child);
  }
};
