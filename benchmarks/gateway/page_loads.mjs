// Milliseconds until each page has loaded in Chromium, as its own clock says: the median of a few visits. `node page_loads.mjs JSON`.
import { asked, open, tell } from "../../tests/browser/browser.mjs";

const { login, base, paths, visits } = asked();
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

await tell(async () => {
  const { browser, page } = await open({ viewport: { width: 1280, height: 900 } });
  await page.goto(login, { waitUntil: "load" });
  const found = {};
  for (const path of paths) {
    const took = [];
    for (let visit = 0; visit < visits; visit += 1) {
      await page.goto(base + path, { waitUntil: "load" });
      took.push(await page.evaluate(() => performance.getEntriesByType("navigation")[0].loadEventEnd));
    }
    found[path] = median(took);
  }
  await browser.close();
  return { pages: found };
});
