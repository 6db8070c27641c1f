// Models by name: the real program pulls over TLS from a hub of our own, which also breaks, lies and refuses.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, lstatSync, mkdirSync, readFileSync, readdirSync, readlinkSync, rmSync, statSync, symlinkSync, truncateSync,
  writeFileSync } from 'node:fs';
import { basename, join, relative } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { bigFile, commitOf, file, Hub, Proxy } from './hub.mjs';
import { builtin, program, random, Server, sleep } from './server.mjs';

const first = commitOf('first');
const second = commitOf('second');
// The pull that is killed again and again: 2 GB where that is asked for.
const bytes = Number(process.env.PROTEAN_HUB_BYTES ?? 48_000_000);

const of = (name, options) => file(readFileSync(join(builtin, name)), options);
const tokenizer = { 'tokenizer.json': of('tokenizer.json'), 'tokenizer_config.json': of('tokenizer_config.json') };
const model = () => ({ 'config.json': of('config.json'), 'generation_config.json': of('generation_config.json'), ...tokenizer,
  'model.safetensors': of('model.safetensors', { lfs: true }) });
// Three large files under an index. Their bytes are no tensors: they are pulled, never opened.
const shard = (i) => `model-0000${i}-of-00003.safetensors`;
const sharded = () => ({ 'config.json': of('config.json'), ...tokenizer,
  'model.safetensors.index.json': file(JSON.stringify({ weight_map: { a: shard(1), b: shard(2), c: shard(3) } })),
  [shard(1)]: bigFile(Math.round(bytes / 2), 1), [shard(2)]: bigFile(Math.round(bytes / 3), 2), [shard(3)]: bigFile(Math.round(bytes / 6), 3) });
const extras = { 'README.md': file('# A model'), '.gitattributes': file('x'), 'pytorch_model.bin': bigFile(1_000_000, 4),
  'original/consolidated.00.pth': bigFile(1_000_000, 5), 'onnx/model.onnx': bigFile(1_000_000, 6),
  'consolidated.safetensors': bigFile(1_000_000, 7) };

const repo = (files, more = {}) => ({ refs: { main: first }, commits: { [first]: files }, ...more });
let hub;
const repos = () => ({
  'acme/tiny': repo({ ...model(), ...extras }),
  'acme/large': repo(sharded()),
  'acme/gated': repo(model(), { gated: 'manual', token: 'hf_member' }),
  'acme/private': repo(model(), { private: true, token: 'hf_member' }),
  'acme/quants': repo({ 'README.md': file('x'), 'quants-Q4_K_M.gguf': bigFile(300_000, 8), 'quants-UD-Q4_K_M.gguf': bigFile(300_001, 9),
    'quants-Q8_0.gguf': bigFile(500_000, 10), 'mmproj-Q8_0.gguf': bigFile(100, 11),
    'big/quants-BF16-00001-of-00002.gguf': bigFile(100, 12), 'big/quants-BF16-00002-of-00002.gguf': bigFile(100, 13) }),
});

// Runs the program; its exit, or its death by `kill`, which is given each piece of its standard error.
function run(args, { env = hub.environment(), cwd, watch } = {}) {
  return new Promise((settle) => {
    const child = spawn(program, args, { env, cwd, stdio: ['ignore', 'pipe', 'pipe'] });
    let stdout = '';
    let stderr = '';
    child.stdout.setEncoding('utf8').on('data', (text) => { stdout += text; });
    child.stderr.setEncoding('utf8').on('data', (text) => { stderr += text; });
    watch?.(child);
    child.on('close', (status, signal) => settle({ status, signal, stdout, stderr }));
  });
}
const pull = (name, options) => run(['pull', name], options);

// The last line of standard error: the error.
const complaint = ({ stderr }) => stderr.trim().split('\n').at(-1);

async function fails(result, pattern) {
  const { status, stdout, stderr } = await result;
  assert.equal(stdout, '');
  assert.equal(status, 2, stderr);
  assert.match(complaint({ stderr }), pattern);
  assert.match(complaint({ stderr }), /^protean: /);
}

// Every path below a folder: links with their targets, files with their sizes.
function tree(folder, skip = () => false) {
  const lines = [];
  const walk = (at) => {
    for (const name of readdirSync(at)) {
      const path = join(at, name);
      const info = lstatSync(path);
      if (skip(relative(folder, path))) continue;
      if (info.isDirectory()) walk(path);
      else lines.push(`${relative(folder, path)}${info.isSymbolicLink() ? ` -> ${readlinkSync(path)}` : ` ${info.size}`}`);
    }
  };
  walk(folder);
  return lines.sort();
}

const sha256 = (path) => createHash('sha256').update(readFileSync(path)).digest('hex');
const cacheOf = (env, name) => join(env.HF_HOME, 'hub', `models--${name.replace('/', '--')}`);
const draftsIn = (blobs) => (existsSync(blobs) ? readdirSync(blobs) : []).filter((name) => name.endsWith('.incomplete')).map((name) => join(blobs, name));
const begun = (blobs) => draftsIn(blobs).some((draft) => statSync(draft, { throwIfNoEntry: false })?.size > 0);

// All files of a repository are in the cache, whole and right, and nothing half done is left.
function checkCache(env, name, files, commit = first) {
  for (const [path, { digest, size, lfs }] of Object.entries(files)) {
    const place = join(cacheOf(env, name), 'snapshots', commit, path);
    assert.equal(readlinkSync(place), join('../'.repeat(1 + path.split('/').length), 'blobs', digest));
    assert.equal(statSync(place).size, size);
    if (lfs) assert.equal(sha256(place), digest);
  }
  const blobs = readdirSync(join(cacheOf(env, name), 'blobs'));
  assert.deepEqual(blobs.sort(), Object.values(files).map((each) => each.digest).sort());
}

describe('models by name', () => {
  before(async () => { hub = await Hub.start(repos()); });
  after(() => hub.close());
  const withFault = async (fault, act) => {
    hub.fault = fault;
    hub.requests = [];
    return act().finally(() => { hub.fault = undefined; });
  };

  it('pulls what is needed, in the layout of huggingface_hub', async () => {
    const env = hub.environment();
    hub.requests = [];
    const { status, stdout, stderr } = await pull('acme/tiny', { env });
    assert.equal(status, 0, stderr);
    const folder = cacheOf(env, 'acme/tiny');
    assert.equal(stdout, `${join(folder, 'snapshots', first)}\n`);
    checkCache(env, 'acme/tiny', model());
    assert.equal(readFileSync(join(folder, 'refs/main'), 'utf8'), first);
    assert.match(stderr, /acme\/tiny at [0-9a-f]{12}: 24\.\d MiB in 5 files, 24\.\d MiB to fetch, .* free/);
    const digests = Object.values(model()).map((each) => each.digest);
    assert.deepEqual(tree(join(env.HF_HOME, 'hub')), [
      ...digests.map((digest) => `.locks/models--acme--tiny/${digest}.lock 0`),
      `CACHEDIR.TAG ${statSync(join(env.HF_HOME, 'hub/CACHEDIR.TAG')).size}`,
      ...Object.values(model()).map(({ digest, size }) => `models--acme--tiny/blobs/${digest} ${size}`),
      'models--acme--tiny/refs/main 40',
      ...Object.entries(model()).map(([path, { digest }]) => `models--acme--tiny/snapshots/${first}/${path} -> ../../blobs/${digest}`),
    ].sort());
    assert.ok(hub.requests.every(({ url }) => !/README|pytorch|original|onnx|consolidated/.test(url)));
    // Once more: the listing is asked for, and no file.
    hub.requests = [];
    assert.equal((await pull('acme/tiny', { env })).stdout, stdout);
    assert.equal(hub.requests.length, 1);
  });

  it('serves, inspects and continues texts by the same names, and asks no hub if the cache has the model', async () => {
    const env = hub.environment();
    const inspected = await run(['inspect', 'acme/tiny'], { env });
    assert.match(inspected.stdout, /^model +acme\/tiny$/m, inspected.stderr);
    hub.requests = [];
    const continued = await run(['generate', 'acme/tiny', '--prompt', 'Once', '--max-tokens', '8', '--temperature', '0'], { env });
    assert.equal(continued.status, 0, continued.stderr);
    const direct = await run(['generate', builtin, '--prompt', 'Once', '--max-tokens', '8', '--temperature', '0'], { env });
    assert.equal(continued.stdout, direct.stdout);
    const server = await Server.startWith({ path: 'acme/tiny@main', env: { ...env, HF_HUB_OFFLINE: '1' } });
    const models = await (await fetch(`${server.url}/v1/models`)).json();
    assert.deepEqual(models.data.map(({ id }) => id), ['acme/tiny']);
    assert.equal(await server.stop(), 0);
    assert.equal(hub.requests.length, 0);
  });

  it('takes a path that exists for a path', async () => {
    const env = hub.environment();
    const folder = join(env.HOME, 'acme');
    mkdirSync(folder);
    symlinkSync(builtin, join(folder, 'tiny'));
    hub.requests = [];
    const { status, stdout, stderr } = await run(['inspect', 'acme/tiny'], { env, cwd: env.HOME });
    assert.equal(status, 0, stderr);
    assert.match(stdout, /^model +tiny$/m);
    assert.equal(hub.requests.length, 0);
  });

  it('goes on after ten kills at random bytes where the files end, and ends with the right sums', async () => {
    const env = hub.environment();
    const draw = random(20);
    const files = sharded();
    const blobs = join(cacheOf(env, 'acme/large'), 'blobs');
    let [killed, wentOn] = [0, 0];
    // Pulls. The first request for each file must ask for what its draft lacks.
    const pullOn = async (watch) => {
      const sizes = new Map(draftsIn(blobs).map((draft) => [basename(draft, '.incomplete'), statSync(draft).size]));
      hub.requests = [];
      const result = await pull('acme/large', { env, watch });
      for (const { digest } of Object.values(files)) {
        const asked = hub.requests.find(({ where, url }) => where === 'storage' && url.startsWith(`/${digest}?`));
        const size = sizes.get(digest) ?? 0;
        if (asked) assert.equal(asked.range, size > 0 ? `bytes=${size}-` : undefined);
        wentOn += asked?.range ? 1 : 0;
      }
      return result;
    };
    for (let round = 0; round < 10; ++round) {
      // Kills the process once that many bytes of this round have left the storage.
      const mark = 1 + draw(Math.floor(bytes / 12));
      let left = mark;
      let child;
      hub.fault = async (request, response, what) => {
        if (!what.storage) return false;
        await hub.send(request, response, what.file, {}, { change: (piece) => {
          left -= piece.length;
          if (left < 0 && (round < 9 || begun(blobs))) child.kill('SIGKILL');  // the last kill cuts a file
          return piece;
        } });
        return true;
      };
      const { signal } = await pullOn((started) => { child = started; });
      killed += signal === 'SIGKILL' ? 1 : 0;
    }
    hub.fault = undefined;
    assert.ok(killed >= 8, `${killed} kills`);
    const { status, stderr } = await pullOn();
    assert.equal(status, 0, stderr);
    checkCache(env, 'acme/large', files);
    assert.ok(wentOn > 0, 'a file had begun at one of the kills');
  });

  it('keeps what came at Ctrl-C, and goes on from there', async () => {
    const env = hub.environment();
    const blobs = join(cacheOf(env, 'acme/large'), 'blobs');
    let child;
    hub.fault = async (request, response, what) => {
      if (!what.storage) return false;
      await hub.send(request, response, what.file, {}, { upTo: Math.min(what.file.size, 3_000_000) - 1 });
      while (!begun(blobs)) await sleep(10);  // sent is not yet written
      child.kill('SIGINT');
      return true;
    };
    const stopped = await pull('acme/large', { env, watch: (started) => { child = started; } });
    assert.equal(stopped.status, 130);
    assert.match(complaint(stopped), /acme\/large: stopped; what was fetched is kept/);
    assert.ok(begun(blobs));
    hub.fault = undefined;
    hub.requests = [];
    assert.equal((await pull('acme/large', { env })).status, 0);
    assert.ok(hub.requests.some(({ range }) => range !== undefined));
    checkCache(env, 'acme/large', sharded());
  });

  it('goes on when connections break, answers are slow, and the hub is busy', async () => {
    const env = { ...hub.environment(), HF_HUB_DOWNLOAD_TIMEOUT: '5' };
    const seen = new Map();
    const fault = async (request, response, what) => {
      const key = what.path ?? 'listing';
      const times = (seen.get(key) ?? 0) + 1;
      seen.set(key, times);
      if (what.api) {
        if (times > 3) return false;
        if (times === 1) request.socket.destroy();
        else hub.refuse(response.setHeader('Retry-After', '1'), times === 2 ? 429 : 503, '', 'busy');
        return true;
      }
      if (!what.storage || times > 2) return false;
      if (times === 1) await hub.send(request, response, what.file, {}, { upTo: Math.floor(what.file.size / 2) });
      else response.writeHead(206, { 'Content-Range': `bytes 0-1/2` }).flushHeaders();  // and then silence
      return true;
    };
    hub.repos['acme/breaks'] = repo({ ...model(), 'model.safetensors': sharded()[shard(3)] });
    const { status, stderr } = await withFault(fault, () => pull('acme/breaks', { env }));
    assert.equal(status, 0, stderr);
    assert.match(stderr, /busy.*trying again in/);
    assert.match(stderr, /it sent nothing for 5 s; trying again in/);
    checkCache(env, 'acme/breaks', hub.repos['acme/breaks'].commits[first]);
  });

  it('fetches a wrong file once more, and names it if it is wrong again', async () => {
    const files = model();
    for (const [wrongTimes, outcome] of [[1, 0], [2, 2]]) {
      const env = hub.environment();
      let times = 0;
      const fault = async (request, response, what) => {
        if (!what.storage || ++times > wrongTimes) return false;
        await hub.send(request, response, what.file, {}, { change: (piece, at) => {
          const wrong = Buffer.from(piece);
          if (at === 0) wrong[100] ^= 1;
          return wrong;
        } });
        return true;
      };
      const result = await withFault(fault, () => pull('acme/tiny', { env }));
      assert.equal(result.status, outcome, result.stderr);
      assert.match(result.stderr, /model\.safetensors: its SHA-256 is [0-9a-f]{64}, but the hub states [0-9a-f]{64}; it is fetched again/);
      if (outcome === 0) checkCache(env, 'acme/tiny', files);
      else assert.match(complaint(result), /^protean: model\.safetensors of acme\/tiny came wrong twice: its SHA-256 is /);
      assert.equal(existsSync(join(cacheOf(env, 'acme/tiny'), 'blobs', files['model.safetensors'].digest)), outcome === 0);
    }
  });

  it('is not led to wrong bytes by ranges: of other offsets, ignored, or beyond the end', async () => {
    const { digest, size } = model()['model.safetensors'];
    const half = async (env) => {
      await pull('acme/tiny', { env });
      const blob = join(cacheOf(env, 'acme/tiny'), 'blobs', digest);
      writeFileSync(`${blob}.incomplete`, readFileSync(blob).subarray(0, 1_000_000));
      rmSync(blob);
    };
    const answers = {
      'another offset': (request, response, what) => response.writeHead(206, { 'Content-Range': `bytes 5-${size - 1}/${size}`, 'Content-Length': size - 5 })
        .end(what.file.read(5, size)),
      'the whole file': (request, response, what) => response.writeHead(200, { 'Content-Length': size }).end(what.file.read(0, size)),
      'not satisfiable': (request, response) => response.writeHead(416).end(),
      'more than the file': (request, response, what) => response.writeHead(200).end(Buffer.concat([what.file.read(0, size), Buffer.from('x')])),
    };
    for (const [how, answer] of Object.entries(answers)) {
      const env = hub.environment();
      await half(env);
      let times = 0;
      const fault = (request, response, what) => what.storage && ++times === 1 && answer(request, response, what);
      const { status, stderr } = await withFault(fault, () => pull('acme/tiny', { env }));
      assert.equal(status, 0, `${how}: ${stderr}`);
      checkCache(env, 'acme/tiny', model());
    }
    const env = hub.environment();
    await half(env);
    truncateSync(join(cacheOf(env, 'acme/tiny'), 'blobs', `${digest}.incomplete`), size + 10);  // longer than the file
    assert.equal((await pull('acme/tiny', { env })).status, 0);
    checkCache(env, 'acme/tiny', model());
  });

  it('is harmless when processes pull the same at once', async () => {
    const env = hub.environment();
    hub.requests = [];
    const results = await Promise.all([1, 2, 3].map(() => pull('acme/large', { env })));
    for (const { status, stderr } of results) assert.equal(status, 0, stderr);
    checkCache(env, 'acme/large', sharded());
    assert.equal(hub.requests.filter(({ where }) => where === 'storage').length, 3, 'each large file was sent once');
  });

  it('fetches files of one commit even if the branch moves meanwhile, and only what is new later', async () => {
    const env = hub.environment();
    const newer = { ...model(), 'config.json': file(`${readFileSync(join(builtin, 'config.json'), 'utf8')}\n`) };
    hub.repos['acme/moves'] = { refs: { main: first, 'v1.0': first }, commits: { [first]: model(), [second]: newer } };
    const fault = (request, response, what) => {
      if (!what.api) hub.repos['acme/moves'].refs.main = second;
      return false;
    };
    const pulled = await withFault(fault, () => pull('acme/moves', { env }));
    assert.equal(pulled.status, 0, pulled.stderr);
    checkCache(env, 'acme/moves', model());
    hub.requests = [];
    const later = await pull('acme/moves', { env });
    assert.match(later.stdout, new RegExp(`/snapshots/${second}\n$`));
    assert.equal(hub.requests.filter(({ where }) => where === 'storage').length, 0);
    assert.match((await pull('acme/moves@v1.0', { env })).stdout, new RegExp(`/snapshots/${first}\n$`));
    assert.match((await pull(`acme/moves@${second}`, { env })).stdout, new RegExp(`/snapshots/${second}\n$`));
    // Removing one revision leaves what the other one uses.
    assert.equal((await run(['rm', 'acme/moves@v1.0'], { env })).status, 0);
    checkCache(env, 'acme/moves', newer, second);
    assert.ok(!existsSync(join(cacheOf(env, 'acme/moves'), 'refs/v1.0')));
  });

  it('chooses one GGUF of a repository', async () => {
    const env = hub.environment();
    for (const [tag, name] of [['Q4_K_M', 'quants-Q4_K_M.gguf'], ['q8_0', 'quants-Q8_0.gguf'], ['quants-UD-Q4_K_M.gguf', 'quants-UD-Q4_K_M.gguf'],
      ['BF16', 'big/quants-BF16-00001-of-00002.gguf']]) {
      const { status, stdout, stderr } = await pull(`acme/quants:${tag}`, { env });
      assert.equal(status, 0, stderr);
      assert.equal(stdout, `${join(cacheOf(env, 'acme/quants'), 'snapshots', first, name)}\n`);
    }
    assert.equal(readdirSync(join(cacheOf(env, 'acme/quants'), 'blobs')).length, 5);
    await fails(pull('acme/quants', { env }), /acme\/quants has several models: choose one, such as acme\/quants:.*; it has .*Q4_K_M/);
    await fails(pull('acme/quants:Q2_K', { env }), /acme\/quants has no GGUF called Q2_K; it has .*quants-Q8_0\.gguf/);
    await fails(pull('acme/tiny:Q4_K_M', { env }), /acme\/tiny has no GGUF: leave out ':Q4_K_M'/);
  });

  it('lists, shows and removes what is there', async () => {
    const env = hub.environment();
    assert.equal((await run(['list'], { env })).stdout, '');
    await pull('acme/tiny', { env });
    await pull('acme/quants:Q8_0', { env });
    const listed = await run(['list'], { env });
    assert.match(listed.stdout, /^acme\/quants:quants-Q8_0\.gguf +[0-9a-f]{12} +488\.3 KiB\nacme\/tiny +[0-9a-f]{12} +24\.\d MiB$/m);
    const { models } = JSON.parse((await run(['list', '--json'], { env })).stdout);
    assert.deepEqual(models.map(({ name, commit, complete }) => [name, commit, complete]),
      [['acme/quants:quants-Q8_0.gguf', first, true], ['acme/tiny', first, true]]);
    const shown = await run(['show', 'acme/tiny'], { env });
    assert.match(shown.stdout, new RegExp(`^commit +${first} \\(main\\)$`, 'm'));
    assert.match(shown.stdout, /model\.safetensors +24\.5 MiB/);
    await fails(run(['show', 'acme/tinny'], { env }), /acme\/tinny is not in the cache .*: protean pull acme\/tinny fetches it/);
    assert.match((await run(['rm', 'acme/quants:q8_0'], { env })).stdout, /^removed acme\/quants:q8_0: 488\.3 KiB freed\n$/);
    assert.match((await run(['rm', 'acme/tiny'], { env })).stdout, /^removed acme\/tiny: 24\.\d MiB freed\n$/);
    assert.deepEqual(readdirSync(join(env.HF_HOME, 'hub')).sort(), ['.locks', 'CACHEDIR.TAG']);
    await fails(run(['rm', 'acme/tiny'], { env }), /acme\/tiny is not in the cache /);
  });

  it('does not remove what is being pulled', async () => {
    const env = hub.environment();
    let removed;
    const fault = async (request, response, what) => {
      if (what.storage) removed ??= await run(['rm', 'acme/tiny'], { env });
      return false;
    };
    assert.equal((await withFault(fault, () => pull('acme/tiny', { env }))).status, 0);
    assert.equal(removed.status, 2);
    assert.match(complaint(removed), /acme\/tiny: another process is fetching it/);
  });

  it('fetches again what is missing or damaged in the cache', async () => {
    const env = hub.environment();
    await pull('acme/tiny', { env });
    const snapshot = join(cacheOf(env, 'acme/tiny'), 'snapshots', first);
    const { digest } = model()['model.safetensors'];
    truncateSync(join(cacheOf(env, 'acme/tiny'), 'blobs', digest), 1000);
    assert.equal((await pull('acme/tiny', { env })).status, 0);
    checkCache(env, 'acme/tiny', model());
    // Another tool fetched only the tokenizer: what is missing is pulled, and offline that is an error.
    rmSync(join(snapshot, 'model.safetensors'));
    await fails(run(['inspect', 'acme/tiny'], { env: { ...env, HF_HUB_OFFLINE: '1' } }),
      /acme\/tiny is not whole in the cache .* \(model\.safetensors is missing\), and HF_HUB_OFFLINE is set/);
    assert.equal((await run(['inspect', 'acme/tiny'], { env })).status, 0);
  });

  it('says in one line what is wrong', async () => {
    const env = hub.environment();
    await pull('acme/tiny', { env });
    await fails(pull('acme/tinny', { env }), /there is no model acme\/tinny at https:.*, or it is private: did you mean acme\/tiny\?; a private one needs HF_TOKEN/);
    await fails(run(['serve', 'acme/tinny'], { env }), /acme\/tinny is no file or folder here; there is no model acme\/tinny at /);
    await fails(pull('acme/tiny@v9', { env }), /acme\/tiny has no revision v9/);
    await fails(pull('tiny', { env }), /'tiny' is not the name of a model: .*; write ORG\/NAME/);
    await fails(pull('acme/../tiny', { env }), /is not the name of a model/);
    await fails(pull('acme/gated', { env }), /acme\/gated is gated: accept its terms at https:.*\/acme\/gated, then set HF_TOKEN/);
    await fails(pull('acme/gated', { env: { ...env, HF_TOKEN: 'hf_right' } }),
      /acme\/gated is gated, and the token of HF_TOKEN has no access: accept its terms at /);
    await fails(pull('acme/tiny', { env: { ...env, HF_TOKEN: 'hf_wrong' } }), /refuses the token of HF_TOKEN: HTTP 401/);
    await fails(pull('acme/private', { env }), /there is no model acme\/private at .*, or it is private/);
    await fails(pull('acme/tiny', { env: { ...env, HF_HUB_OFFLINE: '1' } }), /acme\/tiny cannot be fetched: HF_HUB_OFFLINE is set/);
    await fails(run(['inspect', 'acme/tinny'], { env: { ...env, HF_HUB_OFFLINE: '1' } }),
      /acme\/tinny is not in the cache .*, and HF_HUB_OFFLINE is set: did you mean acme\/tiny\?/);
    await fails(pull('acme/tiny', { env: { ...env, HF_HUB_CACHE: '/proc/nothing' } }), /cannot write \/proc\/nothing/);
    await fails(pull('acme/tiny', { env: { ...env, HF_ENDPOINT: 'hub.example' } }), /HF_ENDPOINT: 'hub\.example' is not a usable URL/);
    const { SSL_CERT_FILE: _, ...strangers } = env;
    await fails(pull('acme/tiny', { env: strangers }), /localhost:\d+: its certificate is not trusted \(self.signed certificate\): SSL_CERT_FILE can name/);
    await fails(pull('acme/tiny', { env: { ...env, HF_ENDPOINT: env.HF_ENDPOINT.replace('localhost', '127.0.0.1') } }), /127\.0\.0\.1:\d+: its certificate does not name 127\.0\.0\.1: check the URL/);
    hub.listing = (body) => ({ ...body, siblings: body.siblings.map((each) => (each.lfs ? { ...each, lfs: { ...each.lfs, size: 9e15 } } : each)) });
    await fails(pull('acme/quants:Q8_0', { env }), /acme\/quants:Q8_0 needs [\d.]+ [TP]?\w+ more in .*, which has [\d.]+ \w+ free: make room, or set HF_HUB_CACHE/);
    hub.listing = undefined;
    const refused = (...why) => (request, response, { api, storage }) => !api && !storage && !hub.refuse(response, ...why, 'not for you');
    await fails(withFault(refused(403, ''), () => pull('acme/quants:Q8_0', { env })), /localhost:\d+ refuses access to acme\/quants: HTTP 403: not for you/);
    await fails(withFault(refused(404, 'EntryNotFound'), () => pull('acme/quants:Q8_0', { env })), /quants-Q8_0\.gguf of acme\/quants is not there: HTTP 404/);
    hub.fault = (request, response) => !hub.refuse(response.setHeader('Retry-After', '3600'), 429, '', 'too many');
    await fails(pull('acme/quants:Q8_0', { env }), /localhost:\d+ answers HTTP 429 to \/api\/models\/acme\/quants\/revision\/main: too many/);
    hub.fault = undefined;
  });

  it('gives a token to the hub alone', async () => {
    for (const source of ['HF_TOKEN', 'file']) {
      const env = hub.environment();
      if (source === 'file') writeFileSync(join(env.HF_HOME, 'token'), 'hf_member\n');
      else env.HF_TOKEN = 'hf_member';
      hub.requests = [];
      const { status, stderr } = await pull('acme/gated', { env });
      assert.equal(status, 0, stderr);
      for (const { where, authorization } of hub.requests) {
        assert.equal(authorization, where === 'hub' ? 'Bearer hf_member' : undefined);
      }
      assert.ok(!stderr.includes('hf_member'));
    }
  });

  it('reaches hubs through a proxy, and hosts of NO_PROXY without one', async () => {
    const proxy = await Proxy.start('user:pass word');
    const env = { ...hub.environment(), HTTPS_PROXY: `http://user:pass%20word@127.0.0.1:${proxy.port}` };
    const { status, stderr } = await pull('acme/tiny', { env });
    assert.equal(status, 0, stderr);
    assert.deepEqual([...new Set(proxy.targets)].sort(), [hub.url, hub.storageUrl].map((url) => url.slice(8)).sort());
    proxy.targets = [];
    assert.equal((await pull('acme/tiny', { env: { ...env, NO_PROXY: 'example.org, localhost' } })).status, 0);
    assert.equal(proxy.targets.length, 0);
    await fails(pull('acme/tiny', { env: { ...env, HTTPS_PROXY: `127.0.0.1:${proxy.port}` } }), /the proxy 127\.0\.0\.1:\d+ refuses a connection to localhost:\d+: HTTP 407/);
    proxy.close();
  });

  it('asks for each file if the listing states no sizes and sums', async () => {
    hub.listing = (body) => ({ ...body, siblings: body.siblings.map(({ rfilename }) => ({ rfilename })) });
    const env = hub.environment();
    hub.requests = [];
    const { status, stderr } = await pull('acme/tiny', { env });
    hub.listing = undefined;
    assert.equal(status, 0, stderr);
    assert.ok(hub.requests.filter(({ method }) => method === 'HEAD').length >= 5);
    assert.ok(hub.requests.every(({ method, where }) => method === 'GET' || where === 'hub'));
    checkCache(env, 'acme/tiny', model());
  });

  it('refuses a hub that means harm', async () => {
    const one = (body, change) => ({ ...body, siblings: [...body.siblings, { size: 1, blobId: 'a'.repeat(40), ...change }] });
    const listings = [
      ['../../evil', (body) => one(body, { rfilename: '../../evil' }), /the hub lists a file '\.\.\/\.\.\/evil', whose path is not one inside of a folder/],
      ['/etc/passwd', (body) => one(body, { rfilename: '/etc/passwd' }), /the hub lists a file '\/etc\/passwd'/],
      ['a NUL', (body) => one(body, { rfilename: 'a\0b' }), /the hub lists a file 'a\?b'/],
      ['no name', (body) => one(body, { rfilename: 7 }), /the hub lists a file ''/],
      ['twice', (body) => one(body, { rfilename: 'config.json' }), /'config\.json' twice/],
      ['a commit that is a path', (body) => ({ ...body, sha: '../../../../tmp' }), /its 'sha' is not a commit/],
      ['no listing', () => '<html>Sign in to the network</html>', /the hub's listing cannot be read/],
      ['a bomb', () => '['.repeat(1_000_000), /the hub's listing cannot be read/],
    ];
    for (const [how, listing, pattern] of listings) {
      const env = hub.environment();
      hub.listing = listing;
      await fails(pull('acme/tiny', { env }), pattern).finally(() => { hub.listing = undefined; });
      assert.ok(!existsSync(join(env.HF_HOME, 'hub')), how);
    }
    const everywhere = (location) => (request, response, what) =>
      (what.api || what.storage ? false : response.writeHead(302, { Location: location(request) }).end());
    const env = hub.environment();
    await fails(withFault(everywhere(() => 'http://localhost:1/x'), () => pull('acme/tiny', { env })), /leads from https to http: localhost:1/);
    await fails(withFault(everywhere((request) => request.url), () => pull('acme/tiny', { env })), /redirects more than 10 times/);
    await fails(withFault(everywhere(() => 'file:///etc/passwd'), () => pull('acme/tiny', { env })), /the scheme is neither http nor https/);
    hub.repos['acme/index'] = repo({ ...sharded(), 'model.safetensors.index.json': file('{"weight_map": {"a": "../../../x"}}') });
    await fails(pull('acme/index', { env }), /model\.safetensors\.index\.json names a file that is not in its folder/);
  });
});
