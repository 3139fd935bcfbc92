// Bundles each widget (src/NAME.tsx, src/NAME.css) into ../static, and the extension of JupyterLab (src/toolbar) into
// ../labextension/static. Both are committed.
// It knows names and esbuild's options only; the same sources give the same bytes.
import { readdirSync } from "node:fs";
import { build } from "esbuild";

const sources = readdirSync("src").filter((file) => /^[a-z_]+\.(tsx|css)$/.test(file));
const options = { bundle: true, minify: true, target: "es2020", charset: "utf8", legalComments: "none", logLevel: "info" };
await build({ ...options, entryPoints: sources.map((file) => `src/${file}`), outdir: "../static", format: "esm" });
await build({
  ...options,
  entryPoints: { remoteEntry: "src/toolbar/extension.ts" },
  outdir: "../labextension/static",
  format: "iife",
  loader: { ".css": "text" },
});
