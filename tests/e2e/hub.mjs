// A Hugging Face hub of our own over TLS: the API, the files of repositories, and a storage on another
// origin to which large files are redirected. Speaks the hub's protocol, and misbehaves when asked.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { program, random } from './server.mjs';

// A file of any size without its bytes: a random piece of a prime length, repeated.
export function bigFile(size, seed) {
  const draw = random(seed);
  const piece = Buffer.from(Uint8Array.from({ length: 1_000_003 }, () => draw(256)));
  const read = (from, to) => {
    const parts = [];
    for (let at = from; at < to;) {
      const begin = at % piece.length;
      const part = piece.subarray(begin, Math.min(piece.length, begin + to - at));
      parts.push(part);
      at += part.length;
    }
    return Buffer.concat(parts);
  };
  return makeFile(size, read, true);
}

// A file with the given contents. Large ones lie in the storage (LFS), small ones in git.
export function file(contents, { lfs = false } = {}) {
  const bytes = Buffer.from(contents);
  return makeFile(bytes.length, (from, to) => bytes.subarray(from, to), lfs);
}

const step = 1 << 20;

function makeFile(size, read, lfs) {
  const hash = createHash(lfs ? 'sha256' : 'sha1');
  if (!lfs) hash.update(`blob ${size}\0`);
  for (let at = 0; at < size; at += step) hash.update(read(at, Math.min(size, at + step)));
  return { size, read, lfs, digest: hash.digest('hex') };
}

export const commitOf = (text) => createHash('sha1').update(text).digest('hex');

function certificate(folder) {
  const made = spawnSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256',
    '-nodes', '-keyout', join(folder, 'key.pem'), '-out', join(folder, 'cert.pem'), '-days', '2',
    '-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'], { encoding: 'utf8' });
  if (made.status !== 0) throw new Error(made.stderr);
  return { key: readFileSync(join(folder, 'key.pem')), cert: readFileSync(join(folder, 'cert.pem')) };
}

export class Hub {
  // `repos` maps ORG/NAME to { refs: { main: COMMIT }, commits: { COMMIT: { PATH: file } }, gated, token }.
  static async start(repos) {
    const hub = new Hub();
    hub.repos = repos;
    hub.folder = mkdtempSync(join(tmpdir(), 'protean-hub-'));
    hub.requests = [];
    hub.listing = undefined;      // (body, repo) => another listing
    hub.fault = undefined;        // (request, response, what) => true if it has answered
    const tls = certificate(hub.folder);
    const listen = (server) => new Promise((ready) => server.listen(0, '127.0.0.1', () => ready(server.address().port)));
    hub.servers = [https.createServer(tls, (q, r) => hub.answer(q, r)), https.createServer(tls, (q, r) => hub.store(q, r))];
    const [port, storagePort] = [await listen(hub.servers[0]), await listen(hub.servers[1])];
    hub.url = `https://localhost:${port}`;
    hub.storageUrl = `https://localhost:${storagePort}`;
    return hub;
  }

  close() {
    for (const server of this.servers) {
      server.close();
      server.closeAllConnections();
    }
    rmSync(this.folder, { recursive: true });
  }

  // A cache of its own and the variables that lead a client here.
  environment(home = mkdtempSync(join(this.folder, 'home-'))) {
    return { PATH: process.env.PATH, HOME: home, HF_HOME: home, HF_ENDPOINT: this.url,
      SSL_CERT_FILE: join(this.folder, 'cert.pem'), HF_HUB_DOWNLOAD_TIMEOUT: '120' };  // this hub may be slow
  }

  note(request, where) {
    const { method, url, headers } = request;
    const entry = { where, method, url, range: headers.range, authorization: headers.authorization };
    this.requests.push(entry);
    return entry;
  }

  refuse(response, status, code, message) {
    response.writeHead(status, { 'X-Error-Code': code, 'X-Error-Message': message });
    response.end(JSON.stringify({ error: message }));
  }

  async answer(request, response) {
    this.note(request, 'hub');
    const { pathname } = new URL(request.url, this.url);
    const [, repoOfApi, revisionOfApi] = pathname.match(/^\/api\/models\/([^/]+\/[^/]+)\/revision\/([^/]+)$/) ?? [];
    const [, repoOfFile, revisionOfFile, path] =
      pathname.match(/^\/(?:api\/resolve-cache\/models\/)?([^/]+\/[^/]+?)\/(?:resolve\/)?([^/]+)\/(.+)$/) ?? [];
    const name = repoOfApi ?? repoOfFile;
    const what = { api: repoOfApi !== undefined, repo: name, path: path && decodeURIComponent(path) };
    if (await this.fault?.(request, response, what)) return;
    const repo = this.repos[name];
    const known = request.headers.authorization !== undefined;
    const right = request.headers.authorization === `Bearer ${repo?.token ?? 'hf_right'}`;
    if (known && !right && request.headers.authorization !== 'Bearer hf_right') {
      return this.refuse(response, 401, '', 'Invalid credentials in Authorization header');
    }
    if (repo === undefined || (repo.private && !right)) {
      return this.refuse(response, known ? 404 : 401, 'RepoNotFound', 'Repository not found');
    }
    if (repo.gated && !right) {
      return this.refuse(response, known ? 403 : 401, 'GatedRepo', `Access to model ${name} is restricted.`);
    }
    const revision = decodeURIComponent(revisionOfApi ?? revisionOfFile);
    const commit = repo.commits[revision] ? revision : repo.refs[revision];
    if (commit === undefined) return this.refuse(response, 404, 'RevisionNotFound', `Invalid rev id: ${revision}`);
    if (what.api) return this.list(request, response, name, commit);
    const file = repo.commits[commit][what.path];
    if (file === undefined) return this.refuse(response, 404, 'EntryNotFound', 'Entry not found');
    const head = { 'X-Repo-Commit': commit };
    if (file.lfs) {
      response.writeHead(302, { ...head, 'X-Linked-Etag': `"${file.digest}"`, 'X-Linked-Size': file.size,
        Location: `${this.storageUrl}/${file.digest}?signature=a%2Fb&name=${encodeURIComponent(`"${what.path}"`)}` });
      return response.end();
    }
    if (!pathname.startsWith('/api/resolve-cache')) {  // as the hub does for files in git
      response.writeHead(307, { ...head, ETag: `"${file.digest}"`, 'X-Linked-Size': file.size,
        Location: `/api/resolve-cache/models/${name}/${commit}/${path}` });
      return response.end();
    }
    return this.send(request, response, file, { ...head, ETag: `"${file.digest}"` });
  }

  list(request, response, name, commit) {
    const siblings = Object.entries(this.repos[name].commits[commit]).map(([rfilename, file]) => ({
      rfilename, size: file.size, blobId: file.lfs ? commitOf(file.digest) : file.digest,
      ...(file.lfs ? { lfs: { sha256: file.digest, size: file.size, pointerSize: 134 } } : {}),
    }));
    let body = { id: name, sha: commit, private: false, gated: false, siblings };
    if (this.listing) body = this.listing(body, name);
    response.writeHead(200, { 'Content-Type': 'application/json; charset=utf-8' });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  }

  async store(request, response) {
    this.note(request, 'storage');
    // A signed address and a token contradict each other.
    if (request.headers.authorization) return this.refuse(response, 400, '', 'InvalidArgument');
    const digest = new URL(request.url, this.storageUrl).pathname.slice(1);
    for (const repo of Object.values(this.repos)) {
      for (const files of Object.values(repo.commits)) {
        for (const [path, file] of Object.entries(files)) {
          if (file.digest !== digest) continue;
          if (await this.fault?.(request, response, { storage: true, path, file })) return undefined;
          return this.send(request, response, file, {});
        }
      }
    }
    return this.refuse(response, 404, '', 'NoSuchKey');
  }

  // Sends a file, or the end of it that a Range asks for, up to `upTo`.
  async send(request, response, file, fields, { upTo = file.size, change = (bytes) => bytes } = {}) {
    const from = Number(request.headers.range?.match(/^bytes=(\d+)-$/)?.[1] ?? 0);
    if (from > 0 && from >= file.size) {
      response.writeHead(416, { 'Content-Range': `bytes */${file.size}` });
      return response.end();
    }
    response.writeHead(from > 0 ? 206 : 200, { ...fields, 'Content-Length': file.size - from, 'Accept-Ranges': 'bytes',
      ...(from > 0 ? { 'Content-Range': `bytes ${from}-${file.size - 1}/${file.size}` } : {}) });
    if (request.method === 'HEAD') return response.end();
    let wake = () => {};
    response.on('drain', () => wake()).on('close', () => wake());
    for (let at = from; at < upTo && !response.destroyed; at += step) {
      const more = response.write(change(file.read(at, Math.min(upTo, at + step)), at));
      if (!more && !response.destroyed) await new Promise((go) => { wake = go; });
    }
    if (upTo === file.size) return response.end();
    await new Promise((go) => { response.write('', go); });  // what was written is sent first
    return response.destroy();
  }
}

// A proxy for https that asks for a name and a password.
export class Proxy {
  static async start(credentials) {
    const proxy = new Proxy();
    proxy.targets = [];
    proxy.server = http.createServer((_, response) => response.writeHead(405).end());
    proxy.server.on('connect', (request, client) => {
      client.on('error', () => {});
      const given = Buffer.from((request.headers['proxy-authorization'] ?? '').replace('Basic ', ''), 'base64').toString();
      if (given !== credentials) return client.end('HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n');
      proxy.targets.push(request.url);
      const [host, port] = request.url.split(':');
      const server = net.connect(Number(port), host, () => {
        client.write('HTTP/1.1 200 Connection established\r\n\r\n');
        server.pipe(client).pipe(server);
      });
      return server.on('error', () => client.destroy());
    });
    await new Promise((ready) => proxy.server.listen(0, '127.0.0.1', ready));
    proxy.port = proxy.server.address().port;
    return proxy;
  }

  close() {
    this.server.close();
    this.server.closeAllConnections();
  }
}

export { program };
