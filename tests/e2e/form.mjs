// A server whose form may change, and what it is asked about it.
import assert from 'node:assert/strict';
import { builtin, program, Server, until } from './server.mjs';

export const layers = 16;
export const prompt = 'The old man looked out over the sea and';
export const memory = '96MiB';  // of which the layers at bf16 take about 23

export async function startForm(cache, { as = program, path = builtin, budget = memory } = {}, ...flags) {
  const server = await Server.startWith({ as, path, env: { XDG_CACHE_HOME: cache } },
    '--admin-port', '0', '--device-memory', budget, '--max-num-batched-tokens', '512', ...flags);
  await server.logged(/operators' port: (\S+)/);
  server.admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
  return server;
}

export async function form(server) {
  return (await fetch(`${server.admin}/admin/form`)).json();
}

export async function want(server, wish) {
  const response = await fetch(`${server.admin}/admin/form`, { method: 'PUT', body: JSON.stringify(wish) });
  return { status: response.status, ...(await response.json()) };
}

// Until the form is the one that is wanted.
export async function settled(server) {
  let now;
  await until(async () => {
    now = await form(server);
    return now.form.text === now.wanted.text;
  }, () => JSON.stringify(now));
  return now;
}

// Until all variants are packed that can be.
export async function packed(server) {
  let packing;
  await until(async () => {
    ({ packing } = await form(server));
    return packing !== null && (packing.done === packing.total || packing.failure !== null);
  }, () => JSON.stringify(packing));
  return packing;
}

export async function complete(server, fields = {}, signal = undefined) {
  const response = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    signal,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt, max_tokens: 120, temperature: 0, ignore_eos: true, ...fields }),
  });
  const answer = await response.json();
  assert.equal(response.status, 200, JSON.stringify(answer));
  return { text: answer.choices[0].text, usage: answer.usage };
}
