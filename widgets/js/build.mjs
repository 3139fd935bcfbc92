// Bundles each widget (src/NAME.ts, src/NAME.css) into ../static, which is committed.
// It knows names and esbuild's options only; the same sources give the same bytes.
import { readdirSync } from "node:fs";
import { build } from "esbuild";

const sources = readdirSync("src").filter((file) => /^[a-z_]+\.(ts|css)$/.test(file));
await build({
  entryPoints: sources.map((file) => `src/${file}`),
  outdir: "../static",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2020",
  charset: "utf8",
  legalComments: "none",
  logLevel: "info",
});
