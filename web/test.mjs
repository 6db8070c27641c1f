// Checks the types of the pages' sources and runs their unit tests: bundles tests/*.test.ts and hands
// them to Node's test runner.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const run = (...flags) => spawnSync(process.execPath, flags, { cwd: here, stdio: 'inherit' }).status ?? 1;

let failed = run('node_modules/typescript/bin/tsc', '--noEmit');
const out = mkdtempSync(join(tmpdir(), 'protean-web-'));
try {
  const tests = readdirSync(join(here, 'tests')).filter((name) => name.endsWith('.test.ts'));
  await build({
    entryPoints: tests.map((name) => join(here, 'tests', name)), outdir: out, outExtension: { '.js': '.mjs' },
    bundle: true, platform: 'node', format: 'esm', logLevel: 'error', jsx: 'automatic', jsxImportSource: 'preact',
  });
  failed ||= run('--test', ...tests.map((name) => join(out, name.replace(/\.ts$/, '.mjs'))));
} finally {
  rmSync(out, { recursive: true, force: true });
}
process.exit(failed);
