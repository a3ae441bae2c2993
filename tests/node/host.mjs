// A host page around one view, by the extension's own bridge: bundled for the browser by view.mjs.
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

window.show = async ({ html, input, result, theme, capabilities }) => {
  document.documentElement.style.colorScheme = theme;
  document.body.style.cssText = `margin:0;background:${theme === "dark" ? "#111" : "#fff"}`;
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  frame.style.cssText = "border:0;width:100%;height:100px;display:block";
  document.body.replaceChildren(frame);
  const seen = (window.seen = { sizes: [], downloads: [], links: [] });
  const bridge = new AppBridge(null, { name: "test-host", version: "1" }, capabilities, { hostContext: { theme } });
  bridge.onsizechange = ({ height }) => {
    seen.sizes.push(height);
    frame.style.height = `${height}px`;
  };
  bridge.ondownloadfile = async ({ contents }) => {
    seen.downloads.push(contents);
    return {};
  };
  bridge.onopenlink = async ({ url }) => {
    seen.links.push(url);
    return {};
  };
  const ready = new Promise((resolve) => (bridge.oninitialized = resolve));
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.srcdoc = html;
  await ready;
  await bridge.sendToolInput({ arguments: input });
  await bridge.sendToolResult(result);
};
