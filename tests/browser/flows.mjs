// What a new user does: makes a key, asks, looks at the receipt, has the answer checked; sends a file of requests and takes the answers.
import { readFileSync, writeFileSync } from "node:fs";
import { asked, open, tell } from "./browser.mjs";

const { login, base, flow, prompt, file, ready, shots } = asked();
const shot = async (page, name) => { if (shots) await page.screenshot({ path: `${shots}/${flow}-${name}.png`, fullPage: true }); };

const flows = {
  async key({ page }) {
    await page.goto(`${base}/keys`);
    await page.getByRole("textbox", { name: "Name" }).fill("from the browser");
    await page.getByRole("textbox", { name: "Budget" }).fill("1usd/day");
    await page.getByRole("button", { name: "Create key" }).click();
    const secret = await page.locator("#secret").textContent();
    await page.getByRole("row", { name: /from the browser/ }).waitFor();
    await shot(page, "made");
    await page.getByRole("textbox", { name: "Name" }).fill("");
    await page.getByRole("textbox", { name: "Name" }).fill("wrong");
    await page.getByRole("textbox", { name: "Budget" }).fill("5");
    await page.getByRole("button", { name: "Create key" }).click();
    const refused = await page.locator("#new-key [role=alert]").textContent();
    page.on("dialog", (dialog) => dialog.accept());
    await page.getByRole("button", { name: "Revoke from the browser" }).click();
    await page.getByRole("row", { name: /from the browser.*revoked/ }).waitFor();
    return { secret, refused };
  },

  async chat({ page }) {
    await page.goto(`${base}/chat`);
    await page.getByLabel("Your message").fill(prompt);
    await page.keyboard.press("Enter");
    const bill = page.locator(".said.model .bill");
    await bill.locator("a[href^='/receipts/']").waitFor();
    const text = await page.locator(".said.model .text").textContent();
    const shown = await bill.textContent();
    await shot(page, "answered");
    await bill.getByRole("button", { name: "Check this answer" }).click();
    await bill.locator(".check .tag.good, .check .tag.warn, .check .tag.bad").first().waitFor({ timeout: 60000 });
    const verdict = await bill.locator(".check").textContent();
    await shot(page, "checked");
    await bill.locator("a[href^='/receipts/']").click();
    await page.getByRole("heading", { name: "What it cost" }).waitFor();
    await shot(page, "receipt");
    const cost = await page.locator(".figure", { hasText: "cost" }).first().locator("dd").textContent();
    return { text, shown, verdict, cost, url: page.url() };
  },

  // A base model: the page says so before anything is sent, and sends the text of all turns.
  async base({ page }) {
    await page.goto(`${base}/chat`);
    const notice = page.getByText("it has no chat template");
    await notice.waitFor();
    const warned = await page.locator("[data-base]").textContent();
    await shot(page, "warned");
    const texts = [];
    for (const said of prompt) {
      await page.getByLabel("Your message").fill(said);
      await page.keyboard.press("Enter");
      const answer = page.locator(".said.model").nth(texts.length);
      await answer.locator(".bill a[href^='/receipts/']").waitFor();
      texts.push(await answer.locator(".text").textContent());
    }
    await shot(page, "went-on");
    return { warned, texts, labels: await page.locator(".said.model .tag", { hasText: "goes on from your text" }).count() };
  },

  async stop({ page }) {
    await page.goto(`${base}/chat`);
    await page.getByLabel("Your message").fill(prompt);
    await page.getByLabel("Most new tokens").fill("4000");
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".said.model.streaming").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText("Stopped. What was delivered is paid.").waitFor();
    await page.getByRole("button", { name: "Send" }).waitFor();
    return { text: await page.locator(".said.model .text").textContent() };
  },

  // The page stays open while machines come and go; what a person has opened or reached stays so.
  async live({ page }) {
    await page.goto(`${base}/network`);
    const ticks = () => page.evaluate(() => window.ticks ?? 0);
    await page.evaluate(() => document.addEventListener("htmx:sse:after:message", () => { window.ticks = (window.ticks ?? 0) + 1; }));
    await page.locator("details > summary").first().click();
    await page.locator("tbody a[href^='/miners/']").first().focus();
    const focused = await page.evaluate(() => document.activeElement.getAttribute("href"));
    await page.waitForFunction(() => (window.ticks ?? 0) > 0);
    writeFileSync(ready, "");
    await page.locator(".tag", { hasText: "gone" }).waitFor({ timeout: 30000 });
    const before = await ticks();
    await page.waitForFunction((least) => (window.ticks ?? 0) > least, before);
    return {
      ticks: await ticks(), focused, open: await page.locator("details").first().evaluate((element) => element.open),
      kept: await page.evaluate(() => document.activeElement.getAttribute("href")),
    };
  },

  async job({ page }) {
    await page.goto(`${base}/jobs`);
    await page.getByLabel(/A file of requests/).setInputFiles(file);
    await page.getByRole("button", { name: "Upload and start" }).click();
    await page.waitForURL(/\/jobs\/batch_/);
    await page.locator(".tag", { hasText: "completed" }).waitFor({ timeout: 90000 });
    await shot(page, "done");
    const download = page.waitForEvent("download");
    await page.getByRole("link", { name: "Answers" }).click();
    const path = await (await download).path();
    return { lines: readFileSync(path, "utf8").trim().split("\n"), url: page.url() };
  },
};

await tell(async () => {
  const session = await open({ viewport: { width: 1280, height: 900 } });
  await session.page.goto(login);
  const found = await flows[flow](session);
  await session.browser.close();
  return { ...found, told: session.told };
});
