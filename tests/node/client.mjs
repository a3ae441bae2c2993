// The TypeScript SDK as a client: node client.mjs URL TOOL ARGUMENTS; prints the names of the tools and the result as JSON.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, tool, given] = process.argv.slice(2);
const client = new Client({ name: "test", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools } = await client.listTools();
const result = await client.callTool({ name: tool, arguments: JSON.parse(given) });
console.log(JSON.stringify({ tools: tools.map((one) => one.name), result }));
await client.close();
