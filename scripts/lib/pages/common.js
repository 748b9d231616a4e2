// Shared by the checks of all pages: one browser, the output of a check, axe-core, timings, programs that are started.
"use strict";
const { execFileSync, spawn } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");

const root = path.resolve(__dirname, "../../..");
const target = process.env.CARGO_TARGET_DIR || path.join(root, "target");
const tools = path.join(target, "page-check");
const shots = path.join(target, "screenshots");
const FIRST_PORT = Number(process.env.PAGE_CHECK_PORT || 18399);
// A page that a person does not wait for. These are printed beside what was measured, and fail nothing: a clock says how
// busy the machine is, too.
const FIRST_PAINT_MS = 300;
const INTERACTION_MS = 100;
const WAIT_MS = Number(process.env.PAGE_CHECK_WAIT_MS || 30000);

const installed = (name) => fs.existsSync(path.join(tools, "node_modules", name));
fs.mkdirSync(tools, { recursive: true });
fs.mkdirSync(shots, { recursive: true });
if (!installed("playwright-core") || !installed("axe-core")) {
  execFileSync("npm", ["install", "--prefix", tools, "--no-audit", "--no-fund", "playwright-core@1.65.1", "axe-core@4.14.1"], { stdio: "inherit" });
}
const { chromium } = require(path.join(tools, "node_modules/playwright-core"));
const AXE = path.join(tools, "node_modules/axe-core/axe.min.js");
// The same engine without its window, for half the processor time.
const CHROMIUM = process.env.CHROMIUM || ["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"].find((file) => fs.existsSync(file));

let failures = 0;
const check = (what, holds, detail = "") => {
  console.log(`${holds ? "ok     " : "FAILED "} ${what}${holds || detail === "" ? "" : `: ${detail}`}`);
  if (!holds) failures += 1;
};
const failed = () => failures;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const launch = () => chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });

/** Starts a program and waits until `address` answers. */
const start = async (program, arguments_, address) => {
  const child = spawn(program, arguments_, { stdio: ["ignore", "inherit", "inherit"] });
  for (let tries = 0; tries < 600; tries += 1) {
    try {
      if ((await fetch(address, { headers: { Accept: "text/html" } })).ok) return child;
    } catch {
      // It does not listen yet.
    }
    await pause(100);
    if (child.exitCode !== null) throw new Error(`${program} ended with ${child.exitCode}`);
  }
  await stop(child);
  throw new Error(`${program} does not answer on ${address}`);
};

const stop = async (child) => {
  const ended = new Promise((done) => child.once("exit", done));
  child.kill("SIGKILL");
  await ended;
};

const axe = async (page, what) => {
  // The policy of the page forbids scripts of others, so it is put in by the debugger.
  await page.evaluate(fs.readFileSync(AXE, "utf8"));
  const found = await page.evaluate(() => axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  const said = found.violations.map((rule) => `${rule.id} (${rule.nodes.map((node) => node.html.slice(0, 120)).slice(0, 2).join(" | ")})`);
  check(`axe-core finds nothing: ${what}`, said.length === 0, said.join("; "));
};

/** No scrollbar below the page: everything is within its width. */
const fits = async (page, what) => {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  check(`nothing is wider than the page: ${what}`, wide <= 0, `${wide} px`);
};

const seen = (page, text) => page.getByText(text).first().waitFor({ timeout: WAIT_MS }).then(() => true, () => false);

/** Whether the element comes, or goes, while one looks. A flat line has no height, so it need not be visible. */
const comes = (page, selector) => page.locator(selector).first().waitFor({ state: "attached", timeout: WAIT_MS }).then(() => true, () => false);
const goes = (page, selector) => page.locator(selector).first().waitFor({ state: "detached", timeout: WAIT_MS }).then(() => true, () => false);

const shoot = (page, name, whole = true) => page.screenshot({ path: path.join(shots, `${name}.png`), fullPage: whole });

/** The errors in a page's scripts; requests that a check breaks on purpose are left out. */
const listen = (page) => {
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  return () => errors.filter((text) => !/ERR_|Failed to load resource|Failed to fetch|status of (4|5)\d\d/.test(text));
};

/** Every page in both schemes, on a desktop and on a phone. */
const looks = async (browser, base, pages, prefix) => {
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 390], ["light", 360]]) {
    const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme });
    const page = await context.newPage();
    for (const [name, address] of pages) {
      await page.goto(base + address);
      await page.waitForTimeout(150);
      await fits(page, `${prefix}${name}, ${width} px`);
      if (width === 360) continue;
      await axe(page, `${prefix}${name}, ${scheme}, ${width} px`);
      await shoot(page, `${prefix}${name}-${width}-${scheme}`);
    }
    await context.close();
  }
};

const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

const took = (what, times, reach) => console.log(`        ${what}: ${Math.round(median(times))} ms (to reach: ${reach} ms)`);

/** The first paint of a page, five times. */
const paints = async (page, address) => {
  const times = [];
  for (let round = 0; round < 5; round += 1) {
    await page.goto(address);
    await page.waitForTimeout(200);
    times.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? Infinity));
  }
  return times;
};

/**
 * How long it takes from a request to its content in the page, after `text` was typed into the input `name`, or the next
 * page was asked for. Typing waits 120 ms for more letters before that, which is not counted.
 */
const swapped = (page, list, name, text) => page.evaluate(([list, name, text]) => new Promise((done) => {
  let asked = 0;
  document.body.addEventListener("htmx:before:request", () => { asked = performance.now(); }, { once: true });
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => done(performance.now() - asked));
  }).observe(document.getElementById(list).parentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["hx-get"] });
  if (name === "") {
    document.querySelector(`#${list} nav a[rel=next]`).click();
  } else {
    const input = document.querySelector(`input[name=${name}]`);
    input.value = text;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
}), [list, name, text]);

/**
 * How long the next five pages of a list take. The list is also written anew every few seconds, which can be taken for the
 * next page: a turn ends when its number is in the address.
 */
const turns = async (page, list) => {
  const times = [];
  for (let number = 2; number <= 6; number += 1) {
    times.push(await swapped(page, list, "", ""));
    await page.waitForURL((url) => url.href.endsWith(`page=${number}`), { timeout: WAIT_MS });
  }
  return times;
};

module.exports = {
  FIRST_PAINT_MS, FIRST_PORT, INTERACTION_MS, WAIT_MS, axe, check, comes, failed, fits, fs, goes, launch, listen, looks, median,
  paints, path, pause, root, seen, shoot, shots, start, stop, swapped, target, took, tools, turns,
};
