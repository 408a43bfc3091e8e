'use strict';
// node-redlock for the bench `quorum`: reads a key per line, locks and releases it, and prints how long each took, in seconds.

const readline = require('node:readline');
const Redis = require('ioredis');
const Redlock = require('redlock5').default;

const redlock = new Redlock(process.argv.slice(2).map((url) => new Redis(url, { noDelay: true })), { retryCount: 0 });
redlock.on('error', () => {});

(async () => {
  for await (const key of readline.createInterface({ input: process.stdin })) {
    const start = performance.now();
    const lock = await redlock.acquire([key], 10000);
    const taken = performance.now();
    await lock.release();
    console.log((taken - start) / 1000, (performance.now() - taken) / 1000);
  }
})();
