// The documentation site as it lies on the disk: somebody searches it, and opens what was found.
import { asked, open, tell } from "./browser.mjs";

const { url, words } = asked();

await tell(async () => {
  const { browser, page, told } = await open({ viewport: { width: 1280, height: 900 } });
  await page.goto(url, { waitUntil: "load" });
  const box = page.getByRole("textbox", { name: "Search" });
  await box.click();
  await box.pressSequentially(words, { delay: 20 });
  const first = page.locator(".md-search-result__link").first();
  await first.waitFor();
  const titles = await page.locator(".md-search-result__link h1").allTextContents();
  await first.click();
  await page.waitForURL((now) => now.href !== url);
  await page.waitForLoadState("load");
  const found = { titles, opened: page.url(), heading: await page.locator("h1").first().textContent() };
  await browser.close();
  return { ...found, told };
});
