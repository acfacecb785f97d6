// graphile-worker: handlers, a local queue and batched completion. A job that ended is deleted.

import { PAYLOAD, enter, load, putAll, reportAge, settings, timedPayload, transact } from "./stage.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = load("graphile-worker");
const { Pool } = load("pg");
const quiet = new Logger(() => () => {});
const { concurrency, batch_size: batchSize, completion_delay: completionDelay } = settings({
  concurrency: 10,
  batch_size: 4000,
  completion_delay: 0,
});

enter({
  install: (url) => runMigrations({ connectionString: url, logger: quiet }),

  async fill(url, rows) {
    const pgPool = new Pool({ connectionString: url, max: 2 });
    const utils = await makeWorkerUtils({ pgPool, logger: quiet });
    const job = { identifier: "job", payload: PAYLOAD };
    const result = await putAll((count) => utils.addJobs(Array(count).fill(job)), rows);
    await utils.release();
    await pgPool.end();
    return result;
  },

  async transact(url, connections, seconds) {
    const pool = new Pool({ connectionString: url, max: connections });
    const result = await transact(pool, connections, seconds, (client) =>
      client.query("select from graphile_worker.add_job('job', $1)", [PAYLOAD]),
    );
    await pool.end();
    return result;
  },

  async publisher(url) {
    const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
    return () => utils.addJob("job", timedPayload());
  },

  // With its default settings: the local queue, which `drain` uses, is for throughput.
  async consume(url) {
    const runner = await run({
      connectionString: url,
      concurrency,
      logger: quiet,
      taskList: { job: (payload) => reportAge(payload) },
    });
    await runner.promise;
  },

  async drain(url, tally) {
    const runner = await run({
      preset: {
        worker: {
          connectionString: url,
          concurrentJobs: concurrency,
          maxPoolSize: concurrency + 2,
          logger: quiet,
          localQueue: { size: batchSize },
          completeJobBatchDelay: completionDelay,
          failJobBatchDelay: completionDelay,
        },
      },
      noHandleSignals: true,
      taskList: { job: () => (tally.begin(), tally.many(1)) },
    });
    tally.begin();
    await tally.all;
    await runner.stop();
    tally.end();
  },
});
