// pg-boss: a loop of fetch and complete, two at once, no handlers. Ended jobs stay in their table.

import { BATCH, PAYLOAD, enter, load, putAll } from "./stage.mjs";

const { PgBoss } = load("pg-boss");
const QUEUE = "job";
const TAKEN = 1000;
const LOOPS = 2;

async function started(url) {
  // Without its supervisor and its clock: nothing here is due later, and neither would it be theirs to drain.
  const boss = new PgBoss({ connectionString: url, max: 4, supervise: false, schedule: false });
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
    const rate = await putAll((count) => boss.insert(QUEUE, batch.slice(0, count)), rows);
    await boss.stop({ graceful: false });
    return rate;
  },

  async drain(url, tally) {
    const boss = await started(url);
    tally.begin();
    const loop = async () => {
      while (tally.left > 0) {
        const jobs = await boss.fetch(QUEUE, { batchSize: TAKEN });
        if (!jobs.length) return;
        await boss.complete(QUEUE, jobs.map((job) => job.id));
        tally.many(jobs.length);
      }
    };
    await Promise.all(Array.from({ length: LOOPS }, loop));
    tally.end();
    await boss.stop({ graceful: false });
  },
});
