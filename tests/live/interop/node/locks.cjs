'use strict';
// The locks of Node.js for interop.rs, which names one and says on stdin what to do with it: one line of words each, one
// answer each.
//
// acquire NAME SECONDS PATIENCE    yes, or no when PATIENCE seconds were not enough
// extend NAME SECONDS              yes, or the name of what was raised
// release NAME                     the same
// owned NAME                       yes or no: whether the record is that of this process
// count NAME SECONDS               adds one to what stands in the key `counted`, in two steps under the lock, for so many
//                                  seconds; how often

const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const Redis = require('ioredis');

// Several URLs, with commas between them, are masters of a quorum.
const [urls, library] = process.argv.slice(2);
const clients = urls.split(',').map((url) => new Redis(url));
const [client] = clients;
const RETRY = { retryDelay: 20, retryJitter: 10 };
const tries = (patience) => Math.ceil(patience / RETRY.retryDelay);

// The retries of redlock 5 keep the records that a failed attempt wrote on a minority. Two processes with one record each
// then block all others until these records end. So each attempt is a call, which removes its records when it fails.
async function insist(attempt, patience) {
  const end = performance.now() + patience;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (performance.now() >= end) throw error;
    }
    await sleep(RETRY.retryDelay + RETRY.retryJitter * (2 * Math.random() - 1));
  }
}

// How each takes a lock: what it is known by, how it is extended and released.
const LIBRARIES = {
  redlock4: async (name, length, patience) => {
    const Redlock = require('redlock4');
    const lock = await new Redlock([client], { ...RETRY, retryCount: tries(patience) }).acquire(name, length);
    return { value: lock.value, extend: (length) => lock.extend(length), release: () => lock.unlock() };
  },
  redlock5: async (name, length, patience) => {
    const Redlock = require('redlock5').default;
    const redlock = new Redlock(clients, { ...RETRY, retryCount: 0 });
    redlock.on('error', () => {});
    const lock = await insist(() => redlock.acquire([name], length), patience);
    return { value: lock.value, extend: (length) => lock.extend(length), release: () => lock.release() };
  },
  '@sesamecare-oss/redlock': async (name, length, patience) => {
    const { Redlock } = require('@sesamecare-oss/redlock');
    const redlock = new Redlock([client], { ...RETRY, retryCount: tries(patience) });
    redlock.on('error', () => {});
    const lock = await redlock.acquire([name], length);
    return { value: lock.value, extend: (length) => lock.extend(length), release: () => lock.release() };
  },
  'redis-semaphore': async (name, lockTimeout, patience) => {
    const { Mutex } = require('redis-semaphore');
    const key = name.replace(/^mutex:/, '');
    const options = { lockTimeout, refreshInterval: 0, retryInterval: RETRY.retryDelay };
    const lock = new Mutex(client, key, { ...options, acquireTimeout: Math.max(patience, 1) });
    if (!(await lock.tryAcquire())) throw new Error('it is held');
    const extend = async (lockTimeout) => {
      // By its documents: who goes on with a lock that somebody else took begins by extending it.
      const known = { identifier: lock.identifier, acquiredExternally: true, acquireAttemptsLimit: 1 };
      if (!(await new Mutex(client, key, { ...options, ...known, lockTimeout }).tryAcquire())) throw new Error('lost');
    };
    return { value: lock.identifier, extend, release: () => lock.release() };
  },
};

const locks = new Map();
const owns = async (name) => {
  const values = await Promise.all(clients.map((client) => client.get(name)));
  return values.filter((value) => value === locks.get(name).value).length > clients.length / 2;
};

async function acquire(name, seconds, patience) {
  try {
    locks.set(name, await LIBRARIES[library](name, seconds * 1000, patience * 1000));
    return 'yes';
  } catch {
    return 'no';
  }
}

async function count(name, seconds) {
  const end = performance.now() + seconds * 1000;
  let added = 0;
  while (performance.now() < end) {
    if ((await acquire(name, 60, 20)) !== 'yes') throw new Error('20 seconds were not enough');
    const counted = Number(await client.get('counted'));
    await sleep(1);
    await client.set('counted', counted + 1);
    if (!(await owns(name))) throw new Error('the record is not ours while we hold it');
    await locks.get(name).release();
    added += 1;
    await sleep(5 + 10 * Math.random());
  }
  return added;
}

const VERBS = {
  acquire,
  count,
  owned: async (name) => ((await owns(name)) ? 'yes' : 'no'),
  release: async (name) => (await locks.get(name).release(), 'yes'),
  extend: async (name, seconds) => (await locks.get(name).extend(seconds * 1000), 'yes'),
};

async function obey(verb, name, ...words) {
  try {
    return await VERBS[verb](name, ...words.map(Number));
  } catch (error) {
    if (verb === 'release' || verb === 'extend') return error.name;
    throw error;
  }
}

(async () => {
  await Promise.all(clients.map((client) => client.ping()));
  console.log('@ready', library);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log('@said', await obey(...line.split(' ')));
  }
  process.exit();
})();
