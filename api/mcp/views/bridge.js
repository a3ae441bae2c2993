// The view's end of the MCP Apps protocol (2026-01-26): JSON-RPC with the host by messages between windows, nothing else.
const host = (() => {
  const waiting = new Map();
  let number = 0;
  let onResult = () => {};
  let able = {};
  const send = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const request = (method, params) =>
    new Promise((resolve, reject) => {
      waiting.set(++number, { resolve, reject });
      send({ id: number, method, params });
    });
  const themed = (context) => {
    if (context?.theme) document.documentElement.dataset.theme = context.theme;
    for (const [name, value] of Object.entries(context?.styles?.variables ?? {}))
      document.documentElement.style.setProperty(name, value);
  };
  addEventListener("message", (event) => {
    const message = event.data;
    if (event.source !== parent || message?.jsonrpc !== "2.0") return;
    if (message.method === undefined) {
      const one = waiting.get(message.id);
      waiting.delete(message.id);
      if (message.error) one?.reject(new Error(message.error.message));
      else one?.resolve(message.result);
    } else if (message.method === "ui/notifications/tool-result") onResult(message.params);
    else if (message.method === "ui/notifications/host-context-changed") themed(message.params);
    else if (message.id !== undefined)
      send(
        message.method === "ping" || message.method === "ui/resource-teardown"
          ? { id: message.id, result: {} }
          : { id: message.id, error: { code: -32601, message: "Method not found" } },
      );
  });
  return {
    async start(show) {
      onResult = show;
      const said = await request("ui/initialize", {
        appInfo: { name: "spillbox", version: "1" },
        appCapabilities: {},
        protocolVersion: "2026-01-26",
      });
      able = said.hostCapabilities ?? {};
      themed(said.hostContext);
      send({ method: "ui/notifications/initialized" });
      new ResizeObserver(() => {
        const { width, height } = document.documentElement.getBoundingClientRect();
        send({ method: "ui/notifications/size-changed", params: { width: Math.ceil(width), height: Math.ceil(height) } });
      }).observe(document.documentElement);
    },
    can: (what) => able[what] !== undefined,
    download: (link) => request("ui/download-file", { contents: [link] }),
    open: (url) => request("ui/open-link", { url }),
  };
})();
