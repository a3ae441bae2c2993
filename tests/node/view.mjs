// Shows the view of a tool's result in Chromium: node view.mjs URL TOOL ARGUMENTS OPTIONS; prints what was seen as JSON.
// OPTIONS: {"theme", "capabilities", "screenshot", "width", "steps": [["click" | "type", selector, text]]}
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { buildSync } from "esbuild";
import { chromium } from "playwright-core";

const [url, tool, given, said] = process.argv.slice(2);
const options = JSON.parse(said);
const extensions = { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } };
const client = new Client({ name: "test", version: "1" }, { capabilities: { extensions } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools } = await client.listTools();
const input = JSON.parse(given);
const result = await client.callTool({ name: tool, arguments: input });
const uri = tools.find((one) => one.name === tool)._meta.ui.resourceUri;
const { contents } = await client.readResource({ uri });
await client.close();

const bundle = buildSync({ entryPoints: [new URL("host.mjs", import.meta.url).pathname], bundle: true, write: false, format: "iife" });
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: options.width ?? 760, height: 520 }, deviceScaleFactor: 2 });
const requests = [];
const faults = [];
page.on("request", (request) => requests.push(request.url()));
page.on("pageerror", (fault) => faults.push(String(fault)));
page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
await page.setContent("<!doctype html><html><body></body></html>");
await page.addScriptTag({ content: bundle.outputFiles[0].text });
const capabilities = options.capabilities ?? { downloadFile: {}, openLinks: {} };
await page.evaluate((shown) => window.show(shown), { html: contents[0].text, input, result, theme: options.theme ?? "light", capabilities });
const frame = page.frameLocator("iframe");
await frame.locator("body").waitFor();
await page.waitForFunction(() => window.seen.sizes.length > 0);
for (const [what, selector, text] of options.steps ?? []) {
  if (what === "click") await frame.locator(selector).click();
  else await frame.locator(selector).fill(text);
}
await page.waitForTimeout(200);
if (options.screenshot) await page.locator("iframe").screenshot({ path: options.screenshot });
const text = await frame.locator("body").innerText();
const cells = await frame.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
const seen = await page.evaluate(() => window.seen);
await browser.close();
console.log(JSON.stringify({ mimeType: contents[0].mimeType, text, cells, seen, requests, faults, result }));
