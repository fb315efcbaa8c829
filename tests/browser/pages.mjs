// Every page in both themes and at both widths: what it says on the console, what it asks for, how fit it is for everybody.
import { readFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { asked, open, tell } from "./browser.mjs";

const require = createRequire(import.meta.url);
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const { logins = [], base, paths, shots, themes = ["light", "dark"], axe = true } = asked();

// Which controls Tab reaches, against which there are.
async function keyboard(page) {
  const wanted = await page.evaluate(() => {
    const found = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
      .filter((element) => element.checkVisibility({ visibilityProperty: true }) && !element.disabled && element.closest("[hidden]") === null);
    found.forEach((element, position) => { element.dataset.reach = String(position); });
    document.activeElement?.blur();
    return found.length;
  });
  const reached = new Set();
  for (let press = 0; press < wanted + 40 && reached.size < wanted; press += 1) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => document.activeElement?.dataset?.reach ?? null);
    if (at !== null) reached.add(at);
  }
  const missed = await page.evaluate((known) => [...document.querySelectorAll("[data-reach]")]
    .filter((element) => !known.includes(element.dataset.reach)).map((element) => element.outerHTML.slice(0, 120)), [...reached]);
  return missed;
}

await tell(async () => {
  const found = [];
  if (shots) mkdirSync(shots, { recursive: true });
  for (const theme of themes) {
    const isFirst = theme === themes[0]; // what does not depend on colours is looked at once
    const { browser, page, told } = await open({ colorScheme: theme, viewport: { width: 1280, height: 900 }, bypassCSP: false });
    const login = logins.shift();
    if (login) await page.goto(login, { waitUntil: "load" });
    for (const path of paths) {
      told.console.length = told.foreign.length = told.failed.length = 0;
      await page.setViewportSize({ width: 1280, height: 900 });
      await page.goto(base + path, { waitUntil: "load" });
      const timing = await page.evaluate(() => performance.getEntriesByType("navigation")[0].toJSON());
      const name = path.replace(/[^a-z0-9]+/gi, "-").replace(/^-|-$/g, "").slice(0, 30) || "overview";
      await page.waitForTimeout(300);
      if (shots) await page.screenshot({ path: `${shots}/${name}-${theme}.png`, fullPage: true });
      let violations = [];
      if (axe) {
        const cdp = await page.context().newCDPSession(page);
        // Injected by the debugger, since the page's own policy lets nobody add a script.
        await cdp.send("Runtime.evaluate", { expression: AXE });
        const rules = isFirst ? {} : { runOnly: ["color-contrast", "link-in-text-block"] };
        const result = await page.evaluate((rules) => window.axe.run(document, { resultTypes: ["violations"], ...rules }), rules);
        violations = result.violations.filter((v) => ["serious", "critical"].includes(v.impact))
          .map((v) => ({ id: v.id, impact: v.impact, nodes: v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " | " + (n.any[0]?.message ?? n.failureSummary ?? "")) }));
      }
      const missed = isFirst ? await keyboard(page) : [];
      await page.setViewportSize({ width: 360, height: 740 });
      await page.waitForTimeout(100);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      const wide = overflow > 0 ? await page.evaluate(() => [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > 361 && !e.closest(".scroll, .wide-picture, pre")).slice(0, 4).map((e) => e.outerHTML.slice(0, 100))) : [];
      if (shots) await page.screenshot({ path: `${shots}/${name}-${theme}-360.png`, fullPage: false });
      found.push({ path, theme, console: [...told.console], foreign: [...told.foreign], failed: [...told.failed], violations, missed, overflow, wide, ms: Math.round(timing.responseEnd - timing.requestStart), loaded_ms: Math.round(timing.loadEventEnd) });
    }
    await browser.close();
  }
  return { pages: found };
});
