// How long answers pause when a member of a group hangs: node bench/drop/failure.mjs [TURNS [MODEL]]
// (needs build/protean, or PROTEAN). Two replicas serve 8 streams as one group by layers. A thread of a device is stopped, and
// the longest time between two pieces of each stream is taken: it holds the watchdog's time, which looks 16 times in it, the
// fetch of what the other device had dropped, and the steps that compute the lost KV again. Prints a line for each turn, and
// one JSON object on the last line.
import { builtin, Server, sleep } from '../../tests/e2e/server.mjs';
import { hangBusiestThread } from '../../tests/e2e/faults.mjs';

const turns = Number(process.argv[2] ?? 5);
const model = process.argv[3] ?? builtin;
const watchdogS = 2;
const streams = 8;

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

async function stream(server, number, pieces) {
  const response = await fetch(`${server.url}/v1/completions`, {
    method: 'POST', headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: `Chapter ${number}. The old man looked out over the sea`, max_tokens: 900, ignore_eos: true, stream: true }),
  });
  for await (const _ of response.body) pieces.push(performance.now());
}

async function turn() {
  const server = await Server.startWith({ path: model }, '--data-parallel-size', '2', '--threads', '2', '--admin-port', '0',
    '--kv-cache-memory', '64MiB', '--device-timeout', `${watchdogS}`);
  let hung;
  try {
    await server.logged(/operators' port: (\S+)/);
    const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
    const fleet = async () => (await fetch(`${admin}/admin/fleet`, { signal: AbortSignal.timeout(4_000) })).json();
    await fetch(`${admin}/admin/fleet`, { method: 'PUT', body: JSON.stringify({ groups: [['0', '1']], by: 'layers' }) });
    while ((await fleet()).regrouping.length > 0) await sleep(20);
    const pieces = Array.from({ length: streams }, () => []);
    const answers = Promise.all(pieces.map((one, number) => stream(server, number, one)));
    answers.catch(() => {});
    while (pieces.some((one) => one.length < 50)) await sleep(5);
    const calm = pieces.map((one) => median(one.slice(1).map((at, i) => at - one[i])));
    hung = await hangBusiestThread(server.process.pid, fleet);
    if (hung.refused) throw new Error(`this system lets no process stop a thread of another: ${hung.refused}`);
    await answers;
    const pauses = pieces.map((one) => Math.max(...one.slice(1).map((at, i) => at - one[i])));
    const { history } = await fleet();
    return { step_ms: median(calm), pause_ms: median(pauses), longest_ms: Math.max(...pauses), split_s: history.at(-1).done_after_s };
  } finally {
    await hung?.goOn();
    await server.stop();
  }
}

const found = [];
for (let i = 0; i < turns; ++i) {
  found.push(await turn());
  const { step_ms, pause_ms, longest_ms, split_s } = found.at(-1);
  console.log(`pieces every ${step_ms.toFixed(1)} ms; the longest pause is ${pause_ms.toFixed(0)} ms in the median of ${streams} streams, at most ${longest_ms.toFixed(0)} ms; the group splits in ${(1000 * split_s).toFixed(0)} ms`);
}
console.log(JSON.stringify({ watchdog_s: watchdogS, turns: found }));
