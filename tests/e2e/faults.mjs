// What hardware that fails does to a server: one of its threads stands still, or memory is lost.
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync, readlinkSync, statSync, truncateSync } from 'node:fs';
import { until } from './server.mjs';

// Attaches to a thread, which stops that one only, and lets it go on when its own input ends.
const script = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
thread = int(sys.argv[1])
for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
    if libc.ptrace(request, thread, None, None) != 0:
        sys.exit('ptrace: ' + os.strerror(ctypes.get_errno()))
os.waitpid(thread, 0x40000000)  # __WALL
print('stopped', flush=True)
sys.stdin.read()
`;

// Returns the processor time of each thread that runs a device's steps.
function cpuTicks(pid) {
  return new Map(readdirSync(`/proc/${pid}/task`).flatMap((thread) => {
    try {
      if (readFileSync(`/proc/${pid}/task/${thread}/comm`, 'utf8') !== 'device\n') return [];
      const fields = readFileSync(`/proc/${pid}/task/${thread}/stat`, 'utf8').replace(/^.*\) /, '').split(' ');
      return [[thread, Number(fields[11]) + Number(fields[12])]];
    } catch {
      return [];  // the thread has ended meanwhile
    }
  }));
}

// Returns the device's thread that has computed most while the server has work.
async function busiestThread(pid) {
  const before = cpuTicks(pid);
  return until(() => {
    const used = [...cpuTicks(pid)].map(([thread, ticks]) => [ticks - (before.get(thread) ?? 0), thread]);
    const [ticks, thread] = used.sort(([a], [b]) => b - a)[0] ?? [0];
    return ticks >= 5 && thread;
  });
}

async function hang(thread) {
  const tracer = spawn('python3', ['-c', script, thread], { stdio: ['pipe', 'pipe', 'pipe'] });
  const ended = new Promise((settle) => tracer.once('close', settle));
  let refused = '';
  tracer.stderr.on('data', (text) => { refused += text; });
  const stopped = await Promise.race([new Promise((settle) => tracer.stdout.once('data', () => settle(true))), ended.then(() => false)]);
  return { refused: stopped ? '' : refused, goOn: () => { tracer.stdin.end(); return ended; } };
}

// Stops the device's thread that computes most. `refused` says why no thread can be stopped here; goOn() lets it go on. A thread
// that holds a lock which others need is let go, because `alive` does not answer then, and another try is made.
export async function hangBusiestThread(pid, alive) {
  for (let tries = 0; tries < 20; ++tries) {
    const hung = await hang(await busiestThread(pid));
    if (hung.refused || await alive().then(() => true, () => false)) return hung;
    await hung.goOn();
  }
  throw new Error('the server does not answer while one of its threads stands still');
}

// Cuts the file behind the pages of one of the server's devices: each first access to a page is an error from then on. The
// files of devices that have lost their memory before may still be open; they are empty.
export function loseMemory(pid) {
  const files = readdirSync(`/proc/${pid}/fd`).map((fd) => `/proc/${pid}/fd/${fd}`);
  truncateSync(files.find((file) => {
    try {
      return readlinkSync(file).startsWith('/memfd:protean-pages') && statSync(file).size > 0;
    } catch {
      return false;  // it has been closed meanwhile
    }
  }), 0);
}
