// The parts of an installation: the Debian package, the systemd notifications, the dashboard.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { program, root, Server, skip, until } from './server.mjs';

const packaging = join(root, 'packaging');
const run = (command, ...args) => {
  const { status, stdout, stderr } = spawnSync(command, args, { encoding: 'utf8' });
  assert.equal(status, 0, `${command} ${args.join(' ')}: ${stderr}`);
  return stdout;
};

it('the man page has every command, and no other', () => {
  const commands = (...words) => run(program, ...words, '--help').split('\nCommands:\n')[1].split('\n\n')[0]
    .split('\n').map((line) => /^ {2}(\S+)/.exec(line)?.[1]).filter(Boolean);
  const all = commands().flatMap((name) => (name === 'bench' ? commands(name).map((below) => `bench ${below}`) : [name]));
  assert.ok(all.includes('serve') && all.includes('bench compare'), all.join(', '));
  const page = readFileSync(join(packaging, 'protean.1'), 'utf8').split('.SH COMMANDS\n')[1].split('.SH ')[0];
  const listed = [...page.matchAll(/^\.TP\n\.(?:BI (?:"([^"]+)"|(\S+)).*|B (.+))$/gm)].map((entry) => entry.slice(1).find(Boolean).replaceAll('\\', ''));
  assert.deepEqual(listed.sort(), all.sort());
});

it('every metric that the dashboard asks for exists', { skip }, async () => {
  const dashboard = JSON.parse(readFileSync(join(packaging, 'grafana-dashboard.json'), 'utf8'));
  const server = await Server.start('--admin-port', '0');  // with a form that may change
  let metrics;
  await until(async () => {  // it is told once a second
    await (await fetch(`${server.url}/v1/completions`, { method: 'POST', body: '{"prompt": "Once", "max_tokens": 3}' })).text();
    metrics = await server.metrics();
    return metrics.has('protean:generation_tokens_by_precision_total');
  });
  assert.equal(await server.stop(), 0);
  const asked = dashboard.panels.flatMap((panel) => panel.targets.map((target) => target.expr));
  assert.ok(asked.length > 20);
  for (const expression of asked) {
    const names = expression.replace(/\{[^}]*\}/g, '').match(/\b(vllm:\w+|protean:\w+|process_\w+|http_\w+)/g);
    assert.ok(names?.length > 0, expression);
    for (const name of names) assert.ok(metrics.has(name), `${name} of "${expression}" is not in /metrics`);
  }
});

// Opens a socket like the one that systemd gives to services of Type=notify and collects what it gets.
async function notifySocket(path) {
  const reader = spawn('python3', ['-u', '-c',
    'import socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM);s.bind(sys.argv[1])\nprint("bound")\nwhile True: print(s.recv(4096).decode())', path]);
  const socket = { text: '', close: () => reader.kill() };
  reader.stdout.setEncoding('utf8').on('data', (text) => { socket.text += text; });
  await until(() => socket.text.includes('bound'));
  return socket;
}

describe('the Debian package', { skip: skip || (spawnSync('dpkg-deb', ['--version']).status === 0 ? false : 'needs dpkg-deb') }, () => {
  let folder;
  let file;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'protean-deb-'));
    file = run(join(packaging, 'build-deb'), program, folder).trim();
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  it('holds what a service needs, owned by root', () => {
    const listing = run('dpkg-deb', '--contents', file);
    for (const path of ['usr/bin/protean', 'lib/systemd/system/protean.service', 'etc/protean/protean.toml', 'etc/default/protean',
      'usr/share/man/man1/protean.1.gz', 'usr/share/doc/protean/copyright', 'usr/share/doc/protean/changelog.gz']) {
      assert.match(listing, new RegExp(` root/root .* \\./${path}\\n`), path);
    }
    assert.match(run('dpkg-deb', '--field', file, 'Depends'), /adduser, .*libc6 \(>= .*libssl3/);
    assert.match(run('dpkg-deb', '--field', file, 'Version'), /^\d+\.\d+\.\d+\n$/);
    assert.doesNotMatch(readFileSync(join(packaging, 'build-deb'), 'utf8'), /\t/);
  });

  it('runs from where it was unpacked, and tells systemd how it is', async () => {
    const tree = join(folder, 'tree');
    run('dpkg-deb', '--extract', file, tree);
    const socket = await notifySocket(join(folder, 'notify'));
    const server = await Server.startWith({
      as: join(tree, 'usr/bin/protean'),
      env: { NOTIFY_SOCKET: join(folder, 'notify'), WATCHDOG_USEC: '200000', PROTEAN_CONFIG: join(tree, 'etc/protean/protean.toml') },
    });
    assert.equal((await fetch(`${server.url}/health`)).status, 200);
    await until(() => socket.text.split('WATCHDOG=1').length > 3, () => socket.text);
    assert.equal(await server.stop(), 0);
    await until(() => socket.text.includes('STOPPING=1'), () => socket.text);
    socket.close();
    assert.match(socket.text, /READY=1\nSTATUS=serving/);
    assert.match(socket.text, /WATCHDOG=1\n(.*\n)*WATCHDOG=1/);
    assert.match(socket.text, /STOPPING=1/);
  });

  it('has scripts that a shell understands', () => {
    const control = join(folder, 'control');
    run('dpkg-deb', '--control', file, control);
    for (const script of ['postinst', 'prerm', 'postrm']) run('sh', '-n', join(control, script));
    assert.match(readFileSync(join(control, 'conffiles'), 'utf8'), /\/etc\/protean\/protean\.toml/);
  });
});
