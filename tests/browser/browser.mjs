// A headless Chromium that tells what a page did: console errors, requests that left this machine, failed requests.
import { chromium } from "playwright-core";

export const EXECUTABLE = process.env.CHROMIUM ?? "/usr/bin/chromium";

export async function open(options = {}) {
  const browser = await chromium.launch({ executablePath: EXECUTABLE, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] });
  const context = await browser.newContext({ acceptDownloads: true, ...options });
  const page = await context.newPage();
  const told = { console: [], foreign: [], failed: [] };
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") told.console.push(message.text());
  });
  page.on("pageerror", (error) => told.console.push(String(error)));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (!["127.0.0.1", "localhost"].includes(url.hostname) && !["data:", "blob:", "file:"].includes(url.protocol)) told.foreign.push(request.url());
  });
  page.on("response", (response) => {
    if (response.status() >= 400) told.failed.push(`${response.status()} ${response.url()}`);
  });
  page.setDefaultTimeout(20000);
  return { browser, context, page, told };
}

export function asked() {
  return JSON.parse(process.argv[2]);
}

export async function tell(work) {
  try {
    console.log(JSON.stringify(await work()));
    process.exit(0);
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.stack ?? error) }));
    process.exit(0);
  }
}
