// pg-boss: a loop of fetch and complete, several at once, no handlers. Ended jobs stay in their table.

import { BATCH, PAYLOAD, enter, load, putAll, settings, transact } from "./stage.mjs";

const { PgBoss } = load("pg-boss");
const { Pool } = load("pg");
const QUEUE = "job";
const { batch_size: batchSize, loops } = settings({ batch_size: 4000, loops: 3 });

async function started(url) {
  // Without its supervisor and its schedule: nothing here is due later.
  const boss = new PgBoss({ connectionString: url, max: Math.max(4, loops), supervise: false, schedule: false });
  await boss.start();
  return boss;
}

enter({
  async install(url) {
    const boss = await started(url);
    await boss.createQueue(QUEUE);
    await boss.stop({ graceful: false });
  },

  async fill(url, rows) {
    const boss = await started(url);
    const batch = Array(BATCH).fill({ data: PAYLOAD });
    const result = await putAll((count) => boss.insert(QUEUE, batch.slice(0, count)), rows);
    await boss.stop({ graceful: false });
    return result;
  },

  async transact(url, connections, seconds) {
    const boss = await started(url);
    const pool = new Pool({ connectionString: url, max: connections });
    const result = await transact(pool, connections, seconds, (client) =>
      boss.send(QUEUE, PAYLOAD, { db: { executeSql: (text, values) => client.query(text, values) } }),
    );
    await pool.end();
    await boss.stop({ graceful: false });
    return result;
  },

  async drain(url, tally) {
    const boss = await started(url);
    tally.begin();
    const loop = async () => {
      while (tally.left > 0) {
        const jobs = await boss.fetch(QUEUE, { batchSize });
        if (!jobs.length) return;
        await boss.complete(QUEUE, jobs.map((job) => job.id));
        tally.many(jobs.length);
      }
    };
    await Promise.all(Array.from({ length: loops }, loop));
    tally.end();
    await boss.stop({ graceful: false });
  },
});
