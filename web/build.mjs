// Builds the pages and writes them as C++: build.mjs FOLDER makes FOLDER/page_assets.cc, with vite's
// output in FOLDER/dist. Runs `npm ci` first unless node_modules holds what package-lock.json names,
// so that a second build needs no network.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, extname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const here = dirname(fileURLToPath(import.meta.url));
const folder = resolve(process.argv[2] ?? join(here, 'build'));
const dist = join(folder, 'dist');

function isInstalled() {
  try {
    const locked = JSON.parse(readFileSync(join(here, 'package-lock.json'))).packages;
    const present = JSON.parse(readFileSync(join(here, 'node_modules/.package-lock.json'))).packages;
    return Object.entries(locked).every(([path, wanted]) =>
      path === '' || (present[path] ? present[path].version === wanted.version : wanted.optional));
  } catch {
    return false;
  }
}

function run(command, ...flags) {
  const done = spawnSync(command, flags, { cwd: here, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  if (done.error || done.status !== 0) {
    console.error(done.error?.message ?? done.stdout + done.stderr);
    console.error(`web: ${command} ${flags.join(' ')} failed; -DPROTEAN_WEB=OFF builds without the pages`);
    process.exit(1);
  }
}

// Returns the files that a page loads, itself included.
function filesOf(page, manifest) {
  const files = new Set([page]);
  const add = (name) => {
    const chunk = manifest[name];
    for (const file of [chunk.file, ...(chunk.css ?? []), ...(chunk.assets ?? [])]) files.add(file);
    (chunk.imports ?? []).forEach(add);
  };
  add(page);
  for (const [, href] of readFileSync(join(dist, page), 'utf8').matchAll(/(?:href|src)="\.\/([^"]+)"/g)) files.add(href);
  return files;
}

const types = {
  '.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8', '.svg': 'image/svg+xml',
};

// A C++ string literal of the bytes. Octal escapes have three digits, so that no digit joins them.
function literal(bytes) {
  let text = '';
  for (const byte of bytes) {
    const plain = byte >= 0x20 && byte < 0x7f && byte !== 0x22 && byte !== 0x5c && byte !== 0x3f;
    text += plain ? String.fromCharCode(byte) : `\\${byte.toString(8).padStart(3, '0')}`;
  }
  return `std::string_view("${text}", ${bytes.length})`;
}

if (!isInstalled()) run('npm', 'ci', '--no-audit', '--no-fund', '--loglevel=error');
run(process.execPath, join(here, 'node_modules/vite/bin/vite.js'), 'build', '--outDir', dist, '--emptyOutDir', '--logLevel=warn');

const manifest = JSON.parse(readFileSync(join(dist, 'manifest.json')));
const pages = { index: filesOf('index.html', manifest), dashboard: filesOf('dashboard.html', manifest) };
let compressed = 0;
const rows = [...new Set([...pages.index, ...pages.dashboard])].sort().map((file) => {
  const bytes = readFileSync(join(dist, file));
  const packed = gzipSync(bytes, { level: 9 });
  compressed += packed.length;
  const type = types[extname(file)];
  if (!type) throw new Error(`${file}: give its content type in build.mjs`);
  return `    {"${file}", "${type}", "${createHash('sha256').update(bytes).digest('hex').slice(0, 16)}",
     ${pages.index.has(file)}, ${pages.dashboard.has(file)},
     ${literal(bytes)},
     ${literal(packed)}},`;
});
writeFileSync(join(folder, 'page_assets.cc'), `// Written by web/build.mjs.
#include "server/page/page_assets.h"

namespace protean {
namespace {
constexpr PageAsset kAssets[] = {
${rows.join('\n')}
};
}  // namespace

std::span<const PageAsset> page_assets() {
  return kAssets;
}
}  // namespace protean
`);
console.log(`web: ${rows.length} files, ${(compressed / 1000).toFixed(0)} kB compressed`);
