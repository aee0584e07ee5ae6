// Bundles src/ into one script and one style sheet inside the Python package.
//
//   node build.mjs            writes shared/glasshouse/view/assets
//   node build.mjs --out DIR  writes elsewhere, to compare with the committed files
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync, mkdirSync, copyFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const flag = process.argv.indexOf("--out");
const out = flag > 0 ? process.argv[flag + 1] : join(here, "..", "glasshouse", "view", "assets");
mkdirSync(out, { recursive: true });

await build({
  entryPoints: [join(here, "src", "main.ts")],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  outfile: join(out, "app.js"),
  absWorkingDir: here,
});
await build({
  entryPoints: [join(here, "src", "style.css")],
  bundle: true,
  minify: true,
  target: "es2022",
  charset: "utf8",
  outfile: join(out, "app.css"),
  absWorkingDir: here,
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(out, name));

// sources.json lets a test without Node see that the built files belong to these sources.
const files = (folder) =>
  readdirSync(folder, { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? files(join(folder, entry.name)) : [join(folder, entry.name)],
  );
const digest = (file) => createHash("sha256").update(readFileSync(file)).digest("hex");
const sources = [...files(join(here, "src")), join(here, "build.mjs"), join(here, "package-lock.json")];
const built = ["app.js", "app.css", "index.html", "icon.svg"].map((name) => join(out, name));
const listed = (paths, base) =>
  Object.fromEntries(paths.map((path) => [relative(base, path), digest(path)]).sort());
writeFileSync(
  join(out, "sources.json"),
  JSON.stringify({ sources: listed(sources, here), built: listed(built, out) }, null, 1) + "\n",
);
