// Makes fingerprints of the built-in model that say what a test needs.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync } from 'node:fs';
import { join } from 'node:path';
import { builtin, program } from './server.mjs';

// Costs of layers in microseconds: of a step, and of each of its tokens. A factor of what was measured would not do, since on
// a busy machine a term that is measured may be 0.
export const layerCosts = (step, token) =>
  `{"step_us": ${step}, "token_us": ${token}, "more_token_us": ${token}, "tile_us": 0, "pass_tokens": 0}`;

// Returns a folder, in `scratch`, of fingerprints whose layers cost what a line of Python says and whose sums among devices
// take 5 us, and in which KV at int8 is faster than at bf16, so that every machine chooses the same configurations. The costs serve for forms that change
// too, which are then not measured.
export function editedCache(scratch, name, layers) {
  const folder = join(scratch, name);
  const cache = join(scratch, 'cache');
  const planned = spawnSync(program, ['plan', builtin, '--variant-cache', cache, '--devices', '2', '--json'], { encoding: 'utf8' });
  assert.equal(planned.status, 0, planned.stderr);
  cpSync(cache, folder, { recursive: true });
  const edited = spawnSync('python3', ['-c', editing(layers), join(folder, 'profiles.sqlite')], { encoding: 'utf8' });
  assert.equal(edited.status, 0, edited.stderr);
  return folder;
}

const editing = (layers) => `
import json, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
def edit(model, threads, precisions, text):
    cost = json.loads(text)
    for name, of in cost["layers"].items():
        ${layers}
        of["sums"] = {"us": 5, "bytes_per_us": 4000}
    def keep(kv):
        which = [model, kv, threads, precisions]
        where = "WHERE small_pages = 0 AND model = ? AND kv = ? AND threads = ? AND precisions = ?"
        database.execute("UPDATE step_cost SET cost = ? " + where, [json.dumps(cost), *which])
        database.execute("INSERT OR REPLACE INTO step_cost SELECT model, cpu, threads, kv, 1, version, format, origin, precisions, cost, saved "
                         "FROM step_cost " + where, which)
    keep("bf16")
    cost["step"]["fixed_us"] = 0
    for of in cost["layers"].values():
        of["step_us"] /= 2
    keep("int8")
for row in database.execute("SELECT model, threads, precisions, cost FROM step_cost WHERE small_pages = 0 AND kv = 'bf16'").fetchall():
    edit(*row)
database.commit()`;
