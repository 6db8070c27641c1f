import { test } from 'node:test';
import { load } from './load.mjs';
import { skip } from './server.mjs';

test('64 streams with clients that leave', { skip, timeout: 300_000 }, () =>
  load({ seconds: Number(process.env.LOAD_SECONDS ?? 10), streams: 64, seed: 1 }),
);
