// Usage: node browser.mjs FOLDER. Runs every case of FOLDER/cases.json in a page of a headless Chromium: the one that
// CHROMIUM names, else the system's.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

const TYPES = { ".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json" };
const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const here = fileURLToPath(new URL(".", import.meta.url));
const folder = process.argv[2];

async function serve(request, response) {
  const path = normalize(new URL(request.url, "http://localhost").pathname);
  const file = path.startsWith("/models/") ? join(folder, path.slice("/models/".length)) : join(here, path);
  try {
    const body = await readFile(file);
    response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream" });
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
}

const paths = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const executablePath = paths.find((path) => path && existsSync(path));
assert(executablePath, "no Chromium found: install one, or name it in the environment variable CHROMIUM");

const server = createServer(serve);
await new Promise((resolve) => server.listen(0, "localhost", resolve));
const profile = await mkdtemp(join(tmpdir(), "ort-castlike-"));
const context = await chromium.launchPersistentContext(profile, { executablePath, args: FLAGS, headless: true });
try {
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(`http://localhost:${server.address().port}/page.html`);
  await page.waitForFunction(() => window.runAll !== undefined, undefined, { timeout: 60_000 });
  const { count, differences } = await page.evaluate(() => window.runAll());
  assert.deepEqual([...errors, ...differences], []);
  const version = await page.evaluate(() => navigator.userAgent.match(/Chrome\/[\d.]+/)?.[0]);
  console.log(`onnxruntime-web in ${version}: ${count} models right`);
} finally {
  await context.close();
  server.close();
  await rm(profile, { recursive: true, force: true });
}
