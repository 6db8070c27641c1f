import { test } from 'node:test';
import { load } from './load.mjs';
import { skip } from './server.mjs';

test('256 streams with clients that leave, and others that disturb', { skip, timeout: 300_000 }, () =>
  load({ seconds: Number(process.env.LOAD_SECONDS ?? 10), streams: Number(process.env.LOAD_STREAMS ?? 256), seed: 1 }),
);
