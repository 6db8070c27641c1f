import { test } from 'node:test';
import { load } from './load.mjs';
import { skip } from './server.mjs';

const seconds = Number(process.env.LOAD_SECONDS ?? 10);
const streams = Number(process.env.LOAD_STREAMS ?? 256);

test(`${streams} streams with clients that leave, and others that disturb`, { skip, timeout: 300_000 + 2000 * seconds }, () =>
  load({ seconds, streams, seed: 1 }),
);
